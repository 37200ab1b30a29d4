"""The page on the paper's claims, made from stored results of experiments."""

from __future__ import annotations

from pathlib import Path

from prequential.errors import BadInput
from prequential.experiments import NAMES
from prequential.experiments.result_pages import claims_table, read_results
from prequential.experiments.verdicts import claim_from_json
from prequential.storage.files import write_atomically


def write_claims(folders: list[Path], out: Path) -> int:
    """Writes the page; how many claims are on it.

    Parameters
    ----------
    folders
        Those of the experiments, or folders that hold them.
    out
        The page.
    """
    directories = sorted(
        {
            path.parent
            for folder in folders
            for path in (folder / "results.json", *folder.glob("*/results.json"))
            if path.is_file()
        }
    )
    if not directories:
        raise BadInput(f"there are no results of experiments in {', '.join(map(str, folders))}")
    many = sorted(
        (read_results(folder) | {"folder": folder} for folder in directories),
        key=lambda r: NAMES.index(r["experiment"]),
    )
    lines = [
        "# The paper's claims, and what was found",
        "",
        "`prequential experiment claims` writes this page from the stored results of the experiments, each of which states",
        "how it was run. The criterion of a claim is written in the file of its experiment before it is run. It holds if",
        "the 95 % interval over the seeds of its effect is above the least effect that counts, does not hold if the",
        "interval is below, and otherwise cannot be said; nor can it with one seed, where the best value is at the edge of",
        "what was tried, or where the runs are too short. `photos` is a stand-in for CLOC, not CLOC itself.",
        "",
    ]
    verdicts = []
    for saved in many:
        claims = [claim_from_json(claim) for claim in saved["claims"]]
        verdicts += [claim.verdict for claim in claims]
        if claims:
            lines += [f"## {saved['experiment']}", "", f"`{saved['command']}`", "", *claims_table(claims), ""]
    counts = [verdicts.count(verdict) for verdict in ("holds", "does not hold", "cannot be said")]
    lines.insert(8, f"Of {len(verdicts)} claims {counts[0]} hold, {counts[1]} do not, {counts[2]} cannot be said.\n")
    write_atomically(out, "\n".join(lines).encode())
    return len(verdicts)
