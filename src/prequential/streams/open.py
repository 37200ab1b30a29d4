"""Opening a stream by its name or path, with options."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any

from prequential.deprecation import warn_renamed
from prequential.errors import BadInput, BadSetting, short
from prequential.imports import import_object, is_object_name
from prequential.specs import check_kinds
from prequential.streams.limits import reading as reading_from
from prequential.streams.spec import StreamSpec, path_exists
from prequential.streams.stream import Stream
from prequential.streams.stream_registry import STREAMS, possible_streams

OF_A_RUN = "examples"  # a setting of a run that may be written among the options of its stream
OF_CSV = ("delimiter", "header", "quotes", "decimal_point", "encoding", "dates")
RENAMED = {"grey": "gray"}
PLACES = ("path", "directory", "metadata", "source")  # parameters that say where the data is, and are no options
TEXT = {".csv", ".tsv", ".txt"}
COLUMNAR = {".parquet", ".pq", ".arrow", ".feather", ".ipc"}


def open_stream(
    spec: str | Path | StreamSpec,
    *,
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    time: str | None = None,
    group: str | None = None,
    classes: int | Sequence[Hashable] | None = None,
    on_bad_row: str = "stop",
    reading: int | None = None,
    seed: int | None = None,
    **options: Any,
) -> Stream:
    """Opens a stream by its name or path.

    Parameters
    ----------
    spec
        digits, emnist:PATH, cifar100:PATH, electricity:PATH, covertype:PATH, powersupply:PATH, images:PATH, or the
        path of a table, of arrays or of a folder of images. `emnist` and `cifar100` without a path take
        download=True. split:PATH makes tasks out of any labeled arrays or images. my_package.module:MyStream is a
        class or function of your own that makes a stream. Options can follow in parentheses:
        "prices.csv(delimiter=';')"; those given here win over them.
    label, features, time, group, classes, on_bad_row, reading
        As in `TableStream`; other streams take those of them that make sense. `features` may be one text with commas.
    seed
        For streams that are drawn at random; the others have no use for it.
    options
        The others of the stream it is: kinds, buckets, missing_indicators, keep_ids (tables); delimiter, header, quotes,
        decimal_point, encoding, dates (CSV); split (Hugging Face data sets); size, order, seed, gray, workers
        (images); tasks, ways, task_length, seed, download (split streams); max_bytes (how much a file may unpack to),
        max_pixels (images). An option that is None counts as not given.

    Examples
    --------
    >>> stream = open_stream("digits", tasks=5)
    >>> len(stream)
    1000
    >>> len(open_stream("digits(tasks=5, task_length=50)"))
    250
    """
    parsed = StreamSpec.parse(spec)
    source = parsed.source
    options |= {"label": label, "features": features, "time": time, "group": group, "classes": classes}
    options |= {} if on_bad_row == "stop" else {"on_bad_row": on_bad_row}
    both = [*parsed.options.items(), *options.items()]  # the second wins
    given = _renamed({name: value for name, value in both if value is not None})
    if "features" in given:
        listed = [given["features"]] if isinstance(given["features"], str) else given["features"]
        if isinstance(listed, Sequence) and all(isinstance(text, str) for text in listed):  # else it is refused below
            given["features"] = [part.strip() for text in listed for part in text.split(",")]
    if given.get("on_bad_row") == "stop":  # what every stream does by itself
        del given["on_bad_row"]
    with reading_from(source):
        loader, path = _find(source)
    named = STREAMS.get(parsed.name)
    for option, what in named.needs.items() if named is not None and loader is named.loader() else ():
        if option not in given:
            raise BadInput(f"{source} needs {option}: {what}")
    if seed is not None and "seed" in inspect.signature(loader).parameters:
        given.setdefault("seed", seed)
    if reading is not None and loader is table_stream:
        given.setdefault("reading", min(reading, 2))
    if reading is not None and reading < 3 and source == "photos":
        given.setdefault("fit", 1)
    _check(source, loader, given)
    with reading_from(source):
        stream: Stream = loader(*path, **given)
    if not isinstance(stream, Stream):
        raise BadInput(
            f"{source} gives a {type(stream).__name__}, expected a Stream; ArrayStream and TableStream make one"
        )
    return stream


def check_spec(spec: str | StreamSpec, *, whole: bool = False) -> None:
    """Refuses what cannot be opened as a stream, without opening it: unknown names, paths that are not there, options.

    `whole`: no other options come with it, so that it must say by itself where data is that can be downloaded.
    """
    parsed = StreamSpec.parse(spec).without(OF_A_RUN)
    _check(parsed.source, _find(parsed.source)[0], _renamed(parsed.options))
    known = parsed.source.removesuffix(":")
    if whole and known in STREAMS and STREAMS[known].path == "or download" and not parsed.options.get("download"):
        raise BadInput(f"{parsed.text!r} names no path; expected {known}:PATH, or '{known}(download=true)'")


def _find(spec: str) -> tuple[Callable[..., Stream], list[str]]:
    """What opens a stream, and the path to give it."""
    name, _, place = spec.partition(":")
    if name not in STREAMS or not (place or spec in (name, f"{name}:")):
        if _is_own(spec):
            return _own_loader(spec), []
        return _by_path(Path(spec)), [spec]
    if not place and STREAMS[name].path == "yes":
        raise BadInput(f"{spec!r} names no path; expected {name}:PATH")
    if place and STREAMS[name].path == "no":
        raise BadInput(f"{spec!r} names a path, but {name} come with the package; expected {name}")
    return STREAMS[name].loader(), [place] if place else []


def _renamed(options: dict[str, Any]) -> dict[str, Any]:
    """Options by the names that they have today."""
    for old, new in RENAMED.items():
        if old in options:
            warn_renamed(old, new, stacklevel=4)
            options = {new if name == old else name: value for name, value in options.items()}
    return options


def _is_own(spec: str) -> bool:
    """Whether a text names a class or function of the user's own: my_package.module:MyStream."""
    return is_object_name(spec) and spec.partition(":")[0] not in STREAMS and not path_exists(spec)


