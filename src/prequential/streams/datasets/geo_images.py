"""Real images on the photographers, times and places of real photo records: a small CLOC whose structure is real."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.streams.datasets.yfcc import YfccStream
from prequential.streams.stream import Chunk, Stream
from prequential.streams.tasks import Pool

FINEST = 1000  # features are rounded to this share of the largest, so that distances are exact on every machine


class GeoImageStream(Stream):
    """Photos to be located: who took one, when and where is real, and what is in it is another real image.

    Real are the records (`yfcc_poi9.npz`): which photographer takes a photo where and when, and with it the order of the
    labels, which are the places. Real are the images too, usually features of them by a frozen network. Made up is
    which image a record gets: a place shows one class of images, drawn by seed, so that several places share a class
    where there are more places than classes. An album is what one photographer takes at one place with at most
    `album_gap` seconds between two photos. It begins with a random image of its class and goes on with the most similar
    ones that are left. No image is taken again before its class is used up; then all of the class are there again.

    Images and features of the same images, both with the features as `similar_by`, make the same photos.

    What people photograph at a place is not always what it is known for: with a `typical_share` below 1 only that share of
    the photos shows the class of its place and goes on with the album, and the others show any image of any class.

    Parameters
    ----------
    x, y
        The images or their features, and their classes, as for `SplitStream`: what `pool()` of a stream gives.
    records
        The file with the records, as for `YfccStream`.
    album_gap
        Seconds between two photos of an album at most.
    overlay_days
        Lays the years over each other in pieces of so many days, as for `YfccStream`; 13 give CLOC's density.
    length
        How many photos, if the records are overlaid, as for `YfccStream`; 0 are the records once.
    typical_share
        The share of photos that show the class of their place.
    similar_by
        Features of the same images and their classes, as x and y: the most similar image is the one with the nearest
        features. By default it is found by x itself.
    seed
        Which class a place shows, with which image an album begins, and how pieces of days are turned.
    max_bytes
        How many bytes the records may unpack to; see `prequential.streams.limits`.
    """

    def __init__(
        self,
        x: Pool,
        y: np.ndarray,
        *,
        records: str | Path,
        album_gap: float = 3600.0,
        overlay_days: int = 0,
        length: int = 0,
        typical_share: float = 1.0,
        similar_by: tuple[Pool, np.ndarray] | None = None,
        seed: int = 0,
        max_bytes: int | None = None,
    ) -> None:
        if not album_gap >= 0:
            raise BadSetting(f"album_gap ({album_gap}) must be at least 0")
        if not 0 <= seed < 1 << 32:
            raise BadSetting(f"seed ({seed}) must be at least 0 and below 2**32")
        if not 0 <= typical_share <= 1:
            raise BadSetting(f"typical_share ({typical_share}) must be from 0 to 1")
        self._x = x
        turned = {"overlay_days": overlay_days, "seed": seed} if overlay_days else {}
        self._records = YfccStream(records, **turned, length=length, max_bytes=max_bytes)
        self.classes = self._records.classes
        self._y = self._records._y
        albums = album_numbers(self._records._user, self._y, self._records._time, album_gap)
        kind = _numbers(y)
        if similar_by is not None:
            _check_same_images(kind, _numbers(similar_by[1]))
        by = x if similar_by is None else similar_by[0]
        self.image = draw_images(by, kind, self._y, albums, seed, typical_share=typical_share)

    def __len__(self) -> int:
        return len(self._y)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"geo-images 1, {self._x.fingerprint()}, {self._records.fingerprint()}".encode())
        digest.update(self.image.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Chunk:
        return Chunk(np.asarray(self._x[self.image[start:stop]]), self._y[start:stop].tolist())


def album_numbers(user: np.ndarray, place: np.ndarray, time: np.ndarray, gap: float) -> np.ndarray:
    """The number of each photo's album, from 0: the same photographer at the same place, without a longer break.

    >>> album_numbers(np.array([1, 2, 1, 1, 1]), np.array([7, 7, 7, 7, 8]), np.array([0, 1, 2, 99, 100]), 10).tolist()
    [0, 3, 0, 1, 2]
    """
    order = np.argsort(user, kind="stable")  # keeps the order in time
    who, where, when = user[order], place[order], time[order]
    ends = (np.diff(who) != 0) | (np.diff(where) != 0) | (np.diff(when) > gap)
    numbers = np.empty(len(user), np.int64)
    numbers[order] = np.concatenate([[0], np.cumsum(ends)])
    return numbers


def draw_images(
    x: Pool | np.ndarray,
    kind: np.ndarray,
    place: np.ndarray,
    album: np.ndarray,
    seed: int,
    *,
    typical_share: float = 1.0,
) -> np.ndarray:
    """The image of each photo, as positions in x; `kind` is the class of each image. See `GeoImageStream`."""
    bits = np.random.Philox(seed)
    kinds = int(kind.max()) + 1
    keys = bits.random_raw(int(place.max()) + 1 + kinds)
    deck = np.argsort(keys[-kinds:], kind="stable")  # as many places for every class, up to one
    shows = deck[np.argsort(np.argsort(keys[:-kinds], kind="stable")) % kinds]  # (places,)
    begins = bits.random_raw(int(album.max()) + 1)
    drawn = np.empty(len(place), np.int64)
    typical = (bits.random_raw(len(place)) >> np.uint64(11)) * 2.0**-53 < typical_share  # (photos,)
    others = bits.random_raw(len(place))
    shown = np.where(typical, shows[place], (others % np.uint64(kinds)).astype(np.int64))
    for one in np.unique(shown):
        members = np.flatnonzero(kind == one)
        distance = _distances(np.asarray(x[members]))
        free = np.ones(len(members), bool)
        before: dict[int, int] = {}  # the last image of each album
        for t in np.flatnonzero(shown == one):
            if not free.any():
                free[:] = True
            left = np.flatnonzero(free)
            last = before.get(number := int(album[t]))
            if not typical[t]:
                chosen = int(left[int(others[t] // np.uint64(kinds)) % len(left)])
            elif last is None:
                chosen = int(left[int(begins[number]) % len(left)])
            else:
                chosen = int(left[distance[last, left].argmin()])
            free[chosen] = False
            if typical[t]:
                before[number] = chosen
            drawn[t] = members[chosen]
    return drawn


def _numbers(y: np.ndarray) -> np.ndarray:
    """Classes as numbers from 0, in their order."""
    return np.unique(y, return_inverse=True)[1].ravel()


def _check_same_images(kind: np.ndarray, described: np.ndarray) -> None:
    """Features that are to describe images must be of these images, as far as their classes show."""
    if len(kind) != len(described):
        raise BadInput(f"similar_by has {len(described)} examples, expected those of the {len(kind)} images")
    differing = np.flatnonzero(kind != described)
    if len(differing):
        first = int(differing[0])
        raise BadInput(
            f"similar_by, example {first}: the class has number {described[first]}, expected that of the image, "
            f"{kind[first]}"
        )


def _distances(x: np.ndarray) -> np.ndarray:
    """Squared distances between the examples in whole numbers, the same on every machine. (n, n)"""
    flat = x.reshape(len(x), -1).astype(np.float64)
    whole = np.rint(flat * (FINEST / max(float(np.abs(flat).max()), 1e-30)))
    square = (whole**2).sum(1)
    distance: np.ndarray = square[:, None] + square - 2 * whole @ whole.T
    np.fill_diagonal(distance, np.inf)
    return distance
