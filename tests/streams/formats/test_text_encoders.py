"""Columns of text that a frozen network reads."""

import json

import numpy as np
import pyarrow as pa
import pytest
import torch

from prequential import Learner, Schema, TableStream
from prequential.errors import BadCheckpoint, BadInput, BadSetting, MissingExtra
from prequential.streams.formats import text_encoders
from prequential.streams.formats.text_encoders import load_text_encoder

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "printer", "broken", "refund", "please", "my", "order"]
TEXTS = ["printer broken", "refund my order please", None, "", "order order"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A small random encoder, saved as the hub has them."""
    path = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=16, **sizes)
    transformers.BertModel(config).save_pretrained(path)
    (path / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(str(path / "vocab.txt")).save_pretrained(path)
    return path


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PREQUENTIAL_CACHE", str(tmp_path / "cache"))


def table(n=40):
    return pa.table({"body": [TEXTS[i % 5] for i in range(n)], "label": [i % 2 for i in range(n)]})


def test_a_column_by_a_network(folder):
    stream = TableStream(table(), kinds={"body": f"text:{folder}"})
    assert f"text by {folder}: body" in stream.describe()
    x = stream.read(0, 40).x
    assert x.shape == (40, 9)  # 8 features, and one that says "missing"
    np.testing.assert_allclose((x[:, :8] ** 2).sum(1), [1, 1, 0, 0, 1] * 8, atol=1e-6)
    assert not np.allclose(x[0], x[1])
    alone = np.concatenate([stream.schema.encode([row]) for row in table().to_pylist()])
    np.testing.assert_array_equal(alone, x)  # to the bit, whether it is read in a table or alone


def test_features_are_computed_once(folder, monkeypatch):
    expected = TableStream(table(), kinds={"body": f"text:{folder}"}).read(0, 40).x
    encoder = load_text_encoder(str(folder))
    monkeypatch.setattr(encoder, "_run", lambda text: pytest.fail(f"{text!r} was encoded again"))
    again = TableStream(table(), kinds={"body": f"text:{folder}"})
    np.testing.assert_array_equal(again.read(0, 40).x, expected)


def test_a_learner_keeps_which_weights_they_were(folder, tmp_path):
    schema = Schema.from_rows([{"body": "printer broken"}], kinds={"body": f"text:{folder}"}, extra=0)
    learner = Learner(2, width=8, depth=1, window=8, chunk_size=4, num_streams=2, num_query_heads=2, schema=schema)
    for row in table(20).to_pylist():
        learner.learn({"body": row["body"] or "please"}, row["label"])
    learner.save(tmp_path / "learner")
    loaded = Learner.load(tmp_path / "learner")
    assert loaded.predict_proba({"body": "my printer"}) == learner.predict_proba({"body": "my printer"})
    kept = json.loads(json.dumps(schema.to_dict()))
    kept["columns"][0]["kind"] = f"text:{folder}#000000000000"
    with pytest.raises(BadInput, match=r"weights of the text encoder .* expected 000000000000"):
        Schema.from_dict(kept).encode([{"body": "printer"}])
    kept["columns"][0]["kind"] = "text:\0"
    with pytest.raises(BadCheckpoint, match="no schema"):
        Schema.from_dict(kept)


def test_what_cannot_be_loaded(folder, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(BadInput, match=r"no .safetensors weights"):
        TableStream(table(), kinds={"body": f"text:{empty}"})
    with pytest.raises(BadInput, match="'nonsense' is no network and no folder; expected minilm, owner/name"):
        TableStream(table(), kinds={"body": "text:nonsense"})
    with pytest.raises(BadSetting, match="text of 1 features, expected 2 to 65536"):
        TableStream(table(), kinds={"body": "text:1"})
    assert len(TableStream(table(), kinds={"body": "text:32"}).feature_names) == 33
    asks = tmp_path / "asks"
    asks.mkdir()
    for file in folder.iterdir():
        (asks / file.name).write_bytes(file.read_bytes())
    config = json.loads((asks / "tokenizer_config.json").read_text())
    (asks / "tokenizer_config.json").write_text(json.dumps({**config, "auto_map": {"AutoTokenizer": "evil.Code"}}))
    with pytest.raises(BadInput, match=r"tokenizer_config.json has auto_map"):
        TableStream(table(), kinds={"body": f"text:{asks}"})
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    text_encoders.load_text_encoder.cache_clear()
    with pytest.raises(MissingExtra, match=r"needs an optional package: pip install 'prequential\[text\]'"):
        TableStream(table(), kinds={"body": f"text:{folder}"})
    text_encoders.load_text_encoder.cache_clear()
