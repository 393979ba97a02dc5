"""What the captioning task needs of a backbone, and a small GPT that has it."""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import nn
from torch.nn import functional

from energon_dali.errors import ConfigError


class PrefixBackbone(Protocol):
    """A language model that takes vectors in place of tokens, so that an image can come before the text."""

    embed_dim: int
    """Length E of a vector."""
    num_vocab: int
    """Number V of tokens."""

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the vectors float[..., E] of tokens int64[...], without positions."""

    def __call__(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Returns the logits float[R, L, V] of the token that follows each place.

        Args:
            inputs_embeds: float[R, L, E], without positions.
            position_ids: int64[R, L]: position of a token in its text.
            attention_mask: bool[R, 1, L, L]: true where a place (third axis) sees another (fourth).
        """


class CaptioningGPT(nn.Module):
    """A small GPT over rows of vectors; the output weights are those of the token embeddings.

    Args:
        num_vocab: Number V of tokens.
        num_positions: Positions of a text, from 0 on.
        embed_dim: Length E of a vector.
        num_heads: Heads of attention; they divide E.
        num_layers: Blocks.
        dropout: Share of what each block adds that is dropped in training.

    Raises:
        ConfigError: The heads do not divide the vectors.
    """

    def __init__(
        self,
        num_vocab: int,
        num_positions: int,
        embed_dim: int = 128,
        num_heads: int = 4,
        num_layers: int = 4,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if num_heads < 1 or embed_dim % num_heads:
            raise ConfigError(f"{embed_dim = } cannot be divided among {num_heads = }: give a multiple of the heads.")
        self.num_vocab, self.embed_dim = num_vocab, embed_dim
        self.token_embeddings = nn.Embedding(num_vocab, embed_dim)
        self.position_embeddings = nn.Embedding(num_positions, embed_dim)
        blocks = [_Block(embed_dim, num_heads, dropout) for _ in range(num_layers)]
        self.blocks = nn.ModuleList(blocks)
        self.ln_f = nn.LayerNorm(embed_dim)
        self.apply(_initialize)
        for block in blocks:  # what the residual stream sums up keeps its size, as in GPT-2
            for last in (block.project, block.shrink):
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * num_layers))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the vectors float[..., E] of tokens int64[...], without positions."""
        vectors: torch.Tensor = self.token_embeddings(token_ids)
        return vectors

    def forward(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Returns logits float[R, L, V]; arguments as in PrefixBackbone."""
        hidden = inputs_embeds + self.position_embeddings(position_ids)
        for block in self.blocks:
            hidden = block(hidden, attention_mask)
        return functional.linear(self.ln_f(hidden), self.token_embeddings.weight)


class _Block(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(embed_dim), nn.LayerNorm(embed_dim)
        self.attend = nn.Linear(embed_dim, 3 * embed_dim)
        self.project = nn.Linear(embed_dim, embed_dim)
        self.widen = nn.Linear(embed_dim, 4 * embed_dim)
        self.shrink = nn.Linear(4 * embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        rows, length, embed_dim = hidden.shape
        parts = self.attend(self.ln_1(hidden)).view(rows, length, 3, self.num_heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # [R, heads, L, E / heads] each
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        hidden = hidden + self.dropout(self.project(seen.transpose(1, 2).reshape(rows, length, embed_dim)))
        added: torch.Tensor = self.dropout(self.shrink(functional.gelu(self.widen(self.ln_2(hidden)))))
        return hidden + added


class PatchPrefix(nn.Module):
    """Turns patches into vectors that precede a text: a linear map, and what row and column add.

    Args:
        patch_dim: Values of a patch.
        embed_dim: Length E of a vector.
        max_patches_along: Patches along the longer side of an image at most.
    """

    def __init__(self, patch_dim: int, embed_dim: int, max_patches_along: int) -> None:
        super().__init__()
        self.project = nn.Linear(patch_dim, embed_dim)
        self.row_embeddings = nn.Embedding(max_patches_along, embed_dim)
        self.column_embeddings = nn.Embedding(max_patches_along, embed_dim)
        self.apply(_initialize)

    def forward(self, patches: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Returns float[P, E].

        Args:
            patches: float[P, patch_dim].
            positions: int32[P, 2]: row and column of each in its image.
        """
        vectors: torch.Tensor = self.project(patches) + self.row_embeddings(positions[:, 0])
        return vectors + self.column_embeddings(positions[:, 1])  # type: ignore[no-any-return]


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
