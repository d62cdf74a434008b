"""Decoder-only language models: GPT-2's shape and Llama's. They map tokens N×T to logits N×T×vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainables.context import RequestError
from trainables.tokens import heads_error

INITIAL_STD = 0.02  # standard deviation of initial weights; √(2·layers) divides it where a block adds to its input


def gpt(
    *,
    layers: int,
    heads: int,
    width: int,
    sequence_length: int,
    vocabulary: int,
    kv_heads: int | None = None,
    bias: bool = True,
    tied: bool = True,
    dropout: float = 0.0,
) -> nn.Module:
    """Build GPT-2's shape (Radford et al. 2019): learned positions, LayerNorm before each part, GELU.

    `kv_heads` (None: `heads`) is the number of keys and values, which groups of queries share; `tied` makes the
    embedding of tokens the output layer, too. Raises RequestError for heads that do not divide the width.
    """
    check_heads(width=width, heads=heads, kv_heads=kv_heads)

    def block() -> Block:
        attention = Attention(width, heads=heads, kv_heads=kv_heads or heads, bias=bias)
        forward = nn.Sequential(
            nn.Linear(width, 4 * width, bias=bias), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width, bias=bias)
        )
        return Block(attention, forward, norm, dropout=dropout)

    def norm() -> nn.Module:
        return nn.LayerNorm(width, bias=bias)

    return Transformer(
        [block() for _ in range(layers)],
        norm=norm(),
        tokens=nn.Embedding(vocabulary, width),
        positions=nn.Embedding(sequence_length, width),
        tied=tied,
        dropout=dropout,
    )


def llama(
    *,
    layers: int,
    heads: int,
    width: int,
    sequence_length: int,
    vocabulary: int,
    kv_heads: int | None = None,
    hidden: int | None = None,
    tied: bool = False,
    rope_base: float = 500_000.0,
    norm_eps: float = 1e-5,
) -> nn.Module:
    """Build Llama's shape (Touvron et al. 2023): rotary positions, RMSNorm, SwiGLU, grouped queries, no biases.

    `hidden` (None: 8/3 of the width, rounded up to a multiple of 256) is the width inside SwiGLU; otherwise see `gpt`.
    """
    check_heads(width=width, heads=heads, kv_heads=kv_heads)
    if width // heads % 2:
        raise RequestError(f"model.width={width} over heads={heads} is odd; rotary positions need pairs")
    inside = hidden or -(-8 * width // 3 // 256) * 256
    angles = rotary(sequence_length, width // heads, base=rope_base)

    def block() -> Block:
        attention = Attention(width, heads=heads, kv_heads=kv_heads or heads, bias=False, angles=angles)
        return Block(attention, SwiGLU(width, inside), norm)

    def norm() -> nn.Module:
        return nn.RMSNorm(width, eps=norm_eps)

    blocks = [block() for _ in range(layers)]
    return Transformer(blocks, norm=norm(), tokens=nn.Embedding(vocabulary, width), tied=tied)


def check_heads(*, width: int, heads: int, kv_heads: int | None) -> None:
    """Raise RequestError, with the numbers, if the heads do not divide the width or the groups the heads."""
    if message := heads_error(width=width, heads=heads, kv_heads=kv_heads):
        raise RequestError(message)


def rotary(length: int, head_width: int, *, base: float) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of the angle of each position and pair, both length×head_width (Su et al. 2021)."""
    speeds = base ** (-torch.arange(0, head_width, 2, dtype=torch.float32) / head_width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), speeds).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (i, i + half) of N×heads×T×head_width by its position's angle."""
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).type_as(x)


class Attention(nn.Module):
    """Causal attention in which groups of `heads` / `kv_heads` queries share keys and values."""

    def __init__(
        self, width: int, *, heads: int, kv_heads: int, bias: bool, angles: tuple[Tensor, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.queries, self.head_width = heads // kv_heads, width // heads
        # The rows of a group are neighbours, its queries before its key and its value: any division by groups is even.
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head_width, bias=bias)
        self.out = nn.Linear(width, width, bias=bias)
        self.rotates = angles is not None
        if angles is not None:
            self.register_buffer("cos", angles[0], persistent=False)
            self.register_buffer("sin", angles[1], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map N×T×width to the same shape."""
        count, length, _ = x.shape
        groups = self.qkv(x).view(count, length, -1, self.queries + 2, self.head_width)
        # One tensor per role, each N×heads×T×head_width: attention takes views of a key for each query without a copy.
        roles = groups.split([self.queries, 1, 1], dim=3)
        q, k, v = (role.flatten(2, 3).transpose(1, 2) for role in roles)
        if self.rotates:
            cos, sin = self.get_buffer("cos")[:length], self.get_buffer("sin")[:length]
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.queries > 1:
            k, v = (heads.repeat_interleave(self.queries, dim=1) for heads in (k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.out(mixed.transpose(1, 2).reshape(count, length, -1))
        return attended


class SwiGLU(nn.Module):
    """A gated feed-forward layer: Shazeer 2020, "GLU variants improve transformer"."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map N×T×width to the same shape."""
        mapped: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return mapped


class Block(nn.Module):
    """Attention and a feed-forward layer, each added to its input after a norm."""

    adds = ("attention.out.weight", "feed_forward.2.weight", "feed_forward.down.weight")
    """The last weights of both, for either feed-forward layer."""

    def __init__(
        self, attention: nn.Module, forward: nn.Module, norm: Callable[[], nn.Module], *, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.feed_forward = norm(), attention, norm(), forward
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map N×T×width to the same shape."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        added: Tensor = x + self.dropout(self.feed_forward(self.norm2(x)))
        return added


class Transformer(nn.Module):
    """Embeddings, blocks, a norm and the output layer."""

    tensor_plan: ClassVar[Mapping[str, str]] = {
        "blocks.*.attention.qkv": "colwise",
        "blocks.*.attention.out": "rowwise",
        "blocks.*.feed_forward.0": "colwise",
        "blocks.*.feed_forward.2": "rowwise",
        "blocks.*.feed_forward.gate": "colwise",
        "blocks.*.feed_forward.up": "colwise",
        "blocks.*.feed_forward.down": "rowwise",
    }
    """See `trainables.models.tensor_plan`; both feed-forward layers are in it."""

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        norm: nn.Module,
        tokens: nn.Embedding,
        positions: nn.Embedding | None = None,
        tied: bool,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens, self.positions, self.norm = tokens, positions, norm
        self.blocks, self.dropout = nn.ModuleList(blocks), nn.Dropout(dropout)
        self.head = nn.Linear(tokens.embedding_dim, tokens.num_embeddings, bias=False)
        self._initialise()
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens N×T to logits N×T×vocabulary, of the token after each."""
        x = self.tokens(tokens)
        if self.positions is not None:
            x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.dropout(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INITIAL_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, Block):
                for name, weight in module.named_parameters():
                    if name in module.adds:
                        nn.init.normal_(weight, std=INITIAL_STD / math.sqrt(2 * len(self.blocks)))
