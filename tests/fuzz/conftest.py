"""The targets of the fuzzer import each other as its command does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
