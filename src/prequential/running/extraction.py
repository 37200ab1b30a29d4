"""`prequential features`: the features of a stream's images, extracted once, with progress."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prequential.errors import BadInput
from prequential.features.extract import extract
from prequential.learners.device import find_device
from prequential.streams.cloc import ClocRecords
from prequential.streams.open import open_stream
from prequential.streams.stream import Stream


def extract_features(
    source: str, out: Path, *, network: str, images: Path | None, batch: int, dtype: str, device: str, console: Console
) -> None:
    """Extracts what is missing of the features, and says what came out."""
    kind, _, place = source.partition(":")
    found: Stream | ClocRecords
    if kind == "cloc":
        if images is None:
            raise BadInput(f"{source} needs --images: the folder that the paths in the metadata start from")
        found = ClocRecords(place, images)  # bad images are skipped and counted while they are read
    else:
        found = open_stream(source)
    columns = (BarColumn(None), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, skipped: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{skipped:,} skipped")

        made = extract(
            found, network, out, batch=batch, dtype=dtype, device=str(find_device(device)), progress=progress
        )
    console.print(
        f"{len(made):,} examples of {made.width} features in {out}, {made.manifest.get('skipped', 0):,} images skipped; "
        f"go on with: prequential run --stream {out}",
        soft_wrap=True,
    )
