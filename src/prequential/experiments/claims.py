"""The page on the paper's claims, made from stored results of experiments."""

from __future__ import annotations

from pathlib import Path

from prequential.errors import BadInput
from prequential.experiments import NAMES
from prequential.experiments.runner import claims_table, read_results
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
        "how it was run. A claim holds if the numbers come out in the order it predicts, at the size and with the seeds of",
        "the run; small runs say little about 37 million photos. `photos` is a stand-in for CLOC, not CLOC itself.",
        "",
    ]
    for saved in many:
        if saved["claims"]:
            lines += [f"## {saved['experiment']}", "", f"`{saved['command']}`", "", *claims_table([saved]), ""]
    held = [claim["holds"] for saved in many for claim in saved["claims"]]
    lines.insert(
        6,
        f"{held.count(True)} of {len(held)} hold, {held.count(False)} do not, {held.count(None)} cannot be decided.\n",
    )
    write_atomically(out, "\n".join(lines).encode())
    return len(held)
