"""One thread a process, before torch is imported: several processes run at once and would fight for the cores."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
