"""A stream like CLOC that needs no download: photographers on outings, many at once, each photo to be located.

It stands in for CLOC where CLOC cannot be had. How it is made, and what each number was fitted to:

* An *outing* is a photographer taking photos with less than eight hours between them. Its size, its gaps in seconds and
  how often a gap ends a stay follow 169,796 real photo records (YFCC100M, nine cities, 2000 to 2017).
* A *place* is what is to be predicted: a cell on the map, as CLOC's are. Places belong to regions, are
  Zipf-distributed, wax and wane, and half of them appear only as the years go by. A photographer lives at one place or
  is on a journey to another, and takes most photos there. How often the same photographer's next photo has the same
  place, by the time between them, follows the same records, cut into cells of 0.15 degrees: 24 in nine cities.
* An *album* is what an outing takes at one spot before it moves on, often within the same place. How alike the photos
  of an album are is heavy-tailed: a quarter of the photos are near-duplicates of their album, a third resemble it, the
  others hardly do. Photos of one outing are a little alike, photos of one place faintly.
* The stream is all outings of the world merged by time, a photo every 6.5 seconds as on CLOC; P(y_t = y_{t-1}) = 12 %
  follows. The weights in the features are set so that the image alone gives about 19 % and the nearest neighbor in a
  large memory about 26 %, as the paper reports of CLOC.

Nothing was set by looking at how a method that uses context does. `benchmarks/photos_fit.py` prints every number next
to its target. `fit=1` is the stream of earlier versions, whose places were spots, whose photographers had no place of
their own, and whose albums were all equally alike.

Time is cut into blocks of 4096 photos. A block is made from the outings that begin in it or in the four before it, each
of them from hashes of its own number; so any block is made without those before it, and the first examples are the same
whatever the length. All draws are integer hashes, all other arithmetic is elementwise float64 with + − × ÷ √, and
the features are sums of whole numbers small enough to be exact in float32 in any order: the same seed gives the same
bits on every machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from prequential.errors import BadSetting
from prequential.streams.stream import Chunk, Stream

BLOCK = 4096  # photos in a block
REACH = 5  # an outing has photos in the block it begins in and the next four
LATENT = 64  # numbers behind the features

# Fitted to the real records. u is always uniform on (0, 1].
SIZE_SCALE, SIZE_MOST = 4.0, 250  # an outing has n = 1 + ⌊4(u^-3/4 − 1)⌋ photos, 250 at most
GAP_SCALE = 844.0  # a gap is 844 n^-3/4 (1/u − 1) seconds, times ((1 − v)/v)^3/4 with one v for the whole outing
GAP_MOST = 28800.0  # eight hours: a longer gap would end the outing
CHANGE = (0.015, 0.95, 1400.0)  # a gap of g seconds ends the stay at a spot with probability 0.015 + 0.95 g/(g + 1400)
EVENTS = ((0.45, 256), (0.42, 4096))  # a stay is where the region's event is: probability, photos it lasts
FAVORITE = 0.08  # a stay is at one of the photographer's four favorite places
PLACES_PER_REGION = 48
OLD = 0.5  # share of the places there from the start; the others appear log-uniformly up to 33 million photos


@dataclass(frozen=True)
class Fit:
    """What differs between the fits."""

    outings: int  # begin in a block; photographers who take a single photo fill up what is left of it
    seconds_per_photo: float  # between two photos of the whole world
    gap_least: float  # seconds that every gap of an outing is longer
    back: float  # the next stay of an outing is at the place of the first one
    # photographers: share of the outings, outings each goes on, blocks they are active for, share of those at home
    tiers: tuple[tuple[float, int, int, float], ...]
    zipf: tuple[int, int]  # (a, b): the k-th place of region r, from 0, has weight 1/((r + a)(k + b))
    weight_place: int  # in the features, as are the next ones
    weight_outing: int
    likeness: tuple[tuple[float, int, int], ...]  # share of the photos, weights of their album and of themselves
    base: float = 0.0  # a stay is at the place where the photographer lives or has traveled to
    trip: int = 1  # blocks that a journey lasts


FITS = {
    1: Fit(
        outings=440,
        seconds_per_photo=2.8,
        gap_least=0.0,
        back=0.25,
        tiers=((0.20, 1, 256, 0.85), (0.30, 4, 512, 0.85), (0.27, 20, 1024, 0.85), (0.23, 120, 4096, 0.85)),
        zipf=(1, 2),
        weight_place=19,
        weight_outing=20,
        likeness=((1.0, 48, 48),),
    ),
    2: Fit(
        outings=430,
        seconds_per_photo=6.5,
        gap_least=1.5,
        back=0.5,
        tiers=((0.20, 1, 256, 0.0), (0.30, 4, 32, 0.0), (0.27, 20, 2048, 0.95), (0.23, 120, 4096, 0.95)),
        zipf=(3, 4),
        weight_place=17,
        weight_outing=20,
        likeness=((0.25, 64, 20), (0.35, 36, 57), (0.4, 10, 66)),
        base=0.87,
        trip=96,
    ),
}

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Photos:
    """The latent variables of consecutive photos, for measurements only; a learner never sees them."""

    place: np.ndarray  # the class
    user: np.ndarray  # hash of the photographer
    outing: np.ndarray  # hash of the outing
    album: np.ndarray  # hash of the outing and the stay
    time: np.ndarray  # in photos of the world since the block began

    def take(self, which: np.ndarray | slice) -> Photos:
        return Photos(self.place[which], self.user[which], self.outing[which], self.album[which], self.time[which])


def _join(parts: list[Photos]) -> Photos:
    return Photos(*(np.concatenate([getattr(part, name) for part in parts]) for name in Photos.__dataclass_fields__))


class PhotoStream(Stream):
    """Photos of places by many photographers at once, made on the fly: the stand-in for CLOC.

    Parameters
    ----------
    length
        How many photos; the first ones are the same for every length.
    classes
        How many places.
    width
        How many features describe a photo.
    seed
        Which world; every number gives another one.
    fit
        2, or 1 for the stream as earlier versions made it.

    Examples
    --------
    >>> photos = PhotoStream(1_000_000)
    >>> chunk = photos.read(999_744, 1_000_000)
    >>> chunk.x.shape, len(set(chunk.y))
    ((256, 128), 45)
    """

    def __init__(
        self, length: int = 1_000_000, *, classes: int = 713, width: int = 128, seed: int = 0, fit: int = 2
    ) -> None:
        if length < 1:
            raise BadSetting(f"length ({length}) must be at least 1")
        if classes < 2:
            raise BadSetting(f"classes ({classes}) must be at least 2")
        if width < 1:
            raise BadSetting(f"width ({width}) must be at least 1")
        if not 0 <= seed < 1 << 63:
            raise BadSetting(f"seed ({seed}) must be at least 0 and below 2**63")
        if fit not in FITS:
            raise BadSetting(f"fit ({fit}) must be {' or '.join(map(str, FITS))}")
        self.length, self.classes, self.width, self.seed, self.fit = length, classes, width, seed, fit
        self._fit = FITS[fit]
        self._make_places(classes)
        signs = self._hash("mixing", np.arange(LATENT * width)).reshape(LATENT, width) >> np.uint64(63)
        self._mixing = 2 * signs.astype(np.float32) - 1
        # bounded, and enough for a reader in front and fifteen replaying ones
        self._starting = lru_cache(maxsize=24)(self._make_starting)
        self._block = lru_cache(maxsize=16)(self._make_block)

    def __len__(self) -> int:
        return self.length

    def fingerprint(self) -> str:
        text = f"photos {self.fit}, length {self.length}, classes {self.classes}, width {self.width}, seed {self.seed}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _read(self, start: int, stop: int) -> Chunk:
        photos = self.latent(start, stop)
        return Chunk(self._features(photos, np.arange(start, stop)), photos.place.tolist())

    def latent(self, start: int, stop: int) -> Photos:
        """The places, photographers, outings and albums of the photos start..stop-1, for measuring only."""
        parts = [
            self._block(m).take(slice(max(start - m * BLOCK, 0), min(stop - m * BLOCK, BLOCK)))
            for m in range(start // BLOCK, (stop - 1) // BLOCK + 1)
        ]
        return _join(parts)

    # What is fixed for the whole stream.

    def _make_places(self, classes: int) -> None:
        """Regions, weights, first blocks and looks of the places, ordered by region."""
        regions = max(1, classes // PLACES_PER_REGION)
        rank = np.arange(classes)
        region = rank % regions  # every region has popular and rare places
        order = np.argsort(region, kind="stable")
        self._label = np.argsort(self._hash("label", rank), kind="stable")[
            order
        ]  # so that a class number carries no information
        shift, place_shift = self._fit.zipf
        self._weight = ((1 << 30) // ((region + shift) * (rank // regions + place_shift)))[order]
        self._lived_in = np.cumsum(self._weight)  # where people live does not change with fashion
        self._region_of = region[order]
        self._region_end = np.searchsorted(self._region_of, np.arange(1, regions + 1))  # (regions,)
        # the first block of a new place is one of 1 to 8191, with equal chances for each doubling
        draw = self._hash("appears", rank)
        doubling = (draw >> 32) % 13
        appears = (1 << doubling) + (((draw & 0xFFFFFFFF) << doubling) >> 32)
        old = (self._uniform("old", rank) < OLD) | (rank < regions)  # no region is ever empty
        self._appears = np.where(old, -(1 << 40), appears.astype(np.int64))[order]
        self._lived_in_before = np.cumsum(np.where(old[order], self._weight, 0))  # any new place appeared
        own, shared = self._normal(self._hash("look", rank)), self._normal(self._hash("region look", region))
        look = np.empty((classes, LATENT), np.int32)
        look[self._label] = ((3 * own + 2 * shared) // 4)[order]
        self._look = look  # (classes, LATENT)

    def _popularity(self, block: int) -> np.ndarray:
        """Cumulative weights of the places at a block, as whole numbers. (classes,)"""
        knot, step = divmod(block, 64)  # each place's popularity goes up and down within about 262,144 photos
        places = np.arange(len(self._weight))
        before, after = (1 << (self._hash("fashion", places, at) % 5) for at in (knot, knot + 1))  # times 1 to 16
        fashion = (before * (64 - step) + after * step).astype(np.int64)
        return np.cumsum(np.where(self._appears <= block, self._weight * fashion, 0))

    # What happens in a block.

    def _make_starting(self, block: int) -> Photos:
        """All photos of the outings that begin in a block, in no order."""
        count = self._fit.outings
        outing = self._hash("outing", block, np.arange(count))
        # one outing of each size class, so that blocks have about as many photos as they can hold
        left = (count - np.arange(count) - self._uniform("size", outing)) / count
        size = np.minimum(1 + SIZE_SCALE * (1 / _three_quarters(left) - 1), SIZE_MOST).astype(np.int64)
        which = np.repeat(np.arange(count), size)  # the outing of each photo
        first = np.cumsum(size) - size
        nth = np.arange(len(which)) - first[which]
        left = 1 - self._uniform("gap", outing[which], nth)
        haste = self._uniform("haste", outing)
        pace = GAP_SCALE * _three_quarters((1 - haste) / (haste + 2.0**-20) / size)
        gap = self._fit.gap_least + pace[which] * (1 / left - 1)
        gap = np.where(gap > GAP_MOST, self._uniform("long gap", outing[which], nth) * GAP_MOST, gap)
        gap = np.where(nth > 0, gap, 0.0)
        elapsed = np.cumsum(gap)
        time = (
            self._uniform("begins", outing)[which] * BLOCK
            + (elapsed - elapsed[first][which]) / self._fit.seconds_per_photo
        )
        floor, most, half = CHANGE
        moves = (nth > 0) & (self._uniform("moves", outing[which], nth) < floor + most * gap / (gap + half))
        left_so_far = np.cumsum(moves, dtype=np.int64)
        stay = left_so_far - left_so_far[first][which]
        since = time[
            np.maximum.accumulate(np.where(moves | (nth == 0), np.arange(len(time)), 0))
        ]  # when the stay began
        photos = self._place(block, outing[which], stay, since, time[first][which])
        return replace(photos, time=time).take(time < REACH * BLOCK)

    def _place(self, block: int, outing: np.ndarray, stay: np.ndarray, since: np.ndarray, begins: np.ndarray) -> Photos:
        """Whose the outings are and where their stays are, given when the stays and the outings began."""
        weights = self._popularity(block)
        user, base = self._photographer(block, outing)
        region = self._region_of[base]
        back = self._uniform("back", outing, stay) < self._fit.back  # to where the first stay was
        seat, since = np.where(back, 0, stay), np.where(back, begins, since)
        draw = self._uniform("place", outing, seat)
        why = self._uniform("why", outing, seat)
        for level, (chance, photos) in enumerate(EVENTS):
            event = self._uniform("event", level, region, np.floor((since + block * BLOCK) / photos).astype(np.int64))
            draw = np.where((why >= 0) & (why < chance), event, draw)
            why = why - chance
        slot = np.minimum(self._hash("which", outing, seat) % 4, self._hash("or", outing, seat) % 4)
        draw = np.where((why >= 0) & (why < FAVORITE), self._uniform("favourite", user, slot), draw)
        end = self._region_end[region]
        begin = np.where(region > 0, self._region_end[region - 1], 0)
        low = np.where(begin > 0, weights[begin - 1], 0)
        found = np.searchsorted(weights, low + (draw * (weights[end - 1] - low)).astype(np.int64), side="right")
        found = np.where(self._uniform("based", outing, seat) < self._fit.base, base, found)
        return Photos(self._label[found], user, outing, self._hash("album", outing, stay), since)

    def _photographer(self, block: int, outing: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Who is on these outings, and the place where they live or, on a journey, where that has taken them."""
        share, each, active, home = (np.array(column) for column in zip(*self._fit.tiers, strict=True))
        tier = np.searchsorted(np.cumsum(share[:-1]), self._uniform("tier", outing), side="right")
        at_once = np.maximum(share * active * self._fit.outings / each, 1).astype(np.uint64)
        number = self._hash("number", outing) % at_once[tier]
        phase = (self._hash("phase", tier, number) % active[tier].astype(np.uint64)).astype(np.int64)
        user = self._hash("user", tier, number, (block + phase) // active[tier])
        draw = self._uniform("lives", user)
        lives = _choose(self._lived_in, draw)
        if self._fit.trip == 1:  # a journey is one outing
            journey, weights = outing, self._popularity(block)
        else:
            start = block - block % self._fit.trip
            journey, weights = self._hash("journey", user, start), self._popularity(start)
            lives = np.where(self._appears[lives] <= block, lives, _choose(self._lived_in_before, draw))
        away = _choose(weights, self._uniform("away", journey))
        return user, np.where(self._uniform("home", journey) < home[tier], lives, away)

    def _make_block(self, block: int) -> Photos:
        """The photos of a block in the order they were taken."""
        parts = []
        for back in range(REACH):
            photos = self._starting(block - back)
            inside = (photos.time >= back * BLOCK) & (photos.time < (back + 1) * BLOCK)
            part = photos.take(inside)
            parts.append(replace(part, time=part.time - back * BLOCK))
        missing = BLOCK - sum(len(part.place) for part in parts)
        if missing > 0:  # photographers who take a single photo
            outing = self._hash("single", block, np.arange(missing))
            time = self._uniform("begins", outing) * BLOCK
            parts.append(self._place(block, outing, np.zeros(missing, np.int64), time, time))
        photos = _join(parts)
        if missing < 0:  # a busy block leaves photos out, whichever
            lots = self._hash("lot", photos.album, np.arange(len(photos.place)))
            photos = photos.take(np.sort(np.argsort(lots, kind="stable")[:BLOCK]))
        return photos.take(np.argsort(photos.time, kind="stable"))

    def _features(self, photos: Photos, position: np.ndarray) -> np.ndarray:
        """What the photos look like. (n, width)"""
        share, album, own = (np.array(column) for column in zip(*self._fit.likeness, strict=True))
        kind = np.searchsorted(np.cumsum(share[:-1]), self._uniform("likeness", position), side="right")  # (n,)
        z = self._fit.weight_place * self._look[photos.place]  # (n, LATENT)
        z += self._fit.weight_outing * self._normal(photos.outing)
        z += album.astype(np.int32)[kind, None] * self._normal(photos.album)
        z += own.astype(np.int32)[kind, None] * self._normal(self._hash("photo", position))
        # whole numbers below 2**24 throughout, hence exact however the product is computed
        x: np.ndarray = z.astype(np.float32) @ self._mixing
        x *= np.float32(1 / 83000)
        return x

    # Draws: every one is a hash of the seed, what it is for, and the numbers of the thing it is about.

    def _hash(self, purpose: str, *numbers: np.ndarray | int) -> np.ndarray:
        h: np.ndarray = np.array([_start(self.seed, purpose)], np.uint64)
        for number in numbers:
            h = _mix(h ^ np.atleast_1d(np.asarray(number)).astype(np.uint64))
        return h

    def _uniform(self, purpose: str, *numbers: np.ndarray | int) -> np.ndarray:
        return _unit(self._hash(purpose, *numbers))

    @staticmethod
    def _normal(keys: np.ndarray) -> np.ndarray:
        """LATENT nearly normal whole numbers for each key, within ±510, of variance 21845. (n, LATENT)"""
        counter = np.arange(1, LATENT // 2 + 1, dtype=np.uint64) * _GOLDEN
        bits = _mix(keys[:, None] + counter).astype("<u8").view(np.uint8).reshape(len(keys), LATENT, 4)
        total: np.ndarray = bits[..., 0].astype(np.int32)
        for i in (1, 2, 3):
            total += bits[..., i]
        total -= 510
        return total


@lru_cache(maxsize=256)
def _start(seed: int, purpose: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed} {purpose}".encode()).digest()[:8], "little")


def _choose(weights: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """Which of the things with these cumulative weights, whole numbers, are drawn by uniform numbers."""
    found: np.ndarray = np.searchsorted(weights, (draw * weights[-1]).astype(np.int64), side="right")
    return found


def _three_quarters(x: np.ndarray) -> np.ndarray:
    """x to the power of 3/4, by square roots alone, which are the same on every machine."""
    root = np.sqrt(x)
    power: np.ndarray = root * np.sqrt(root)
    return power


def _mix(h: np.ndarray) -> np.ndarray:
    """One step of splitmix64: every bit of the input changes half the bits of the output."""
    h = h + _GOLDEN
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    out: np.ndarray = h ^ (h >> np.uint64(31))
    return out


def _unit(h: np.ndarray) -> np.ndarray:
    """Hashes as float64 in [0, 1)."""
    return (h >> np.uint64(11)).astype(np.float64) * 2.0**-53
