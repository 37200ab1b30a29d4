"""`prequential features`: the features of a stream's images, extracted once, with progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from prequential.errors import BadInput, BadSetting
from prequential.features.extract import extract
from prequential.features.image_records import as_records
from prequential.features.networks import load_network
from prequential.learners.device import find_device
from prequential.streams.datasets.cloc import ClocRecords
from prequential.streams.open import open_stream
from prequential.streams.spec import StreamSpec
from prequential.streams.stream import Stream


def extract_features(
    source: str,
    out: Path,
    *,
    network: str,
    size: int | None = None,
    images: Path | None,
    columns: dict[str, str | None],
    batch: int,
    dtype: str,
    device: str,
    console: Console,
) -> None:
    """Extracts the features that are missing, and prints a summary; `columns` are the options label, time, image."""
    if batch < 1:
        raise BadSetting(f"batch ({batch}) must be at least 1")
    if size is not None and not 8 <= size <= 2**12:
        raise BadSetting(f"size ({size}) must be from 8 to {2**12}")
    spec = StreamSpec.parse(source)
    check_images_folder(spec, images)
    chosen = {name: column for name, column in columns.items() if column is not None}
    with console.status(f"loading {escape(network)}"):
        net = load_network(network, size=size, device=find_device(device))
    found = open_images(spec, net.size, images, chosen)
    parts = (BarColumn(None), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*parts, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int, skipped: int) -> None:
            bar.update(task, completed=done, total=total, description=f"{skipped:,} skipped")

        made = extract(found, net, out, batch=batch, dtype=dtype, progress=progress)
    skipped = made.manifest["skipped"]
    left_out = f", {skipped:,} images skipped ({out / 'skipped.jsonl'} says why)" if skipped else ", no images skipped"
    console.print(
        f"{len(made):,} examples of {made.width} features in {out}{left_out}; "
        f"use them with: prequential run --stream {out}",
        soft_wrap=True,
        markup=False,
    )


def check_images_folder(spec: StreamSpec, images: Path | None) -> None:
    """--images is for CLOC, whose photos are in another folder than its metadata."""
    is_cloc = spec.name == "cloc"
    if is_cloc and images is None and "images" not in spec.options:
        raise BadInput(f"{spec.text} needs --images: the folder that the paths in the metadata start from")
    if not is_cloc and images is not None:
        raise BadInput(f"--images {images} is for cloc:METADATA; {spec.text} says itself where its images are")


def open_images(
    spec: StreamSpec, size: int, images: Path | None = None, columns: dict[str, str] | None = None
) -> Stream | ClocRecords:
    """The images of a source, decoded at this size where they are files; arrays come in the size that they have."""
    chosen: dict[str, Any] = columns or {}
    source, options = spec.text, spec.options
    if spec.name == "cloc":  # not as a stream, which would try all photos before the first is used
        for name, column in chosen.items():
            raise BadSetting(
                f"--{name} {column} is for manifests and tables; the fields of {source} are known: class, time, user, "
                "path"
            )
        given: dict[str, Any] = {"images": images, "size": size, **options}
        known = ("images", "size", "workers", "converted")
        for option in options:
            if option not in known:
                raise BadSetting(f"{source}: features does not take {option}; it takes {', '.join(known)}")
        return ClocRecords(spec.source.partition(":")[2], given.pop("images"), **given)
    try:
        stream = open_stream(spec, size=options.get("size", size), **chosen)
    except BadSetting:  # it has no size to set; any other error is raised again now
        stream = open_stream(spec, **chosen)
    first = as_records(stream).attempt(0, 1)[0]
    if len(first) and first.ndim == 2:
        hint = f" (images:{source} is the folder)" if Path(source).is_dir() else ""
        raise BadInput(f"{source} gives vectors of {first.shape[1]} numbers, expected images to take features of{hint}")
    return stream