def _own_loader(spec: str) -> Callable[..., Stream]:
    """A class or function of the user's own that makes a stream; a stored name needs trust."""
    loader: Callable[..., Stream] = import_object(spec, "stream")
    if not callable(loader):
        raise BadSetting(
            f"stream {spec!r} is a {type(loader).__name__}, expected a class or function that makes a Stream"
        )
    return loader


def table_stream(
    path: str | Path,
    *,
    delimiter: str | None = None,
    header: bool = True,
    quotes: bool = True,
    decimal_point: str = ".",
    encoding: str | None = None,
    dates: str | None = None,
    split: str | None = None,
    seed: int | None = None,
    max_bytes: int | None = None,
    **options: Any,
) -> Stream:
    """A table on disk as a stream: of its rows, or of the images in it."""
    from prequential.streams.formats.arrow import ArrowTable
    from prequential.streams.formats.csv import CsvTable
    from prequential.streams.formats.image_tables import image_column
    from prequential.streams.formats.images import ImageStream
    from prequential.streams.formats.table import Table, suffixes_of
    from prequential.streams.formats.tables import TableStream, as_table

    path = Path(path)
    table: Table
    if not suffixes_of(path) & COLUMNAR and suffixes_of(path) & TEXT:
        if split is not None:
            raise BadSetting(f"{path} is a CSV and has no splits, but split ({split!r}) was asked for")
        table = CsvTable(
            path,
            delimiter=delimiter,
            header=header,
            quotes=quotes,
            decimal_point=decimal_point,
            encoding=encoding,
            dates=dates,
            max_bytes=max_bytes,
        )
    elif (delimiter, header, quotes, decimal_point, encoding, dates) != (None, True, True, ".", None, None):
        raise BadSetting(f"{path} is no CSV, so it does not take {', '.join(OF_CSV)}")
    elif split is not None:
        table = ArrowTable(path, split=split, max_bytes=max_bytes)
    else:
        table = as_table(path, max_bytes)
    kind = ImageStream if image_column(table) and "features" not in options else TableStream
    if kind is ImageStream:
        options.pop("reading", None)  # of columns that become features
    if seed is not None and kind is ImageStream:  # rows have no use for it
        options["seed"] = seed
    _check(
        str(path),
        kind,
        options,
        OF_CSV if table.is_text else ("split", "max_bytes") if isinstance(table, ArrowTable) else ("max_bytes",),
    )
    stream: Stream = kind(table, **options)
    return stream


