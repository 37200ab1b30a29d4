"""The home of a learner whose log is elsewhere: a copy, which only counts up to its newest save.

What a process applied after that save may not have been stored in the log, so it is cut off, and the log is applied
from there. A save knows the position in the log at which it was made.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

from prequential.errors import DamageWarning, PrequentialError
from prequential.learners.home import Home
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import CheckpointFolder
from prequential.storage.files import refuse_links, storage
from prequential.storage.sealed import write_sealed

NOTE = "log"  # under which the position in the log is kept


def save(learner: Learner, sequence: int) -> None:
    """Saves a learner that has applied all events up to this position in the log, and no other."""
    learner.remember(**{NOTE: str(sequence)})
    learner.save()


def open_at_save(home: Path, make: Callable[[], Learner]) -> tuple[Learner, int]:
    """The learner as it was at its newest save, and the position in the log; a new one where no save can be used.

    `make` opens the learner of the home, or makes one where there is none.
    """
    sequence = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamageWarning)
            found = _cut_back(home)
            if found is not None:
                learner, sequence, position = make(), found[0], found[1]
                if not learner.notes and learner.position == position:
                    return learner, sequence
                learner.close()  # something is damaged: the log has everything
    except PrequentialError as error:
        if isinstance(error, OSError):  # the disk: nothing is removed for that
            raise
    clear(home)
    return make(), 0


def clear(home: Path) -> None:
    """Removes a copy."""
    with storage(home):
        if home.exists():
            refuse_links(home.parent, home)
            shutil.rmtree(home)


def _cut_back(home: Path) -> tuple[int, int] | None:
    """Cuts off what came after the newest save; its position in the log and in the journal, None where there is none."""
    state, _ = CheckpointFolder(home / "saves").newest() if (home / "saves").is_dir() else (None, [])
    if state is None:
        return None
    try:
        kept, position = state["home"], int(state["position"])
        made, since, sequence = kept["made"], int(kept.get("asked", 0)), int(kept["made"]["notes"][NOTE])
    except (KeyError, TypeError, ValueError):
        return None
    place = Home(home)
    try:
        journal = place.open()
        if len(journal) < position:
            return None
        journal.truncate(position)
        journal.close()
        with storage(home):
            for path in sorted((home / "asked").glob("*.bin")):
                number = int(path.stem)
                if not since or number > since:
                    path.unlink()
                elif number == since:
                    path.write_bytes(b"")
            write_sealed(home / "learner.json", made)
    finally:
        place.close()
    return sequence, position
