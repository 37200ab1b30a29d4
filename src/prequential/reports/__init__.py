"""The report of runs: one page that opens anywhere, the same page served live, and figures for a paper."""

from prequential.reports.figures import write_figures
from prequential.reports.live import serve_report
from prequential.reports.write import write_report

__all__ = ["serve_report", "write_figures", "write_report"]
