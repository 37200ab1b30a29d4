"""Objects of one's own by name: `my_package.module:Class`."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

from prequential.errors import BadSetting, PrequentialError, one_line
from prequential.specs import nearest
from prequential.trust import need_trust


def is_object_name(name: str) -> bool:
    """Whether a name is written as a module and something in it.

    >>> is_object_name("my_package.module:Class"), is_object_name("majority"), is_object_name("C:/data.csv")
    (True, False, False)
    """
    return re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", name) is not None


def import_object(name: str, what: str) -> Any:
    """The object of a name `package.module:Object`. Importing executes the module, so a stored name needs trust.

    Modules in the current directory are found, after all that are installed.

    Parameters
    ----------
    name
        The module and the object in it.
    what
        What it is to be, for messages: learner, extractor, stream.

    Examples
    --------
    >>> import_object("collections:OrderedDict", "learner").__name__
    'OrderedDict'
    >>> import_object("collections:OrderdDict", "learner")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    prequential.errors.BadSetting: learner 'collections:OrderdDict': ... 'OrderdDict'; did you mean 'OrderedDict'?
    """
    if not is_object_name(name):
        raise BadSetting(f"{what} {name!r} is no name of an object; expected one such as 'my_package.module:Class'")
    need_trust(f"to import the {what} {name}")
    place, _, attribute = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # last, so that a file here never takes the place of an installed module
    try:
        module = importlib.import_module(place)
    except PrequentialError:
        raise
    except Exception as error:  # whatever the module's own code raises
        why = f"{type(error).__name__}: {one_line(error, 120)}"
        raise BadSetting(f"{what} {name!r}: module {place!r} cannot be imported: {why}") from error
    if not hasattr(module, attribute):
        names = [name for name in vars(module) if not name.startswith("_")]
        raise BadSetting(f"{what} {name!r}: module {place!r} has no {attribute!r}{nearest(attribute, names)}")
    return getattr(module, attribute)
