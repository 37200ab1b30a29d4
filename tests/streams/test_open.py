import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prequential.cli.app import main
from prequential.errors import BadInput, BadSetting
from prequential.streams.formats.arrays import ArrayStream
from prequential.streams.formats.images import ImageStream
from prequential.streams.formats.tables import TableStream
from prequential.streams.open import _by_path, open_stream
from prequential.streams.spec import StreamSpec, write_spec
from prequential.streams.tasks import SplitStream
from prequential.testing.streams import check_stream
from prequential.trust import Untrusted, names_from


def fingerprints_elsewhere(*expressions):
    """The fingerprints of streams, given as Python expressions, as a new process computes them."""
    code = "from prequential.streams.open import open_stream\n" + "\n".join(
        f"print(({expression}).fingerprint())" for expression in expressions
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.split()


@pytest.fixture
def files(tmp_path):
    (tmp_path / "t.csv").write_text("a,b,label\n" + "".join(f"{i},w{i % 3},{i % 2}\n" for i in range(50)))
    table = pa.table({"a": np.arange(50.0), "t": np.arange(50)[::-1], "label": np.arange(50) % 2})
    pq.write_table(table, tmp_path / "t.parquet")
    (tmp_path / "parts").mkdir()
    pq.write_table(table, tmp_path / "parts" / "0.parquet")
    with pa.OSFile(str(tmp_path / "t.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    np.savez(tmp_path / "t.npz", x=np.eye(50), y=np.arange(50))
    np.save(tmp_path / "t.npy", np.eye(50))
    np.savez(tmp_path / "e.npz", x=np.zeros((90, 28, 28), np.uint8), y47=np.arange(90) % 45)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("t.csv", TableStream),
        ("t.parquet", TableStream),
        ("parts", TableStream),
        ("t.arrow", TableStream),
        ("t.npz", ArrayStream),
        ("t.npy", ArrayStream),
    ],
)
def test_paths(files, name, kind):
    stream = open_stream(str(files / name), classes=9)
    assert isinstance(stream, kind)
    assert len(stream) == 50
    assert stream.classes == 9


def test_names(files):
    assert len(open_stream("digits", tasks=3, task_length=10)) == 30
    assert isinstance(open_stream(f"emnist:{files / 'e.npz'}", tasks=2), SplitStream)
    np.savez(files / "power.npz", X=np.eye(5), y=np.arange(5))
    assert len(open_stream(f"electricity:{files / 'power.npz'}")) == 5
    assert open_stream(f"powersupply:{files / 'power.npz'}").classes == 24


def test_images(files):
    image = pytest.importorskip("PIL.Image")
    (files / "pictures" / "cat").mkdir(parents=True)
    image.new("RGB", (5, 5)).save(files / "pictures" / "cat" / "a.png")
    for spec in (str(files / "pictures"), f"images:{files / 'pictures'}"):
        assert isinstance(open_stream(spec, size=4), ImageStream)


def test_any_labelled_set_can_be_split(files):
    image = pytest.importorskip("PIL.Image")
    np.savez(files / "s.npz", x=np.repeat(np.arange(60.0)[:, None], 3, 1), y=np.arange(60) % 6)
    stream = open_stream(f"split:{files / 's.npz'}", tasks=4, ways=3, task_length=20)
    assert (len(stream), stream.classes) == (80, 3)
    chunk = stream.read(25, 35)
    assert (chunk.x[:, 0] % 6).tolist() == [stream.task_classes(1)[label] for label in chunk.y]
    for i in range(30):
        (files / "shades" / f"{i % 5}").mkdir(parents=True, exist_ok=True)
        image.new("L", (4, 4), 10 * (i % 5)).save(files / "shades" / f"{i % 5}" / f"{i}.png")

    def make(seed=0):
        return open_stream(f"split:{files / 'shades'}", tasks=3, ways=4, task_length=40, gray=True, seed=seed)

    check_stream(make, lambda: make(1))
    chunk = make().read(0, 40)
    assert [str(shade // 10) for shade in chunk.x[:, 0, 0]] == [make().task_classes(0)[label] for label in chunk.y]
    with pytest.raises(BadInput, match="is a TableStream, whose examples cannot be drawn"):
        open_stream(f"split:{files / 't.csv'}")


def test_options_reach_the_stream(files):
    stream = open_stream(str(files / "t.csv"), label="b", features="a, label", on_bad_row="skip", buckets=None)
    assert stream.feature_names == ["a", "label"]
    assert stream.read(0, 3).y == ["w0", "w1", "w2"]
    assert stream.on_bad_row == "skip"
    ordered = open_stream(str(files / "t.parquet"), time="t")
    assert ordered.read(0, 2).x[:, 0].tolist() == [49, 48]
    assert open_stream(str(files / "t.csv"), delimiter=",", kinds={"a": "category"}, buckets=4).feature_names[:2] == [
        "a 0",
        "a 1",
    ]


def test_what_is_not_known_says_what_is(files):
    with pytest.raises(
        BadInput,
        match=r"'nothing' is neither a known stream nor a path that exists; expected digits, photos, emnist:PATH",
    ):
        open_stream("nothing")
    (files / "t.xls").write_text("")
    with pytest.raises(BadInput, match=r"t.xls' cannot be read as a stream; expected digits, photos, emnist:PATH"):
        open_stream(str(files / "t.xls"))
    with pytest.raises(BadInput, match="'covertype' names no path; expected covertype:PATH"):
        open_stream("covertype")
    with pytest.raises(BadInput, match="no path to EMNIST was given; expected one, or download=True"):
        open_stream("emnist:")
    with pytest.raises(BadSetting, match="digits does not take label; it takes tasks, task_length, ways, seed, images"):
        open_stream("digits", label="a")
    with pytest.raises(BadSetting, match=r"t.csv does not take tasks; it takes label, features"):
        open_stream(str(files / "t.csv"), tasks=3)


def test_fingerprints_are_the_same_in_another_process(files):
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "dog"):
        (files / "pictures" / name).mkdir(parents=True)
        image.new("RGB", (5, 5)).save(files / "pictures" / name / "a.png")
    specs = [
        "digits",
        f"emnist:{files / 'e.npz'}",
        *(str(files / name) for name in ("t.csv", "t.parquet", "parts", "t.arrow", "t.npz", "t.npy", "pictures")),
    ]
    here = [open_stream(spec).fingerprint() for spec in specs]
    assert len(set(here)) == len(specs) - 1  # the folder holds the same part
    assert fingerprints_elsewhere(*(f"open_stream({spec!r})" for spec in specs)) == here


def test_an_option_by_its_old_name_warns(files):
    image = pytest.importorskip("PIL.Image")
    (files / "pictures" / "cat").mkdir(parents=True)
    image.new("RGB", (5, 5)).save(files / "pictures" / "cat" / "a.png")
    with pytest.warns(DeprecationWarning, match="grey is deprecated, use gray"):
        stream = open_stream(f"{files / 'pictures'}(grey=true)")
    assert stream.gray
    assert stream.fingerprint() == open_stream(files / "pictures", gray=True).fingerprint()


class TestOptions:
    def test_options_stand_behind_the_name_or_the_path(self, files):
        assert len(open_stream("digits(tasks=3, task_length=10)")) == 30
        assert len(open_stream("photos(length=2000000)")) == 2_000_000
        (files / "semi.csv").write_text("a;b;label\n" + "".join(f"{i},5;w;{i % 2}\n" for i in range(9)))
        stream = open_stream(
            f"{files / 'semi.csv'}(delimiter=';', decimal_point=',', kinds={{b: category}}, label=label)"
        )
        assert stream.read(0, 9).x[3, 0] == 3.5
        assert len(open_stream(f"emnist:{files / 'e.npz'}(tasks=2, task_length=5)")) == 10

    def test_arguments_win_over_what_is_written(self):
        assert len(open_stream("digits(tasks=3, task_length=10)", tasks=2)) == 20
        drawn, written = open_stream("digits(tasks=1, seed=3)", seed=0), open_stream("digits(tasks=1)", seed=3)
        assert drawn.fingerprint() == written.fingerprint()

    def test_a_folder_may_have_brackets_in_its_name(self, files):
        folder = files / "old (copy)"
        folder.mkdir()
        np.savez(folder / "t (1).npz", x=np.eye(5), y=np.arange(5))
        assert len(open_stream(str(folder / "t (1).npz"))) == 5
        assert open_stream(f"{folder / 't (1).npz'}(classes=7)").classes == 7
        assert len(open_stream(f"split:{folder / 't (1).npz'}(tasks=2, ways=2, task_length=3)")) == 6

    @pytest.mark.parametrize(
        ("spec", "sentence"),
        [
            ("digits(widht=3)", "digits does not take widht; it takes"),
            ("digits(tasks=three)", "digits: tasks is 'three', expected a whole number"),
            ("photos(length=1e6)", r"photos: length is 1000000.0, expected a whole number"),
            ("digits(3)", r"cannot read the options in 'digits\(3\)'"),
        ],
    )
    def test_mistakes_get_a_sentence(self, spec, sentence):
        with pytest.raises(BadSetting, match=sentence):
            open_stream(spec)

    def test_from_any_working_directory(self, files, monkeypatch):
        monkeypatch.chdir(files)
        assert StreamSpec.parse("t.csv(label=a)").absolute() == f"{files / 't.csv'}(label=a)"
        assert StreamSpec.parse("emnist:e.npz").absolute() == f"emnist:{files / 'e.npz'}"
        assert StreamSpec.parse("photos(length=3)").absolute() == "photos(length=3)"
        assert StreamSpec.parse("digits").absolute() == "digits"
        whole = StreamSpec.parse(StreamSpec.parse("geo-images:split:e.npz(records=t.csv, album_gap=5)").absolute())
        assert whole.source == f"geo-images:split:{files / 'e.npz'}"
        assert whole.options == {"records": str(files / "t.csv"), "album_gap": 5}

    def test_paths_among_the_options_need_no_quotes(self):
        spec = StreamSpec.parse("geo-images:e.npz(records=/a/b-1.npz, similar_by='c d/e', album_gap=5)")
        assert spec.options == {"records": "/a/b-1.npz", "similar_by": "c d/e", "album_gap": 5}
        assert spec.with_paths(lambda path: path.rpartition("/")[2]) == (
            "geo-images:e.npz(records='b-1.npz', similar_by=e, album_gap=5)"  # 1.npz is no word
        )
        assert StreamSpec.parse("t.csv(delimiter='=/x')").options == {"delimiter": "=/x"}

    @pytest.mark.parametrize(
        "value", ["a/b c", "true", "3", "a,b/c", "", "it's", "up", "/a/b-1.npz", 5, [1, "x y"], True]
    )
    def test_what_is_written_is_read_as_it_was(self, value):
        assert StreamSpec.parse(write_spec("t.csv", {"label": value, "time": "t"})).options == {
            "label": value,
            "time": "t",
        }


def test_paths_as_such(files):
    assert open_stream(files / "t.csv").fingerprint() == open_stream(str(files / "t.csv")).fingerprint()
    for wrong in (5, None, np.eye(3)):
        with pytest.raises(
            BadInput, match=f"^the stream is a {type(wrong).__name__}, expected a name or a path; Table"
        ):
            open_stream(wrong)


def test_labels_among_the_features_of_arrays(files):
    with pytest.raises(BadInput, match="array 'y' is the label and cannot also be a feature"):
        open_stream(str(files / "t.npz"), features="x,y")


def test_options_that_are_not_known_are_answered_with_all_that_are(files):
    with pytest.raises(
        BadSetting, match=r"foo; it takes label, .*, delimiter, header, quotes, decimal_point, encoding, dates$"
    ):
        open_stream(f"{files / 't.csv'}(foo=1)")
    with pytest.raises(BadSetting, match=r"t.csv: kinds is 'a', expected pairs such as \{name: value\} or none$"):
        open_stream(f"{files / 't.csv'}(kinds=a)")
    with pytest.raises(
        BadSetting, match=r"t.arrow does not take foo; it takes label, .*, on_bad_row, split, max_bytes$"
    ):
        open_stream(f"{files / 't.arrow'}(foo=1)")
    with pytest.raises(BadSetting, match=r"t.parquet is no CSV, so it does not take delimiter, header"):
        open_stream(f"{files / 't.parquet'}(delimiter=';')")
    with pytest.raises(BadSetting, match=r"t.csv is a CSV and has no splits, but split \('train'\) was asked for"):
        open_stream(f"{files / 't.csv'}(split=train)")
    with pytest.raises(
        BadSetting, match=r"\(kinds=\{preis\}\)'; expected them as in name\(option=value, other=\[1, 2\]\)"
    ):
        open_stream(f"{files / 't.csv'}(kinds={{preis}})")


def test_dates_in_brackets(files):
    (files / "d.csv").write_text("when,a,label\n31.01.2024,1,x\n01.01.2024,2,y\n")
    stream = open_stream(f"{files / 'd.csv'}(dates='%d.%m.%Y', time=when)")
    assert stream.read(0, 2).y == ["y", "x"]
    assert stream.describe() == "label 'label' (text); time: when; numbers: a; in the order of 'when'"


class TestOwn:
    """Streams of one's own by name: module:Class or module:function."""

    CODE = """
import numpy as np
from prequential import ArrayStream, Stream, Chunk

class Waves(Stream):
    classes = 2

    def __init__(self, length: int = 100, *, seed: int = 0, path: str = "") -> None:
        self.length, self.seed, self.path = length, seed, path

    def __len__(self):
        return self.length

    def _read(self, start, stop):
        t = np.arange(start, stop)
        return Chunk(np.sin(t + self.seed)[:, None], [int(value > 0) for value in np.sin(t + self.seed + 1)])

    def fingerprint(self):
        return f"waves-{self.length}-{self.seed}"

def waves(length=10):
    return Waves(length)

def rows(**options):
    return [([1.0], "a")]

number = 3
"""

    @pytest.fixture
    def module(self, tmp_path, monkeypatch):
        name = f"own_streams_{tmp_path.name.replace('-', '_')}"
        (tmp_path / f"{name}.py").write_text(self.CODE)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        return name

    def test_a_class_or_a_function(self, module):
        assert len(open_stream(f"{module}:Waves")) == 100
        stream = open_stream(f"{module}:Waves(length=30, path=here)", seed=7)
        assert (len(stream), stream.seed, stream.path) == (30, 7, "here")
        assert len(open_stream(f"{module}:waves(length=20)")) == 20
        check_stream(open_stream(f"{module}:Waves"), open_stream(f"{module}:Waves(seed=1)"))

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("Waves(lenght=3)", "does not take lenght; it takes length, seed, path"),
            ("Waves(length=long)", "length is 'long', expected a whole number"),
            ("Wave", "has no 'Wave'; did you mean 'Waves'"),
            ("rows(a=1)", "gives a list, expected a Stream"),
            ("number", "is a int, expected a class or function that makes a Stream"),
        ],
    )
    def test_mistakes_get_a_sentence(self, module, name, sentence):
        with pytest.raises((BadInput, BadSetting), match=sentence):
            open_stream(f"{module}:{name}")

    def test_a_stored_name_needs_trust(self, module, tmp_path):
        with names_from(tmp_path), pytest.raises(Untrusted, match=rf"to import the stream {module}:Waves; .* --trust"):
            open_stream(f"{module}:Waves")
        with names_from(tmp_path, trust=True):
            assert len(open_stream(f"{module}:Waves")) == 100

    def test_a_run_is_resumed_with_trust(self, module, tmp_path, capsys):
        run = ["run", "--stream", f"{module}:Waves(length=200)", "--learner", "majority", "--out", "run"]
        main([*run, "--metric", "river.metrics:MacroF1"])
        assert "MacroF1 0." in capsys.readouterr().out
        with pytest.raises(SystemExit):
            main(["resume", "run"])
        assert capsys.readouterr().err.count("--trust") == 1
        main(["resume", "run", "--trust"])
        assert "200 examples" in capsys.readouterr().out
        main(["show", "run", "--trust"])
        assert "MacroF1 0." in capsys.readouterr().out


def test_a_name_too_long_for_a_path_is_refused_in_a_short_sentence():
    with pytest.raises(BadInput, match="is neither a known stream nor a path that exists") as refused:
        _by_path(Path("x" * 400))
    assert len(str(refused.value)) <= 300
