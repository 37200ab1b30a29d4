"""The runs that the tests of reports are made of can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `from reports.report_runs import make_run`
