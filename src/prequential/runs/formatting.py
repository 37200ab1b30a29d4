"""Numbers as tables and terminals show them."""

from __future__ import annotations


def format_metric(name: str, value: float) -> str:
    """The value of a metric or cost by its name.

    >>> [format_metric("accuracy", 0.7123), format_metric("log_loss", 1.2345), format_metric("macs", 1.5e9)]
    ['71.2 %', '1.234', '1.5e9']
    """
    if name.endswith("accuracy") or name == "compression":
        return f"{100 * value:.1f} %"
    if name in ("log_loss", "calibration_error", "macro_f1") or name.startswith("kappa"):
        return f"{value:.3f}"
    if name == "seconds":
        return format_duration(value)
    if name == "macs":
        return f"{value:.2g}" if value < 1000 else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}"


def format_duration(seconds: float) -> str:
    """A time in the units that suit it.

    >>> [format_duration(s) for s in (0.123, 8.51, 95, 7320)]
    ['0.12 s', '8.5 s', '1m35s', '2h02m']
    """
    if seconds < 9.95:
        return f"{seconds:.2g} s" if seconds < 0.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02d}m" if hours else f"{minutes}m{rest:02d}s" if minutes else f"{rest} s"
