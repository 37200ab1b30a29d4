"""The settings of Table 1's rows, tuned with the same effort: five values of one option for every row that has options.

The tuning stream is not one of those that are reported: it is another world of `photos`, or real records with other
images at the places, overlaid in another way. (A stream that is not drawn at random is tuned on its own beginning.) The
criterion is the paper's measure, average accuracy over the tuning stream.
"""

from __future__ import annotations

from dataclasses import replace

from prequential.comparisons.table1 import OWN, PAPER, row_name
from prequential.experiments.cloc_common import MEDIUM_EXAMPLES, MEDIUM_RATES, base, with_option
from prequential.experiments.experiment import CaptionedFigure, Request, Results, Trial, over_seeds
from prequential.experiments.rate_sweeps import AtBestRate, at_best_rate
from prequential.plots.studies import Line, draw_lines

TUNING, TABLE = "tuning", "table"  # the stages, a tag of each trial
TUNING_EXAMPLES = 200_000  # the transformer has begun to use its context
TUNING_WORLD = 1000  # the seed of the tuning stream; those that are reported are 0, 1, ...
LONG_EXAMPLES = 2_000_000
STEPS = (1e-3, 3e-4, 3e-3, 1e-2, 3e-2)  # of AdamW
# The option of each row that matters most, and its values; the first is what the row has by itself. Single runs over the
# first 10,000 to 20,000 of the tuning stream showed where the values of er, acm and kalman have to lie; those of the
# transformers are the rates of the sweeps.
TUNED: dict[str, tuple[str, tuple[float, ...]]] = {
    "er": ("learning_rate", (0.0125, 0.04, 0.12, 0.4, 1.2)),
    "acm": ("most", (16, 2, 4, 8, 32)),  # neighbors; how many of them vote is chosen during the stream
    "replay-streams(hidden_sizes=[])": ("learning_rate", STEPS),
    "replay-streams(hidden_sizes=[256])": ("learning_rate", STEPS),
    "kalman": ("drift_rate", (0.01, 0.1, 1.0, 10.0, 100.0)),
    "kalman-network": ("learning_rate", STEPS),
    "no-image(method=paper,recent_window=0)": ("learning_rate", MEDIUM_RATES),
    "no-attention(method=paper,recent_window=0)": ("learning_rate", MEDIUM_RATES),
    OWN: ("learning_rate", MEDIUM_RATES),
}
TIERS = {"kalman-network": 2, "acm": 3}  # of those that take longest; ACM takes as long as all others together
LONG_TIERS = {"acm": 5}
LONG_TIER = 4  # of all others over LONG_EXAMPLES


def tuning_trials(request: Request) -> list[Trial]:
    """Every row with every value of its option."""
    run = {"stream": with_option(request.stream, "seed", TUNING_WORLD), "examples": TUNING_EXAMPLES}
    return [
        Trial(
            tags={"learner": row, option: value, "seed": 0, "stage": TUNING},
            settings=base(request),
            learner=tuned_learner(row, value),
            run=run,
            tier=TIERS.get(row, 1),
        )
        for row, (option, values) in TUNED.items()
        for value in values
    ]


def table_trials(request: Request, results: Results) -> list[Trial]:
    """The reported runs of the rows whose tuning is complete, each with its best value; the long ones last."""
    given = request.reading.get("examples")
    found = []
    for length in [given] if given else [MEDIUM_EXAMPLES, LONG_EXAMPLES]:
        long = length > MEDIUM_EXAMPLES
        stream = with_option(request.stream, "length", length) if long else request.stream
        of_length = []
        for row in sorted(PAPER, key=lambda row: TIERS.get(row, 1)):
            best = chosen(results, row)
            if best is None and row in TUNED:
                continue
            tags = {"learner": row} if best is None else {"learner": row, TUNED[row][0]: best.rate}
            for trial in over_seeds(
                request,
                base(request),
                tags,
                learner=row if best is None else tuned_learner(row, best.rate),
                run={"stream": stream, "examples": length},
                tier=LONG_TIERS.get(row, LONG_TIER) if long else TIERS.get(row, 1),
            ):
                # behind the seed: by their names up to it, tuning runs show how long these will take
                of_length.append(replace(trial, tags={**trial.tags, "stage": TABLE, "length": length}))
        found += sorted(of_length, key=lambda trial: trial.tags["seed"]) if long else of_length
    return found


def chosen(results: Results, row: str) -> AtBestRate | None:
    """The value of a row's option that is best on the tuning stream; None while some of its values are not finished."""
    if row not in TUNED:
        return None
    option, values = TUNED[row]
    tuning = results.where(learner=row, stage=TUNING)
    return at_best_rate(tuning, option) if len(tuning) == len(values) else None


def tuned_learner(row: str, value: float) -> str:
    """A row of the table with a value of its option.

    >>> tuned_learner("er", 0.04), tuned_learner("replay-streams(hidden_sizes=[])", 0.01)
    ('er(learning_rate=0.04)', 'replay-streams(hidden_sizes=[],learning_rate=0.01)')

    The row as it is stands for the first value, so that runs can be shared:

    >>> tuned_learner("er", 0.0125)
    'er'
    """
    option, values = TUNED[row]
    return row if value == values[0] else _added(row, f"{option}={value}")


def _added(call: str, option: str) -> str:
    return f"{call[:-1]},{option})" if call.endswith(")") else f"{call}({option})"


# What it says.


def say_settings(results: Results, rows: list[str]) -> str:
    """The settings that rows were reported with; whether one is the lowest or highest of those tried."""
    said = []
    for row in rows:
        if (best := chosen(results, row)) is not None:
            edge = f" ({'lowest' if best.rate == min(best.rates) else 'highest'} tried)" if best.at_edge else ""
            said.append(f"{row_name(row)} {TUNED[row][0]} {best.rate:g}{edge}")
    return f"tuned for accuracy to {', '.join(said)}" if said else ""


def edge_of_row(results: Results, row: str | None) -> str:
    """Why a comparison is open: the row that is behind may be better at values beyond those tried."""
    best = None if row is None else chosen(results, row)
    if row is None or best is None or not best.rising:
        return ""
    return f"grid edge: {row_name(row)} is behind, and best at {TUNED[row][0]} {best.rate:g}, the last of those tried"


def figure_of_tuning(results: Results) -> CaptionedFigure | None:
    """Accuracy on the tuning stream by the value of each row's option."""
    lines: dict[str, Line] = {}
    for row, (option, values) in TUNED.items():
        tuning = results.where(learner=row, stage=TUNING)
        places = {value: place for place, value in enumerate(sorted(values), 1)}
        if tuning.outcomes:
            lines[row_name(row)] = {places[o.tags[option]]: [o.accuracy] for o in tuning.outcomes}
    if not lines:
        return None
    tried = "; ".join(
        f"{row_name(row)} {option} {', '.join(f'{value:g}' for value in sorted(values))}"
        for row, (option, values) in TUNED.items()
        if row_name(row) in lines
    )
    return CaptionedFigure(
        draw_lines(lines, over="five values of a setting, from the lowest to the highest", log=False),
        f"Average accuracy on the tuning stream, which is not reported, with five values of a setting: {tried}.",
    )
