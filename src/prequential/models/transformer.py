"""The trunk both transformers share: input map, blocks over a window, heads."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from prequential.models.attention import Past, Turn, band, hide_filler, parts, rotary_table
from prequential.models.block import Block
from prequential.models.context import Context, Seen
from prequential.models.heads import Head, Pass, make_heads
from prequential.models.kv_cache import KVCache
from prequential.settings import Settings


class Transformer(nn.Module):
    """Predicts the label of each example from its features and from the labelled examples in its window.

    A subclass says how examples become tokens: `forward` and `predict`.
    """

    tokens_per_example = 1
    sees_itself = False  # whether a token may attend to itself

    def __init__(self, settings: Settings, *, features: int, classes: int, extractor: nn.Module | None = None) -> None:
        super().__init__()
        self.settings, self.features, self.classes = settings, features, classes
        self.extractor = extractor if settings.use_input else None
        width = settings.width
        if settings.use_input:
            self.embed = nn.Linear(features, width)
            # smaller than what the blocks add to it: what is found in context must be heard from the start
            nn.init.normal_(self.embed.weight, std=0.3 * features**-0.5)
            nn.init.zeros_(self.embed.bias)
        else:
            self.constant = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList(
            Block(
                width=width,
                hidden=settings.effective_mlp_width,
                heads=settings.effective_num_query_heads,
                labels=self._block_labels(),
                label_scale=settings.label_init_std,
                attention=settings.window > 0,
            )
            for _ in range(self._depth())
        )
        self.heads = make_heads(settings, classes=classes)
        length = settings.window + self.tokens_per_example * settings.chunk_size + 1
        self.register_buffer("_rotary", rotary_table(length, settings.key_width), persistent=False)
        self._rotary: Tensor
        self._bands: dict[tuple[int, int], Tensor] = {}
        self._columns: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def _depth(self) -> int:
        return 0 if self.settings.method == "copy" else self.settings.depth  # no head would read what the blocks make

    def _block_labels(self) -> int | None:
        """The number of labels whose tables each block keeps; None where labels enter otherwise."""
        return None

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, past: Seen) -> tuple[list[Tensor], Seen]:
        """What each head makes of S consecutive examples, (B, S, classes) each, and what is to be kept of them.

        x are features (B, S, F) or images (B, S, ...); y (B, S) are their labels, each visible only to the examples
        after it. A head's `log_probabilities` makes log-probabilities of what it gives.
        """

    @abstractmethod
    def foresee(self, x: Tensor, past: Seen) -> tuple[list[Tensor], Seen]:
        """What each head makes of n examples, (n, classes) each, every one as the next after the past of one stream.

        Also what would be kept of them but for their labels.
        """

    def told(self, foreseen: Seen, y: Tensor) -> Seen | None:
        """What is to be kept of a foreseen example, now that its label y (1, 1) is known, to the bit as a pass would
        give it; None: it takes a pass."""
        return None

    def new_context(self) -> Context:
        s, device = self.settings, self._rotary.device
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
        )

    def tables(self) -> list[Tensor]:
        """All tensors that passes read but parameters; some are made when they are first needed."""
        made = [tensor for columns in self._columns.values() for tensor in columns]
        return [*self.buffers(), *self._bands.values(), *made]

    def macs_per_example(self, keys: float | None = None, examples: float | None = None) -> float:
        """Multiply-accumulates of the forward pass for one example, without the extractor's.

        `keys` is how many keys a token is compared with, `examples` how many examples those heads that remember
        compare with: by default as many as are seen when the window is full.
        """
        s = self.settings
        examples = s.window_examples if examples is None else examples
        keys = s.window + self.sees_itself if keys is None else keys
        in_blocks = self.tokens_per_example * sum(block.macs(keys) for block in self._blocks)
        in_heads = sum(head.macs(examples) for head in self.all_heads)
        return in_blocks + in_heads + (self.embed.weight.numel() if s.use_input else 0)

    def extractor_macs_per_example(self) -> float:
        """Multiply-accumulates of the extractor's forward pass for one example."""
        return float(self.extractor.macs()) if self.extractor is not None else 0.0  # type: ignore[operator]

    @property
    def all_heads(self) -> list[Head]:
        """The heads in the order in which their predictions come."""
        return list(self.heads.values())  # type: ignore[arg-type]

    @property
    def _blocks(self) -> list[Block]:
        return list(self.blocks)  # type: ignore[arg-type]

    def _embed(self, x: Tensor) -> Tensor:
        """x (B, S, ...) as the input (B, S, D) of the first block."""
        B, S = x.shape[:2]
        if not self.settings.use_input:
            return self.constant.expand(B, S, -1)
        if self.extractor is not None:
            x = self.extractor(x.flatten(0, 1)).unflatten(0, (B, S))
        return self.embed(x)  # type: ignore[no-any-return]

    def _run(self, h: Tensor, y: Tensor | None, past: Past, bias: list[Tensor]) -> tuple[Tensor, Past]:
        """The blocks, on tokens h (B, T, D) with labels y (B, T); the result and the new keys and values."""
        turn = None
        if self.settings.positions == "rotary" and len(self.blocks):
            turn = Turn(self._rotary, past[0].shape[2], h.shape[1])
        keys, values = [], []
        for i, block in enumerate(self._blocks):
            here = (past[0][i], past[1][i]) if block.attention else past
            h, (k, v) = block(h, y, here, bias, turn)
            if block.attention:
                keys.append(k)
                values.append(v)
        return h, ((torch.stack(keys), torch.stack(values)) if keys else past)

    def _read_out(self, embedded: Tensor, trunk: Tensor, y: Tensor, past: Seen, new: Past) -> tuple[list[Tensor], Seen]:
        """What the heads make of a pass over examples (B, S, D), and what is to be kept of it."""
        heads = self.all_heads
        widths = [head.key_width for head in heads]
        if not any(widths):
            nothing = embedded.new_zeros(0)
            given = [Pass(embedded, trunk, None, nothing, None, nothing, nothing, nothing)] * len(heads)
        else:
            old_keys, old_labels = past.examples[0][0], past.examples[1][0]
            S, P = embedded.shape[1], old_keys.shape[1]
            hidden, place, time = self._look_back(S, P)
            if past.filled is not None:
                hidden = hide_filler(hidden, P, [count for _, count in past.filled])
            labels = None
            # One example sees no label but those of the past, whose weights can be added up as they are. Not on other
            # devices, where that is done in any order.
            if S > 1 or torch.is_grad_enabled() or y.device.type != "cpu":
                labels = torch.zeros(len(y), P + S + 1, self.classes, device=hidden.device)
                labels[:, :-1].scatter_(2, torch.cat([old_labels, y[..., None]], 1), 1.0)
            pasts = [old_keys] if len(heads) == 1 else torch.split(old_keys, widths, -1)
            given = [Pass(embedded, trunk, keys, old_labels, labels, hidden, place, time) for keys in pasts]
        made = [head(here) for head, here in zip(heads, given, strict=True)]
        keys = [key for _, key in made if key is not None]
        if keys:
            joined = keys[0] if len(keys) == 1 else torch.cat(keys, -1)
            return [out for out, _ in made], Seen(new, (joined[None], y[None, ..., None]))
        return [out for out, _ in made], Seen(new, past.examples)

    def _look_back(self, examples: int, past: int) -> tuple[Tensor, Tensor, Tensor]:
        """Of S new examples behind P past ones: where they may look, and the places of all columns and of the new ones.

        They may look at past ones and at the null slot, where the first, (1, S, N+1), is 0.
        """
        made = self._columns.get((examples, past))
        if made is None:
            window = self.settings.window_examples
            hidden = self._band(examples, window, 1, itself=False)[None, :, window - past :]
            # every other number of a table: products of numbers side by side are added up in another order
            place = torch.zeros(1, 1, past + examples + 1, 2, device=hidden.device)[..., 0]
            torch.arange(past + examples, out=place[0, 0, :-1]).div_(window)
            if len(self._columns) >= 16:  # while the window fills, every example is behind another number of them
                self._columns.clear()
            made = self._columns[examples, past] = hidden, place, place[0, :, past : past + examples]
        return made

    def _bias(self, tokens: int, past: Seen) -> list[Tensor]:
        """The attention bias (1 or B, rows, columns) of each part of the tokens.

        What the band hides from all of a part is left out; behind a cache that is only partly filled, the rest is hidden.
        """
        s, P = self.settings, past.tokens[0].shape[2]
        made = []
        for first, last in parts(tokens):
            before = min(s.window, P + first)  # tokens before the part that one of it may see
            bias = self._band(last - first, s.window, s.effective_num_query_heads, self.sees_itself)[
                None, :, s.window - before :
            ]
            if past.filled is not None:
                bias = hide_filler(bias, before, [min(before, count + first) for count, _ in past.filled])
            made.append(bias)
        return made

    def _band(self, tokens: int, window: int, heads: int, itself: bool) -> Tensor:
        made = self._bands.get((tokens, heads))
        if made is None:
            made = band(tokens, window, heads, itself).to(self._rotary.device)
            if len(self._bands) >= 16:  # lengths vary only where a user feeds examples in odd numbers
                self._bands.clear()
            self._bands[tokens, heads] = made
        return made
