"""What a run says about values that look broken."""

from __future__ import annotations

import json

import numpy as np

from prequential.cli.app import main


def test_a_run_names_the_feature_with_a_code_that_recurs(tmp_path, capsys):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 2)).round(3)
    x[[100, 150, 200, 250], 1] = -9999
    rows = [f"{a},{b},{'up' if a > 0 else 'down'}" for a, b in x]
    (tmp_path / "data.csv").write_text("\n".join(["flow,pressure,label", *rows]))
    out = tmp_path / "run"
    main(["run", "--stream", str(tmp_path / "data.csv"), "--learner", "kalman(block=16)", "--out", str(out)])
    expected = "feature 1 ('pressure') is -9999 in 4 of 300 examples, far outside its range"
    assert expected in capsys.readouterr().out.replace("\n", " ")
    summary = json.loads((out / "scores.json").read_text())
    assert summary["skipped_steps"] == 0
    assert len(summary["hints"]) == 1
    assert summary["hints"][0].startswith(expected)
    main(["show", str(out)])
    assert expected in capsys.readouterr().out.replace("\n", " ")
    (out / "scores.json").write_text("[1]")  # what is not a summary has nothing to say
    main(["show", str(out)])
    assert "pressure" not in capsys.readouterr().out
