"""CLOC: how much of the stream the latest labels hold, by the oracle of the last W labels.

Shows: the share of examples whose label is among the last W, for W from 1 to 2048. It is a property of the stream.

Settings: W 1, 2, 4, ..., 2048. Small: the first 100,000 of `photos`; medium: 500,000.

`photos` was fitted to 12 %, so that it proves nothing there. The days by which real records are overlaid were chosen to
make them as dense as CLOC's photos (13 days: 6.6 seconds a photo); the share that follows was seen before this was run.

Hardware and time: 2 cores; a minute.

Expected on CLOC: 12 % for W = 1, rising with W.
"""

from __future__ import annotations

from prequential.experiments.cloc_common import STREAM, examples
from prequential.experiments.experiment import PAPER, CaptionedFigure, Claim, Request, Results, Trial, over_seeds
from prequential.experiments.verdicts import judge
from prequential.plots.studies import draw_lines

__all__ = ["STREAM", "claims", "figures", "trials"]


def trials(request: Request) -> list[Trial]:
    return [
        trial
        for window in (2**i for i in range(12))
        for trial in over_seeds(
            request,
            PAPER,
            {"window": window},
            learner=f"oracle(window={window})",
            run=examples(request, 5),
        )
    ]


def figures(results: Results) -> dict[str, CaptionedFigure]:
    line = {window: [o.accuracy for o in results.where(window=window).outcomes] for window in results.values("window")}
    return {
        "oracle": CaptionedFigure(
            draw_lines({"oracle": line}, over="last W labels", what="accuracy of the oracle"),
            "How often the label is among the last W.",
        )
    }


def claims(results: Results) -> list[Claim]:
    stand_in = results.request.stream.startswith("photos")
    return [
        judge(
            "The label before is right for about 12 %.",
            paper="The left most data point (W = 1, 12 % avg. acc.) corresponds to a model that predicts the correct "
            "location if it is the same location as the previous image.",
            criterion="between 11 and 13 %",
            arms={"last label": results.where(window=1).by_seed()},
            effect=lambda share: 0.01 - abs(share - 0.12),
            least=0.0,
            unless="circular: `photos` was fitted to this number" if stand_in else "",
        )
    ]
