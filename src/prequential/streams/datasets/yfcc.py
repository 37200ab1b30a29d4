"""Real photo records as a stream: where does each photographer take the next photo?"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.arrays import load_npz
from prequential.streams.stream import Chunk, Stream

FIRST, END = 946684800, 1514764800  # 2000 and 2018: times before and after are wrongly set cameras
DAY = 86400


class YfccStream(Stream):
    """The records of `yfcc_poi9.npz` (geo-tagged photos of YFCC100M in nine cities), to be predicted: the place.

    An example holds who takes the photo and when, but not what is in it:

    * `user_code` numbers of ±1, a fixed code of the photographer;
    * sine and cosine of the hour of the day, the day of the week and the season (UTC);
    * the logarithm of the seconds since the same photographer's photo before, from 0 to 1, and 1 if there was none;
    * the logarithm of the seconds since anyone's photo before, from 0 to 1.

    Records with a time before 2000 or after 2017 are left out: 169,796 of 170,295 stay.

    Parameters
    ----------
    path
        The .npz file with `y`, `user`, `time`, sorted by time, and the names of the places in `classes`.
    user_code
        How many numbers stand for a photographer, up to 64.
    overlay_days
        Lays the 18 years over each other in pieces of so many days, so that more photographers are at work at once: with
        13 days there is a photo every 6.6 seconds, as on CLOC. A photographer is another one in each piece, and the day of
        the week and the season no longer mean anything; the hour of the day does. 0 leaves the records as they are.
    length
        How many examples there are, if the records are overlaid: they are gone through as often as that takes, each time
        overlaid in another way and by other photographers. 0 are the records once.
    seed
        Which codes the photographers get, and by how many whole days each piece is turned before it is laid over the
        others: what comes after its end comes at its beginning, of another photographer.
    max_bytes
        How many bytes the arrays may unpack to; see `prequential.streams.limits`.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        user_code: int = 32,
        overlay_days: int = 0,
        length: int = 0,
        seed: int = 0,
        max_bytes: int | None = None,
    ) -> None:
        if not 0 <= user_code <= 64:
            raise BadSetting(f"user_code ({user_code}) must be from 0 to 64")
        if not 0 <= seed < 1 << 32:
            raise BadSetting(f"seed ({seed}) must be at least 0 and below 2**32")
        if not 0 <= overlay_days <= (END - FIRST) // DAY:
            raise BadSetting(
                f"overlay_days ({overlay_days}) must be from 0 to {(END - FIRST) // DAY}, all of the records"
            )
        if length < 0 or (length and not overlay_days):
            raise BadSetting(f"length ({length}) must be at least 0, and 0 if overlay_days ({overlay_days}) is 0")
        self.path = Path(path)
        self.user_code, self.seed = user_code, seed
        y, user, time, places = _load(self.path, max_bytes)
        keep = (time >= FIRST) & (time < END)
        if not keep.any():
            raise BadInput(f"{self.path} has no record with a time from {FIRST} to {END - 1}")
        self._y, self._user, self._time = y[keep], user[keep], time[keep]
        late = np.flatnonzero(np.diff(self._time) < 0)
        if len(late):
            i = int(np.flatnonzero(keep)[late[0] + 1])
            raise BadInput(f"{self.path}: record {i} has time {time[i]}, earlier than that of the record before it")
        self.classes = places
        if overlay_days:
            rounds = -(-length // len(self._y)) or 1
            order, user, time = overlay(self._user, self._time, overlay_days, seed, rounds)
            kept = slice(length or None)
            self._y, self._user, self._time = self._y[order[kept]], user[kept], time[kept]
        self._gap = _log_seconds(_since_own_last(self._user, self._time))
        self._pause = _log_seconds(np.diff(self._time, prepend=self._time[0]))

    def __len__(self) -> int:
        return len(self._y)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"yfcc 1, user_code {self.user_code}, seed {self.seed}".encode())
        for array in (self._y, self._user, self._time):
            digest.update(array.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Chunk:
        here = slice(start, stop)
        time = self._time[here]
        # (n, 3) turns of the day, the week and the year; where a week begins is of no matter
        turns = 2 * np.pi * (time[:, None] / np.array([86400, 7 * 86400, 365.2425 * 86400]) % 1)
        gap = self._gap[here]
        new = np.isnan(gap)
        parts = [
            self._codes(self._user[here]),
            np.sin(turns),
            np.cos(turns),
            np.where(new, 1, gap)[:, None],
            new[:, None],
            self._pause[here][:, None],
        ]
        return Chunk(np.concatenate(parts, 1, dtype=np.float32), self._y[here].tolist())

    def _codes(self, user: np.ndarray) -> np.ndarray:
        """The codes of photographers: bits of splitmix64 of their numbers, as ±1. (n, user_code)"""
        h = (user.astype(np.uint64) + np.uint64(self.seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        h = h ^ (h >> np.uint64(31))
        bits = (h[:, None] >> np.arange(self.user_code, dtype=np.uint64)) & np.uint64(1)
        codes: np.ndarray = 2 * bits.astype(np.float32) - 1
        return codes


def overlay(
    user: np.ndarray, time: np.ndarray, days: int, seed: int, rounds: int = 1
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pieces of so many days laid over each other: the order of the records, their photographers and their times.

    >>> begin = FIRST + np.array([0, 5, DAY + 7])
    >>> order, user, time = overlay(np.array([3, 4, 3]), begin, days=1, seed=0)
    >>> order.tolist(), (time - FIRST).tolist(), bool(user[0] == user[2])
    ([0, 1, 2], [0, 5, 7], False)
    """
    span = days * DAY
    piece, moment = np.divmod(time - FIRST, span)
    pieces = int(piece.max()) + 1
    turns = np.random.Philox(seed).random_raw(rounds * pieces) % np.uint64(days)
    orders, users, times = [], [], []
    for number, turn in enumerate(turns.astype(np.int64).reshape(rounds, pieces)):
        over, within = np.divmod(moment + turn[piece] * DAY, span)
        order = np.lexsort((piece, within))
        photographer = user + (2 * (number * pieces + piece) + over << 33)
        orders.append(order)
        users.append(photographer[order])
        times.append(FIRST + number * span + within[order])
    return np.concatenate(orders), np.concatenate(users), np.concatenate(times)


def _load(path: Path, max_bytes: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Places, photographers, times, and how many places there are."""
    if path.suffix.lower() == ".npy":
        raise BadInput(f"{path} holds a single array, expected a .npz file with y, user, time and classes")
    arrays = load_npz(path, max_bytes, ("y", "user", "time", "classes"))
    for name in ("y", "user", "time"):
        if name not in arrays:
            raise BadInput(f"{path} has no array {name!r}, only {', '.join(arrays) or 'none'}")
        if arrays[name].dtype.kind not in "iu" or arrays[name].ndim != 1:
            found = f"{arrays[name].dtype} {arrays[name].shape}"
            raise BadInput(f"{path}: the array {name!r} is {found}, expected whole numbers (records,)")
    y, user, time = (arrays[name].astype(np.int64) for name in ("y", "user", "time"))
    if not len(y) == len(user) == len(time):
        raise BadInput(f"{path} has {len(y)} places, {len(user)} photographers and {len(time)} times")
    if not len(y):
        raise BadInput(f"{path} has 0 records, expected at least 1")
    places = arrays["classes"].size if "classes" in arrays else int(y.max()) + 1
    wrong = np.flatnonzero((y < 0) | (y >= places))
    if len(wrong):
        raise BadInput(f"{path}: record {wrong[0]} has place {y[wrong[0]]}, expected 0 to {places - 1}")
    return y, user, time, places


def _since_own_last(user: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Seconds since the same photographer's record before, NaN where there is none."""
    order = np.argsort(user, kind="stable")  # keeps the order in time
    gap = np.full(len(user), np.nan)
    again = np.flatnonzero(user[order][1:] == user[order][:-1]) + 1
    gap[order[again]] = time[order[again]] - time[order[again - 1]]
    return gap


def _log_seconds(seconds: np.ndarray) -> np.ndarray:
    """From 0 for no time to 1 for the 18 years that the records span."""
    scaled: np.ndarray = np.log1p(seconds) / np.log1p(float(END - FIRST))
    return scaled
