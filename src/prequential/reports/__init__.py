"""The report of runs: one page that opens anywhere, the same page served live, and figures for a paper."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prequential.reports.figures import write_figures
    from prequential.reports.live import serve_report
    from prequential.reports.write import write_report

__all__ = ["serve_report", "write_figures", "write_report"]

_PLACES = {"serve_report": "live", "write_figures": "figures", "write_report": "write"}


def __getattr__(name: str) -> Any:
    """Imports a name when it is first used: the service takes its page from here and must not wait for Matplotlib."""
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
