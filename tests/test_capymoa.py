"""The learner as a classifier of CapyMOA, in a process of its own, as that starts Java."""

import importlib.util
import shutil
import subprocess
import sys

import pytest

CODE = """
from capymoa.evaluation import prequential_evaluation
from capymoa.stream.generator import SEA
from prequential.capymoa import OnlineClassifier

stream = SEA()
model = OnlineClassifier(stream.get_schema(), width=16, depth=1, window=64, num_streams=2)
scores = prequential_evaluation(stream, model, max_instances=300)
print(model.learner.position, scores.cumulative.accuracy() > 75)
"""


@pytest.mark.skipif(importlib.util.find_spec("capymoa") is None, reason="capymoa is not installed")
@pytest.mark.skipif(shutil.which("java") is None, reason="capymoa needs Java")
def test_prequential_evaluation_of_capymoa():
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=300)
    assert run.stdout.split()[-2:] == ["300", "True"], run.stderr[-500:]
