"""The streams that have a name. A new one is a file with a class or function that makes a `Stream`, and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal

from prequential.streams.stream import Stream


@dataclass(frozen=True)
class NamedStream:
    """How a stream that has a name is opened."""

    place: str  # the module below prequential.streams, and what in it makes the stream
    path: Literal["no", "yes", "or download"] = "yes"  # whether NAME:PATH says where its data is
    needs: dict[str, str] = field(default_factory=dict)  # options that must be given, and what they are
    paths: tuple[str, ...] = ()  # options that are paths

    def loader(self) -> Callable[..., Stream]:
        """The class or function that makes the stream, imported on demand."""
        module, _, name = self.place.partition(":")
        made: Callable[..., Stream] = getattr(import_module(f"prequential.streams.{module}"), name)
        return made


STREAMS = {
    "digits": NamedStream("datasets.digits:digits", path="no"),
    "photos": NamedStream("datasets.photos:PhotoStream", path="no"),
    "emnist": NamedStream("datasets.emnist:split_emnist", path="or download"),
    "cifar100": NamedStream("datasets.cifar:split_cifar", path="or download"),
    "split": NamedStream("open:split_stream"),
    "electricity": NamedStream("datasets.tabular:electricity"),
    "covertype": NamedStream("datasets.tabular:covertype"),
    "powersupply": NamedStream("datasets.tabular:power_supply"),
    "yfcc": NamedStream("datasets.yfcc:YfccStream"),
    "geo-images": NamedStream(
        "open:geo_image_stream",
        needs={"records": "the file yfcc_poi9.npz with the photo records"},
        paths=("records", "similar_by"),
    ),
    "cloc": NamedStream(
        "datasets.cloc:ClocStream",
        needs={"images": "the folder that the paths in the metadata start from"},
        paths=("images",),
    ),
    "features": NamedStream("formats.feature_folder:FeatureStream"),
    "images": NamedStream("formats.images:ImageStream"),
}


def possible_streams() -> str:
    """Everything that can be written where a stream is expected, for messages."""
    names = ", ".join(name if stream.path == "no" else f"{name}:PATH" for name, stream in STREAMS.items())
    return (
        f"{names}, or the path of a .csv, .tsv (also .gz, .bz2, .zst, .lz4), .parquet, .arrow, .feather, .npz or .npy "
        "file, of a folder of .parquet, .arrow or .csv files, of a saved Hugging Face data set, of extracted features, "
        "or of a folder of images with one folder for each class, or my_module:MyStream"
    )
