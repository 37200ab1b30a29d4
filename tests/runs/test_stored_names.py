"""What a directory or a checkpoint that somebody else has made may make this package do: nothing but learn."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from prequential.baselines import RiverLearner, SklearnLearner
from prequential.cli.app import main
from prequential.comparisons.compare import Plan, compare
from prequential.errors import PrequentialError
from prequential.learners.transformer.learner import Learner
from prequential.storage.checkpoint import read_checkpoint, write_checkpoint
from prequential.storage.sealed import read_sealed, write_sealed
from prequential.streams.datasets.download import download
from prequential.sweeps.storage import open_storage
from prequential.trust import Untrusted, names_from

pytest.importorskip("sklearn")
SMALL = ["--stream", "digits(tasks=2, task_length=20)", "--classes", "10", "--device", "cpu"]


@pytest.fixture
def marked(tmp_path):
    """A tree that must survive, and a file that must not come to be."""
    tree = tmp_path / "precious"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "thesis.txt").write_text("years of work")
    return tree, tmp_path / "executed"


def attacks(tree: Path, made: Path) -> list[str]:
    code = f"open({str(made)!r}, 'w').close()"
    return [
        f"sklearn:utils._testing.assert_run_python_script_without_output(source_code={json.dumps(code)})",
        f"sklearn:datasets.clear_data_home(data_home={json.dumps(str(tree))})",
        f"sklearn:multiclass.OneVsRestClassifier(estimator=datasets.clear_data_home(data_home={json.dumps(str(tree))}))",
        f"river:ensemble.BaggingClassifier(model=stream.Cache(directory={json.dumps(str(tree))}))",
    ]


def refused(capsys, arguments) -> str:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr().err
    assert left.value.code in (1, 2)
    assert len(said) <= 315
    assert said.count("\n") == 1
    return said


def intact(tree: Path, made: Path) -> bool:
    return (tree / "inner" / "thesis.txt").is_file() and not made.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored") / "run"
    main(["run", *SMALL, "--learner", "majority", "--out", str(directory)])
    return directory


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("command", ["resume", "show"])
def test_a_run_directory_executes_nothing(tmp_path, capsys, marked, finished, command, number):
    run = shutil.copytree(finished, tmp_path / "run")
    settings = (run / "settings.toml").read_text().partition("\n")[2]  # without the checksum, as an attacker may
    attack = attacks(*marked)[number]
    (run / "settings.toml").write_text(settings.replace('learner = "majority"', f"learner = {json.dumps(attack)}"))
    capsys.readouterr()
    assert "is not in" in refused(capsys, [command, run])
    assert intact(*marked)


@pytest.mark.parametrize("number", range(4))
def test_a_comparison_executes_nothing(tmp_path, capsys, marked, number):
    attack = attacks(*marked)[number]
    directory = tmp_path / "compare"
    directory.mkdir()
    (directory / "compare.toml").write_text(
        f'[compare]\nlearners = [{json.dumps(attack)}]\nstreams = ["digits"]\nseeds = [0]\ntable1 = false\n'
        "[run]\n[learner]\n"
    )
    for arguments in (["compare", "--out", directory], ["pareto", directory]):
        assert "is not in" in refused(capsys, arguments)
        assert intact(*marked)


@pytest.mark.parametrize("number", range(4))
def test_a_sweep_executes_nothing(tmp_path, capsys, marked, number):
    pytest.importorskip("optuna")
    attack = attacks(*marked)[number]
    file = tmp_path / "sweep.toml"
    file.write_text(f'[sweep]\nmethod = "grid"\n[vary]\nlearner = ["majority", {json.dumps(attack)}]\n')
    assert "is not in" in refused(capsys, ["sweep", file, "--out", tmp_path / "out", "--jobs", "0"])
    assert intact(*marked)


@pytest.mark.parametrize("kind", [RiverLearner, SklearnLearner])
def test_a_checkpoint_executes_nothing(tmp_path, marked, kind):
    if kind is RiverLearner:
        pytest.importorskip("river")
    tree, made = marked
    learner = kind(2, model="naive_bayes.GaussianNB")
    learner.save(tmp_path / "learner")
    saved = read_checkpoint(tmp_path / "learner")
    code = f"open({str(made)!r}, 'w').close()"
    for model, settings in (
        ("utils._testing.assert_run_python_script_without_output", {"source_code": code}),
        ("datasets.clear_data_home", {"data_home": str(tree)}),
        (
            "multiclass.OneVsRestClassifier",
            {"estimator": {"class": "datasets.clear_data_home", "data_home": str(tree)}},
        ),
        ("ensemble.BaggingClassifier", {"model": {"class": "datasets.clear_data_home", "data_home": str(tree)}}),
        ({"class": "datasets.clear_data_home"}, {}),
        ("naive_bayes.GaussianNB", ["data_home"]),
    ):
        saved["config"] |= {"model": model, "settings": settings}
        write_checkpoint(tmp_path / "crafted", saved)
        with pytest.raises(Exception, match=r"model|settings") as error:
            kind.load(tmp_path / "crafted")
        assert len(str(error.value)) <= 300
        assert intact(*marked)


@pytest.mark.parametrize(
    "change",
    [{"home": "elsewhere"}, {"width": "64"}, {"width": [1]}, {"classes": 1.5}, {"missing": "no"}, {"__class__": "x"}],
)
def test_a_saved_learner_names_no_place_and_no_other_kinds(tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    learner = Learner(2, home=tmp_path / "home", width=16, depth=1, window=8)
    learner.learn([1.0, 2.0], "a")
    learner.save(tmp_path / "learner")
    learner.close()
    made = read_sealed(tmp_path / "home" / "learner.json")
    made["config"] |= change
    write_sealed(tmp_path / "home" / "learner.json", made)
    saved = read_checkpoint(tmp_path / "learner")
    saved["config"] |= change
    write_checkpoint(tmp_path / "learner", saved)
    before = {str(path) for path in tmp_path.rglob("*")}
    for open_it in (lambda: Learner.open(tmp_path / "home"), lambda: Learner.load(tmp_path / "learner")):
        with pytest.raises(PrequentialError) as error:
            open_it()
        assert len(str(error.value)) <= 300
    assert not (tmp_path / "elsewhere").exists()
    assert {str(path) for path in tmp_path.rglob("*")} == before


# What a stored file may ask for, and what needs --trust.


@pytest.fixture
def no_network(monkeypatch):
    """Notes what would have been fetched."""
    asked: list[str] = []

    def refuse(url, **_):
        asked.append(url)
        raise OSError("there is no network here")

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    return asked


@pytest.mark.parametrize("stream", ["emnist(download=true)", "cifar100(download=true)", "split:emnist(download=true)"])
@pytest.mark.parametrize("command", ["resume", "show"])
def test_a_run_directory_fetches_nothing_without_trust(
    tmp_path, capsys, finished, no_network, monkeypatch, stream, command
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = shutil.copytree(finished, tmp_path / "run")
    settings = (run / "settings.toml").read_text().partition("\n")[2]  # without the checksum, as an attacker may
    (run / "settings.toml").write_text(re.sub("stream = .*", f'stream = "{stream}"', settings))
    capsys.readouterr()
    said = refused(capsys, [command, run])
    assert not no_network
    if not stream.startswith("split:"):
        assert "asks to fetch https://" in said
        assert "--trust" in said
        assert "no network here" in refused(capsys, [command, run, "--trust"])
        assert len(no_network) == 1


def test_what_was_fetched_before_is_used_without_trust(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    with names_from(tmp_path):
        assert download("https://a/b", tmp_path / "file", md5=hashlib.md5(b"data").hexdigest()) == tmp_path / "file"


@pytest.mark.parametrize("trust", [False, True])
def test_a_comparison_made_elsewhere_fetches_nothing_without_trust(tmp_path, no_network, monkeypatch, trust):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    plan = Plan(learners=("majority",), streams=("emnist(download=true)",))
    plan.write(tmp_path)
    rows, _ = compare(plan, tmp_path, jobs=0, trust=trust)
    assert bool(no_network) == trust
    assert ("add --trust" in rows[0].failures[0]) == (not trust)


def test_a_new_comparison_is_the_callers_own_word(tmp_path, no_network, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    compare(Plan(learners=("majority",), streams=("emnist(download=true)",)), tmp_path / "new", jobs=0)
    assert len(no_network) == 1


SWEEP = '[sweep]\nmethod = "grid"\n{}\n[run]\nstream = "digits(tasks=2, task_length=10)"\nlearner = "majority"\n[vary]\nmajority.window = [5, 9]\n'


@pytest.mark.parametrize(
    "given",
    [
        'storage = "postgresql://me:secret@attacker.example/db"',
        'storage = "redis://attacker.example"',
        'storage = "mysql+pymysql://attacker.example/db?read_default_file=/etc/passwd"',
        'storage = "sqlite:///../elsewhere.db"',
        'storage = "journal:/tmp/elsewhere.log"',
        'storage = "sqlite:///study.db?mode=memory&uri=true"',
        'out = "elsewhere"',
    ],
)
def test_the_file_in_a_sweeps_directory_names_nothing_elsewhere_without_trust(tmp_path, capsys, monkeypatch, given):
    pytest.importorskip("optuna")
    opened = []
    monkeypatch.setattr("prequential.sweeps.study.open_storage", lambda url: opened.append(url))
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "theirs"
    (directory / "trials").mkdir(parents=True)
    (directory / "sweep.toml").write_text(SWEEP.format(given))
    arguments = ["sweep", directory / "sweep.toml"]
    said = refused(capsys, arguments if "out" in given else [*arguments, "--out", directory])
    assert "asks to" in said
    assert "--trust" in said
    assert "secret" not in said
    assert not opened
    assert {path.name for path in tmp_path.iterdir()} == {"theirs"}


def test_a_file_elsewhere_and_the_command_line_are_the_users_word(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    from prequential.sweeps.sweep import sweep

    (tmp_path / "my.toml").write_text(SWEEP.format(f'storage = "journal:{tmp_path}/log"'))
    _, rows, directory = sweep(tmp_path / "my.toml", out=tmp_path / "out", jobs=0)
    assert [row.state for row in rows] == ["done", "done"]
    with pytest.raises(Untrusted, match="to keep its trials in journal:"):
        sweep(directory / "sweep.toml", out=directory, jobs=0)
    for given in ({"storage": f"journal:{tmp_path}/log"}, {"trust": True}):
        assert sweep(directory / "sweep.toml", out=directory, jobs=0, **given) is not None


@pytest.mark.parametrize("vary", ['learner = ["majority"]', "majority.window = {low = 5, high = 9, points = 2}"])
def test_trials_that_the_sweep_cannot_have_drawn_are_not_run(tmp_path, vary):
    pytest.importorskip("optuna")
    from prequential.sweeps.study import SEAL
    from prequential.sweeps.sweep import sweep

    text = SWEEP.format("").replace("majority.window = [5, 9]", vary)
    (tmp_path / "my.toml").write_text(text.replace('learner = "majority"\n', "") if "learner =" in vary else text)
    _, rows, directory = sweep(tmp_path / "my.toml", out=tmp_path / "out", jobs=0)
    assert {row.state for row in rows} == {"done"}
    runs = set((directory / "trials").iterdir())
    with sqlite3.connect(directory / "study.db") as database:
        database.execute("UPDATE trials SET state = 'WAITING'")
        database.execute("DELETE FROM trial_values")
        database.execute("DELETE FROM trial_user_attributes WHERE key = ?", (SEAL,))  # as an attacker may
        if "learner =" in vary:
            hostile = {"name": "CategoricalDistribution", "attributes": {"choices": ["river:naive_bayes.GaussianNB"]}}
            database.execute("UPDATE trial_params SET distribution_json = ?", (json.dumps(hostile),))
        else:
            hostile = {"log": False, "step": 1, "low": 1, "high": 10**6}
            text = json.dumps({"name": "IntDistribution", "attributes": hostile})
            database.execute("UPDATE trial_params SET param_value = 100000, distribution_json = ?", (text,))
    _, rows, _ = sweep(tmp_path / "my.toml", out=tmp_path / "out", jobs=0)
    assert {row.state for row in rows} == {"failed"}
    assert all("the stored trial has" in row.why and len(row.why) <= 300 for row in rows)
    assert set((directory / "trials").iterdir()) == runs


@pytest.mark.parametrize("again", [0, 7, "x", None])
def test_a_trial_that_stands_for_itself_or_for_none_does_not_hang_the_sweep(tmp_path, again):
    optuna = pytest.importorskip("optuna")
    from prequential.sweeps.plan import read_sweep
    from prequential.sweeps.sampler import make_sampler
    from prequential.sweeps.study import rows_of

    (tmp_path / "my.toml").write_text(SWEEP.format("trials = 2").replace("grid", "random"))
    study = optuna.create_study()
    study.add_trial(optuna.create_trial(state=optuna.trial.TrialState.WAITING, user_attrs={"again": again}))
    sampler = make_sampler(read_sweep(tmp_path / "my.toml"), 2)
    assert isinstance(sampler.of(study, study.trials[0]), optuna.samplers.RandomSampler)
    assert rows_of(study) == []


def test_snapshots_of_a_redis_server_are_not_unpickled(monkeypatch):
    optuna = pytest.importorskip("optuna")
    asked = []

    class Fake(optuna.storages.journal.BaseJournalBackend, optuna.storages.journal._base.BaseJournalSnapshot):
        def __init__(self, url):
            self.logs = []

        def read_logs(self, log_number_from):
            return self.logs[log_number_from:]

        def append_logs(self, logs):
            self.logs += logs

        def load_snapshot(self):
            asked.append("load")

        def save_snapshot(self, snapshot):
            asked.append("save")

    monkeypatch.setattr("optuna.storages.journal.JournalRedisBackend", Fake)
    storage, _ = open_storage("redis://host")
    study = optuna.create_study(storage=storage)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=40)
    assert len(study.trials) == 40
    assert not asked
