"""What the tests of drawing share: the runs of the report can be imported."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `from drawing.report_runs import make_run`
