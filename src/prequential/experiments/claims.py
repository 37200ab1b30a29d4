"""The page on the paper's claims, made from stored results of experiments."""

from __future__ import annotations

import textwrap
from pathlib import Path

from prequential.experiments.result_pages import claims_table
from prequential.experiments.stored import decided, heading, read_all
from prequential.experiments.verdicts import Claim, Verdict
from prequential.plots.claims import ClaimRow, draw_claims
from prequential.plots.style import save
from prequential.storage.files import write_atomically

ABOUT = """\
# The paper's claims, and what was found

`prequential experiment claims` writes this page from the stored numbers of the experiments. The criterion of a claim
is written in the file of its experiment, with the paper's own measure and the least effect that counts. It **holds**
if the 95 % interval of the effect over the seeds is above that least effect, **does not hold** if the interval is
below, and otherwise **cannot be said**; nor can it with one seed, where the best value is at the edge of what was
tried, or where the runs are too short. Seeds are paired: equal seeds have equal streams. Numbers are means over the
seeds, ± half of the 95 % t interval. Claims on a cube of settings have a bootstrap interval over the settings instead,
which were drawn at random. As far as effects scatter normally, a verdict that is given is wrong by chance with a
probability of at most 2.5 %; this is not corrected for the number of claims.

`photos` and `geo-images` are stand-ins for CLOC, not CLOC itself: the first is generated, the second has real images,
by a frozen network, on the photographers, times and places of real photo records, overlaid to be as dense as CLOC's.
"""
VERDICTS: tuple[Verdict, ...] = ("holds", "does not hold", "cannot be said")


def write_claims(folders: list[Path], out: Path) -> int:
    """Writes the page and, beside it, a picture of all claims; how many there are.

    Parameters
    ----------
    folders
        Those of the experiments, or folders that hold them.
    out
        The page.
    """
    lines, verdicts, rows = [], [], []
    for saved in read_all(folders):
        claims = decided(saved)
        verdicts += [claim.verdict for claim in claims]
        rows += [_row(heading(saved), claim) for claim in claims]
        when = f", commit {saved['commit']}, {saved['date']}" if "commit" in saved else ""
        command = textwrap.wrap(f"`{saved['command']}`{when}", 120, break_long_words=False, break_on_hyphens=False)
        lines += [f"## {heading(saved)}", "", *command, ""]
        if not any("measures" in outcome for outcome in saved["outcomes"]):
            fit = ", with the stream that is `photos(fit=1)` now" if saved["stream"] == "photos" else ""
            lines += [f"Of an earlier version{fit}: what it did not store has no results here.", ""]
        if saved.get("missing"):
            lines += [f"{len(saved['missing'])} of its runs are not finished.", ""]
        lines += [*claims_table(claims), ""]
    counts = [verdicts.count(verdict) for verdict in VERDICTS]
    head = f"Of {len(verdicts)} claims {counts[0]} hold, {counts[1]} do not, {counts[2]} cannot be said.\n"
    picture = out.with_suffix(".png")
    save(draw_claims(rows), picture)
    shown = f"![How far each effect is beyond what was asked for, and the verdict]({picture.name})\n"
    write_atomically(out, "\n".join([ABOUT, head, shown, *lines]).encode())
    return len(verdicts)


def _row(experiment: str, claim: Claim) -> ClaimRow:
    effect = claim.effect or {}
    least, found = effect.get("least", 0.0), [effect.get(name) for name in ("mean", "low", "high")]
    return ClaimRow(
        experiment, claim.says, claim.verdict, claim.reason, *(v if v is None else v - least for v in found)
    )
