"""The engines that tests run with: torch, and the native core where it was built."""

import pytest

from prequential.native.library import library

NO_LIBRARY = library().reason
ENGINES = ["torch", pytest.param("native", marks=pytest.mark.skipif(bool(NO_LIBRARY), reason=NO_LIBRARY))]
