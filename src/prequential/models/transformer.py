"""The trunk both transformers share: input map, blocks over a window, output."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from prequential.models.blocks import Block, KVCache, Past, Turn, band, rotary_table
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
                heads=settings.query_heads,
                labels=self._block_labels(),
                label_scale=settings.label_scale,
                attention=settings.window > 0,
            )
            for _ in range(settings.depth)
        )
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, classes)
        # nothing is known at the start, so every label is equally probable
        nn.init.zeros_(self.readout.weight)
        nn.init.zeros_(self.readout.bias)
        length = settings.window + self.tokens_per_example * settings.chunk + 1
        self.register_buffer("_rotary", rotary_table(length, settings.key_width), persistent=False)
        self._rotary: Tensor
        self._bands: dict[int, Tensor] = {}

    def _block_labels(self) -> int | None:
        """The number of labels whose tables each block keeps; None where labels enter otherwise."""
        return None

    @abstractmethod
    def forward(self, x: Tensor, y: Tensor, past: Past, filled: list[int]) -> tuple[Tensor, Past]:
        """Log-probabilities (B, S, classes) of S consecutive examples, and their keys and values (L, B, tokens, K).

        x are features (B, S, F) or images (B, S, ...); y (B, S) are their labels, each visible only to the examples
        after it. `past` are the keys and values before them, (L, B, P, K), of which the last `filled[b]` count.
        """

    @abstractmethod
    def predict(self, x: Tensor, past: Past) -> Tensor:
        """Log-probabilities (n, classes) of n examples, each as the next one after the same past (L, 1, P, K)."""

    def new_cache(self) -> KVCache:
        s = self.settings
        chunk_tokens = self.tokens_per_example * s.chunk
        return KVCache(
            depth=s.depth if s.window else 0,
            window=s.window,
            chunk_tokens=chunk_tokens,
            key_width=s.key_width,
            device=self.readout.weight.device,
        )

    def macs_per_example(self, keys: float | None = None) -> float:
        """Multiply-accumulates of the forward pass for one example, without the extractor's.

        `keys` is how many keys a token is compared with: by default those it sees when the window is full.
        """
        s = self.settings
        keys = s.window + self.sees_itself if keys is None else keys
        in_blocks = self.tokens_per_example * sum(block.macs(keys) for block in self._blocks)
        return in_blocks + self.readout.weight.numel() + (self.embed.weight.numel() if s.use_input else 0)

    def extractor_macs_per_example(self) -> float:
        """Multiply-accumulates of the extractor's forward pass for one example."""
        return float(self.extractor.macs()) if self.extractor is not None else 0.0  # type: ignore[operator]

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

    def _run(self, h: Tensor, y: Tensor | None, past: Past, bias: Tensor) -> tuple[Tensor, Past]:
        """The blocks, on tokens h (B, T, D) with labels y (B, T); the result and the new keys and values."""
        turn = None
        if self.settings.positions == "rotary":
            turn = Turn(self._rotary, past[0].shape[2], h.shape[1])
        keys, values = [], []
        for i, block in enumerate(self._blocks):
            here = (past[0][i], past[1][i]) if block.attention else past
            h, (k, v) = block(h, y, here, bias, turn)
            if block.attention:
                keys.append(k)
                values.append(v)
        return h, ((torch.stack(keys), torch.stack(values)) if keys else past)

    def _read_out(self, h: Tensor) -> Tensor:
        return torch.log_softmax(self.readout(self.norm(h)).float(), -1)

    def _bias(self, tokens: int, past: int, filled: list[int]) -> Tensor:
        """The attention bias (1 or B, T*H, P+T+1); behind a cache that is only partly filled, the rest is hidden."""
        full = self._bands.get(tokens)
        if full is None:
            s = self.settings
            full = band(tokens, s.window, s.query_heads, self.sees_itself).to(self._rotary.device)
            if len(self._bands) >= 8:  # lengths vary only where a user feeds examples in odd numbers
                self._bands.clear()
            self._bands[tokens] = full
        bias = full[None, :, self.settings.window - past :]
        if all(count == past for count in filled):
            return bias
        hidden = torch.zeros(len(filled), 1, bias.shape[2], device=bias.device)
        for b, count in enumerate(filled):
            hidden[b, :, : past - count] = -torch.inf
        return bias + hidden
