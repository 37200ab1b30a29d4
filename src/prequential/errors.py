"""The errors a user meets. Each is one sentence that names what was given and what was expected."""


class PrequentialError(Exception):
    """The base of every error this package raises on purpose; the command line prints it without a traceback."""


class BadInput(PrequentialError, ValueError):
    """An example, a label or a stream that cannot be used; nothing was changed by it."""


class BadSetting(PrequentialError, ValueError):
    """A setting that is out of range or does not fit another one."""


class BadCheckpoint(PrequentialError):
    """A checkpoint that is damaged, foreign, or does not belong to this run."""


class MissingExtra(PrequentialError, ImportError):
    """A feature whose optional packages are not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an optional package: pip install 'prequential[{extra}]'")
