"""The trunk both transformers share: input map, blocks over a window, output heads."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prequential.models.attention import Past, RotaryEmbedding, Rotation, mask_padding, sliding_window_bias
from prequential.models.block import Block
from prequential.models.grow import copied_rows, drawn_rows
from prequential.models.heads import CopyHead, Head, HeadInput, make_heads
from prequential.models.kv_cache import Context, KVCache, KVState
from prequential.models.lookback import MAX_LAG, LookBack, visible_columns
from prequential.settings import Settings

CACHED = 16  # masks of several sizes that are kept


class View(NamedTuple):
    """What the new examples of one pass can see, by the masks of blocks and heads."""

    past: KVState
    attn_bias: Tensor  # (1 or B, TH, N+1) of tokens
    rotation: Rotation | None
    example_bias: Tensor  # (1 or B, S, N+1) of examples
    key_position: Tensor  # (1, 1, N+1)
    query_position: Tensor  # (1, S)


class Transformer(nn.Module):
    """Predicts the label of each example from its features and from the labeled examples in its window.

    A subclass says how examples become tokens: `forward` and `predict_next`.

    Parameters
    ----------
    settings
        What it is made of.
    features
        The length of an input vector, or of what the extractor gives.
    num_classes
        How many labels there can be.
    extractor
        A network that turns images into vectors.
    """

    tokens_per_example = 1
    sees_itself = False  # whether a token may attend to itself

    def __init__(
        self, settings: Settings, *, features: int, num_classes: int, extractor: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.settings, self.features, self.num_classes = settings, features, num_classes
        self.extractor = extractor if settings.use_input else None
        width = settings.width
        if settings.use_input:
            self.embed = nn.Linear(features, width)
            # smaller than what the blocks add to it, so that what is found in context matters from the start
            nn.init.normal_(self.embed.weight, std=0.3 * features**-0.5)
            nn.init.zeros_(self.embed.bias)
        else:
            self.constant = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList(
            Block(
                width=width,
                mlp_width=settings.effective_mlp_width,
                num_heads=settings.effective_num_query_heads,
                num_labels=self._num_block_labels(),
                label_init_std=settings.label_init_std,
                attention=settings.window > 0,
                query_init=settings.query_init,
            )
            for _ in range(self._depth())
        )
        self.output_heads = make_heads(settings, num_classes=num_classes)
        length = settings.window + self.tokens_per_example * (settings.chunk_size + MAX_LAG) + 1
        self.rotary = RotaryEmbedding(key_width=settings.key_width, max_length=length)
        self._masks: dict[tuple[int, int, int, bool], Tensor] = {}
        self._positions: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self._late_masks: dict[tuple[Any, ...], _LateMasks] = {}

    def _depth(self) -> int:
        return 0 if self.settings.method == "copy" else self.settings.depth  # no head would read what the blocks make

    def _num_block_labels(self) -> int | None:
        """The number of labels that each block has embeddings of; None where labels enter otherwise."""
        return None

    @abstractmethod
    def forward(
        self, x: Tensor, y: Tensor, past: KVState, look: LookBack | None = None
    ) -> tuple[list[Tensor], KVState]:
        """The outputs of each head for S consecutive examples, (B, S, classes) each, and their keys and values.

        x are features (B, S, F) or images (B, S, ...); y (B, S) are their labels, each visible only to the examples
        after it, or where labels come late, to those that `look` says. A head's `log_probs` turns its outputs into
        log-probabilities.
        """

    @abstractmethod
    def predict_next(self, x: Tensor, past: KVState) -> tuple[list[Tensor], KVState]:
        """The outputs of each head for n examples, (n, classes) each, every one as the next after one stream's past.

        Also their keys and values, as they are without a label.
        """

    @abstractmethod
    def predict_late(self, x: Tensor, past: KVState, look: LookBack) -> list[Tensor]:
        """The outputs of each head for n examples, (n, classes) each, where `look` says what each of them sees."""

    def attach_label(self, new: KVState, y: Tensor) -> KVState | None:
        """The keys and values of an example from `predict_next`, now with its label y (1, 1).

        To the bit what a pass would give; None: that takes a pass.
        """
        return None

    def label_tables(self) -> dict[str, float]:
        """The parameters that have a random row for each class id, by name, with the deviation they are drawn with."""
        std = self.settings.label_init_std
        stds = {"key_labels": 0.0 if self.settings.query_init == "key" else std, "value_labels": std}
        return {
            f"blocks.{i}.{name}.weight": std
            for i, block in enumerate(self.all_blocks)
            for name, std in stds.items()
            if getattr(block, name) is not None
        }

    def grown_tables(self, num_classes: int, like: int) -> dict[str, Tensor]:
        """The parameters that have a row for each class id, by name, with rows for this many.

        What the softmax head learns of free class ids is the same for all: their new rows are those of one that is free,
        `like`. Label embeddings are learned only once the label has come: new ones are drawn, each by its own number.
        """
        parameters, tables = dict(self.named_parameters()), {}
        for number, (name, std) in enumerate(self.label_tables().items()):
            seed = [self.settings.seed, number]
            tables[name] = drawn_rows(parameters[name].data, num_classes, std=std, seed=seed)
        for name in ("output_heads.softmax.readout.weight", "output_heads.softmax.readout.bias"):
            if name in parameters:
                tables[name] = copied_rows(parameters[name].data, num_classes, like)
        return tables

    def grow(self, num_classes: int, tables: dict[str, Tensor]) -> None:
        """Takes over what `grown_tables` made; parameters stay the same objects."""
        for name, table in tables.items():
            module = self.get_submodule(name.rpartition(".")[0])
            module.get_parameter(name.rpartition(".")[2]).data = table
            size = "num_embeddings" if isinstance(module, nn.Embedding) else "out_features"
            setattr(module, size, num_classes)
        self.num_classes = num_classes
        for head in self.all_heads:
            if isinstance(head, CopyHead):
                head.num_classes = num_classes

    def new_context(self) -> Context:
        """Empty KV caches for one stream."""
        s, device = self.settings, self.rotary.table.device
        key_width = sum(head.key_width for head in self.all_heads)
        return Context(
            KVCache(
                depth=len(self.blocks) if s.window else 0,
                window=s.window,
                chunk_tokens=self.tokens_per_example * s.chunk_size,
                key_width=s.key_width,
                device=device,
            ),
            KVCache(
                depth=1 if key_width else 0,
                window=s.window_examples,
                chunk_tokens=s.chunk_size,
                key_width=key_width,
                device=device,
                labels=True,
            ),
            self.tokens_per_example,
        )

    def macs_per_example(self, keys: float | None = None, examples: float | None = None) -> float:
        """Multiply-accumulates of the forward pass for one example, without the extractor's.

        `keys` is how many keys a token is compared with, `examples` how many examples those heads compare with that
        look back: by default as many as are seen when the window is full.
        """
        s = self.settings
        examples = s.window_examples if examples is None else examples
        keys = s.window + self.sees_itself if keys is None else keys
        in_blocks = self.tokens_per_example * sum(block.macs(keys) for block in self.all_blocks)
        in_heads = sum(head.macs(examples) for head in self.all_heads)
        return in_blocks + in_heads + (self.embed.weight.numel() if s.use_input else 0)

    def extractor_macs(self) -> float:
        """Multiply-accumulates of the extractor's forward pass for one example, where it says so."""
        return float(getattr(self.extractor, "macs", lambda: 0)())

    @property
    def all_heads(self) -> list[Head]:
        """The output heads in the order of their predictions."""
        return list(self.output_heads.values())  # type: ignore[arg-type]

    @property
    def all_blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def _embed(self, x: Tensor) -> Tensor:
        """x (B, S, ...) as the input (B, S, D) of the first block."""
        B, S = x.shape[:2]
        if not self.settings.use_input:
            return self.constant.expand(B, S, -1)
        if self.extractor is not None:
            x = self.extractor(x.flatten(0, 1)).unflatten(0, (B, S))
        return self.embed(x)  # type: ignore[no-any-return]

    def _view(self, past: KVState, tokens: int, examples: int, look: LookBack | None) -> View:
        """What new examples see of the past and of each other."""
        rotary = self.settings.positions == "rotary" and len(self.blocks) > 0
        P, P_examples = past.tokens[0].shape[2], past.examples[0].shape[2]
        if look is None or not self.settings.window:
            rotation = self.rotary(P, tokens) if rotary else None
            of_examples = self._example_view(past, examples) if self._has_keys else self._no_examples()
            return View(past, self._attn_bias(tokens, past), rotation, *of_examples)
        lengths = None if past.lengths is None else tuple(past.lengths)
        masks = self._late_masks.get(key := (look.key, P, P_examples, lengths))
        if masks is None:
            masks = self._make_late_masks(look, P, P_examples, past.lengths)
            if len(self._late_masks) >= CACHED:
                self._late_masks.clear()
            self._late_masks[key] = masks
        return View(past.part(masks.tokens, masks.examples), *masks.view)

    def _make_late_masks(
        self, look: LookBack, tokens: int, examples: int, lengths: list[tuple[int, int]] | None
    ) -> _LateMasks:
        s, device = self.settings, self.rotary.table.device
        in_blocks = visible_columns(
            look,
            tokens,
            s.window,
            tokens_per_example=self.tokens_per_example,
            sees_itself=self.sees_itself,
            sees_unlabeled=True,
            lengths=None if lengths is None else [length for length, _ in lengths],
        )
        rotation = None
        if s.positions == "rotary" and len(self.blocks):
            queries = in_blocks.queries.to(device)
            rotation = self.rotary.at(queries, in_blocks.keys.to(device), queries[: in_blocks.unlabeled.shape[2]])
        in_heads = visible_columns(
            look, examples, s.window_examples, lengths=None if lengths is None else [length for _, length in lengths]
        )
        key_position = F.pad(in_heads.keys.float().to(device) / max(s.window_examples, 1), (0, 1))[None, None]
        query_position = in_heads.queries.float().to(device)[None] / max(s.window_examples, 1)
        bias = in_blocks.bias(s.effective_num_query_heads).to(device)
        return _LateMasks(
            slice(in_blocks.start, in_blocks.stop),
            slice(in_heads.start, in_heads.stop),
            (bias, rotation, in_heads.bias().to(device), key_position, query_position),
        )

    def _run_blocks(self, h: Tensor, y: Tensor | None, view: View) -> tuple[Tensor, Past]:
        """The blocks, on tokens h (B, T, D) with labels y (B, T); the result and the new keys and values."""
        past, attn_bias, rotation = view.past.tokens, view.attn_bias, view.rotation
        keys, values = [], []
        for i, block in enumerate(self.all_blocks):
            of_block = (past[0][i], past[1][i]) if block.attention else past
            h, (k, v) = block(h, y, of_block, attn_bias, rotation)
            if block.attention:
                keys.append(k)
                values.append(v)
        return h, ((torch.stack(keys), torch.stack(values)) if keys else past)

    @property
    def _has_keys(self) -> bool:
        """Whether a head compares examples."""
        return any(head.key_width for head in self.all_heads)

    def _no_examples(self) -> tuple[Tensor, Tensor, Tensor]:
        nothing = self.rotary.table.new_zeros(0, dtype=torch.float32)
        return nothing, nothing, nothing

    def _run_heads(
        self, embedded: Tensor, trunk: Tensor, y: Tensor, view: View, new: Past
    ) -> tuple[list[Tensor], KVState]:
        """The heads, on a pass over examples (B, S, D): their outputs, and the keys and values of the pass."""
        heads = self.all_heads
        widths = [head.key_width for head in heads]
        past = view.past
        if not any(widths):
            nothing = embedded.new_zeros(0)
            given = [HeadInput(embedded, trunk, None, nothing, nothing, nothing, nothing)] * len(heads)
        else:
            past_keys, labels = past.examples[0][0], past.examples[1][0].transpose(1, 2)
            attn_bias, key_position, query_position = view.example_bias, view.key_position, view.query_position
            if embedded.shape[1] > 1:  # one example sees no label but those of the past
                labels = torch.cat([labels, y[:, None]], 2).expand(-1, embedded.shape[1], -1)
            pasts = [past_keys] if len(heads) == 1 else torch.split(past_keys, widths, -1)
            given = [
                HeadInput(embedded, trunk, keys, labels, attn_bias, key_position, query_position) for keys in pasts
            ]
        made = [head(of_head) for head, of_head in zip(heads, given, strict=True)]
        keys = [key for _, key in made if key is not None]
        if keys:
            joined = keys[0] if len(keys) == 1 else torch.cat(keys, -1)
            return [out for out, _ in made], KVState(new, (joined[None], y[None, ..., None]))
        return [out for out, _ in made], KVState(new, past.examples)

    def _example_view(self, past: KVState, examples: int) -> tuple[Tensor, Tensor, Tensor]:
        """The masks of heads where each example sees all before it."""
        P = past.examples[0].shape[2]
        attn_bias, key_position, query_position = self._example_positions(examples, P)
        if past.lengths is not None:
            attn_bias = mask_padding(attn_bias, P, [length for _, length in past.lengths])
        return attn_bias, key_position, query_position

    def _example_positions(self, examples: int, past: int) -> tuple[Tensor, Tensor, Tensor]:
        """For S new examples behind P past ones: the attention bias (1, S, N+1), and the positions of keys and queries.

        Positions count in windows; that of the null key is 0.
        """
        made = self._positions.get((examples, past))
        if made is None:
            window = self.settings.window_examples
            attn_bias = self._mask(examples, window, 1, sees_itself=False)[None, :, window - past :]
            # every other number of a table: products of numbers side by side are summed in another order
            position = torch.zeros(1, 1, past + examples + 1, 2, device=attn_bias.device)[..., 0]
            torch.arange(past + examples, out=position[0, 0, :-1]).div_(window)
            if len(self._positions) >= CACHED:  # while the window fills, every example has another number behind it
                self._positions.clear()
            made = self._positions[examples, past] = attn_bias, position, position[0, :, past : past + examples]
        return made

    def _attn_bias(self, tokens: int, past: KVState) -> Tensor:
        """The attention bias (1 or B, TH, N+1) of T tokens behind the past."""
        s, P = self.settings, past.tokens[0].shape[2]
        bias = self._mask(tokens, s.window, s.effective_num_query_heads, self.sees_itself)[None, :, s.window - P :]
        if past.lengths is not None:
            bias = mask_padding(bias, P, [length for length, _ in past.lengths])
        return bias

    def _mask(self, tokens: int, window: int, num_heads: int, sees_itself: bool) -> Tensor:
        # all of it: where an example is two tokens, the masks of examples are others than those of as many tokens
        made = self._masks.get(key := (tokens, window, num_heads, sees_itself))
        if made is None:
            made = sliding_window_bias(tokens, window, num_heads, sees_itself).to(self.rotary.table.device)
            if len(self._masks) >= CACHED:  # lengths vary only where a user feeds examples in odd numbers
                self._masks.clear()
            self._masks[key] = made
        return made


class _LateMasks(NamedTuple):
    """What is the same for all passes in which labels are equally late."""

    tokens: slice  # of the past, that some example sees
    examples: slice
    view: tuple[Tensor, Rotation | None, Tensor, Tensor, Tensor]
