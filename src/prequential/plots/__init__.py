"""What is drawn: figures of scores, each function returning a matplotlib Figure."""

from prequential.plots.curves import draw_calibration, draw_run, draw_tasks
from prequential.plots.style import save

__all__ = ["draw_calibration", "draw_run", "draw_tasks", "save"]
