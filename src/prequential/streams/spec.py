"""A stream as it is written on a command line, parsed once: `emnist:data/e.npz(tasks=20)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from prequential.errors import BadInput, BadSetting
from prequential.specs import parse_options
from prequential.streams.stream_registry import STREAMS


@dataclass(frozen=True)
class StreamSpec:
    """A name or a path, and the options that follow it in parentheses.

    Examples
    --------
    >>> spec = StreamSpec.parse("photos(length=2000000)")
    >>> spec.source, spec.options
    ('photos', {'length': 2000000})
    """

    text: str
    """As it was written."""
    source: str
    """The name, the path, or both with a colon between them."""
    options: dict[str, Any]

    @classmethod
    def parse(cls, spec: str | Path | StreamSpec) -> StreamSpec:
        if isinstance(spec, StreamSpec):
            return spec
        if isinstance(spec, Path):
            spec = str(spec)
        if not isinstance(spec, str):
            raise BadInput(
                f"the stream is a {type(spec).__name__}, expected a name or a path; TableStream takes data frames and "
                "ArrayStream arrays"
            )
        if not spec.endswith(")") or "(" not in spec or path_exists(spec.partition(":")[2] or spec):
            return cls(spec, spec, {})
        opening = [i for i, character in enumerate(spec) if character == "("]
        # a folder may have parentheses in its name too: the options follow something that exists
        after_path = [i for i in opening if path_exists(spec[:i]) or path_exists(spec[:i].partition(":")[2])]
        at = (after_path or opening)[0]
        return cls(spec, spec[:at].strip(), parse_options(spec[at + 1 :], spec))

    @property
    def name(self) -> str:
        """What comes before the colon; all of it where there is none."""
        return self.source.partition(":")[0]

    def without(self, *names: str) -> StreamSpec:
        """The same without some options."""
        return replace(self, options={name: value for name, value in self.options.items() if name not in names})

    def absolute(self) -> str:
        """The text with absolute paths: the same stream from any working directory."""
        return self.with_paths(lambda path: str(Path(path).resolve()) if path_exists(path) else path)

    def with_paths(self, change: Callable[[str], str]) -> str:
        """The text with its paths changed, also those among the options and those of a stream that it is made of.

        >>> StreamSpec.parse("geo-images:cifar100:a/b(records=c/d.npz)").with_paths(lambda path: Path(path).name)
        'geo-images:cifar100:b(records=d.npz)'
        """
        names, place = "", self.source
        while ":" in place and place.partition(":")[0] in STREAMS:  # a stream can be made of another one
            name, _, place = place.partition(":")
            names += f"{name}:"
        source = self.source if self.source in STREAMS else names + change(place)
        known = STREAMS[self.name].paths if self.name in STREAMS else ()
        paths = {name: value for name, value in self.options.items() if name in known and isinstance(value, str)}
        changed = {name: change(path) for name, path in paths.items()}
        if changed == paths:
            return f"{source}{self.text[len(self.source) :]}"
        return write_spec(source, self.options | changed)


def write_spec(source: str, options: dict[str, Any]) -> str:
    """A stream as it is written on a command line.

    >>> write_spec("photos", {"length": 5}), write_spec("digits", {}), write_spec("a.csv", {"label": "up", "time": "a b"})
    ('photos(length=5)', 'digits', "a.csv(label=up, time='a b')")
    """
    written = ", ".join(f"{name}={_written(value)}" for name, value in options.items())
    return f"{source}({written})" if options else source


def _written(value: Any) -> str:
    """A value of an option, without quotes where it is read the same."""
    try:
        same = isinstance(value, str) and parse_options(f"value={value})", value) == {"value": value}
    except BadSetting:
        same = False
    return value if same else repr(value)


def path_exists(path: str) -> bool:
    """Whether there is such a path; False for a text that cannot be one (too long, with a null byte)."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):
        return False