def split_stream(
    path: str | Path, *, tasks: int = 100, ways: int = 10, task_length: int = 1000, seed: int = 0, **options: Any
) -> Stream:
    """Tasks with random classes and label maps, out of any labeled arrays or images; options are those of the path."""
    from prequential.streams.tasks import SplitStream

    x, y = _pool(path, options)
    return SplitStream(x, y, tasks=tasks, ways=ways, task_length=task_length, seed=seed)


def geo_image_stream(
    path: str | Path,
    *,
    records: str,
    album_gap: float = 3600.0,
    overlay_days: int = 0,
    length: int = 0,
    typical_share: float = 1.0,
    similar_by: str | None = None,
    seed: int = 0,
    max_bytes: int | None = None,
    **options: Any,
) -> Stream:
    """Labeled images, or features of them, on the photographers, times and places of real photo records."""
    from prequential.streams.datasets.geo_images import GeoImageStream

    x, y = _pool(path, options)
    described = None if similar_by is None else _pool(similar_by, {})
    return GeoImageStream(
        x,
        y,
        records=records,
        album_gap=album_gap,
        overlay_days=overlay_days,
        length=length,
        typical_share=typical_share,
        similar_by=described,
        seed=seed,
        max_bytes=max_bytes,
    )


def _pool(path: str | Path, options: dict[str, Any]) -> Any:
    """The examples of a stream by their positions, and their labels; of a stream of tasks, what they are drawn from."""
    from prequential.streams.formats.arrays import ArrayStream
    from prequential.streams.tasks import Pool, SplitStream

    whole = open_stream(str(path), **options)
    if isinstance(whole, SplitStream):
        return (whole.x, whole.y) if isinstance(whole.x, Pool) else ArrayStream(whole.x, whole.y).pool()
    if not hasattr(whole, "pool"):
        raise BadInput(
            f"{path} is a {type(whole).__name__}, whose examples cannot be drawn; expected arrays (.npz, .npy), images or "
            "features"
        )
    return whole.pool()


def _by_path(path: Path) -> Callable[..., Stream]:
    if not path_exists(str(path)):
        raise BadInput(
            f"{short(str(path))} is neither a known stream nor a path that exists; expected {possible_streams()}"
        )
    from prequential.streams.formats.table import suffix_of, suffixes_of

    suffix = suffix_of(path)
    if path.is_file() and suffix in TEXT | COLUMNAR:
        return table_stream
    if path.is_file() and suffix in (".npz", ".npy"):
        from prequential.streams.datasets import tabular as datasets
        from prequential.streams.formats import arrays

        is_covertype = suffix == ".npz" and arrays.npz_names(path) >= datasets.COVERTYPE
        return datasets.covertype if is_covertype else arrays.array_stream
    if (path / "manifest.json").is_file():
        from prequential.streams.formats.feature_folder import FeatureStream

        return FeatureStream
    if path.is_dir():
        from prequential.streams.formats.image_rows import SUFFIXES
        from prequential.streams.formats.images import ImageStream

        found = suffixes_of(path)
        if found & COLUMNAR:
            return table_stream
        if found & SUFFIXES:
            return ImageStream
        if found & {".csv", ".tsv"}:
            return table_stream
    raise BadInput(f"{str(path)!r} cannot be read as a stream; expected {possible_streams()}")


def _check(spec: str, loader: Callable[..., Stream], options: dict[str, Any], more: Sequence[str] = ()) -> None:
    """Options that this kind of stream does not have get a sentence, not a traceback."""
    signature: Any = loader.__init__ if isinstance(loader, type) else loader  # type: ignore[misc]
    try:
        known, hints = inspect.signature(loader).parameters.values(), typing.get_type_hints(signature)
    except (NameError, TypeError, ValueError, AttributeError):  # a stream of the user's own that is annotated otherwise
        return
    # the first is the place; the others are options, also where they can be given without their name
    places = () if _is_own(spec) else PLACES
    names = [parameter.name for parameter in known if parameter.name not in places]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known):
        for option in options:
            if option not in names:
                raise BadSetting(
                    f"{spec} does not take {option}; it takes {', '.join([*names, *more]) or 'no options'}"
                )
    check_kinds(spec, options, hints)
