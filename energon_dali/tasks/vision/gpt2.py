"""A small GPT-2 over the pixels of an image, read row by row as palette colours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from energon_dali.errors import ConfigError

_INIT_STD = 0.02
"""Deviation of the first weights, GPT-2's; so the first prediction is nearly uniform over the colours."""


@dataclass(slots=True)
class PixelCache:
    """What attention needs of the pixels so far, so that the next one costs no more than itself."""

    keys: list[torch.Tensor]
    """Per layer: float[B, heads, num_positions, head_dim]; positions from `length` on hold nothing."""
    values: list[torch.Tensor]
    """Likewise."""
    length: int = 0
    """Positions that are filled."""


class _Attention(nn.Module):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim)
        self.out = nn.Linear(embed_dim, embed_dim)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        query, key, value = self._split(hidden)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._join(mixed)

    def extend(self, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, place: int) -> torch.Tensor:
        """Returns float[1, B, embed_dim] of the pixel at `place`; writes its key and value there."""
        query, keys[:, :, place : place + 1], values[:, :, place : place + 1] = self._split(hidden)
        past = slice(0, place + 1)
        return self._join(functional.scaled_dot_product_attention(query, keys[:, :, past], values[:, :, past]))

    def _split(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns query, key and value, each float[B, heads, T, head_dim]."""
        length, batch, _ = hidden.shape
        parts = self.qkv(hidden).view(length, batch, 3, self.num_heads, -1).permute(2, 1, 3, 0, 4)
        return parts[0], parts[1], parts[2]

    def _join(self, mixed: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.out(mixed.permute(2, 0, 1, 3).flatten(2))
        return projected


def _check_sizes(owner: str, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise ConfigError(f"{owner} was given {name}={size}. It is a whole number of at least 1.")
    embed_dim, num_heads = sizes["embed_dim"], sizes["num_heads"]
    if embed_dim % num_heads:
        raise ConfigError(
            f"{owner} was given embed_dim={embed_dim} and num_heads={num_heads}. The heads share the width equally: "
            f"give an embed_dim that is a multiple of {num_heads}."
        )


def check_length(model: nn.Module, tokens: torch.Tensor, num_positions: int) -> None:
    """Refuses sequences that are longer than a model's positions.

    Args:
        model: The model, for the message.
        tokens: int64[T, B].
        num_positions: Most tokens of a sequence.

    Raises:
        ConfigError: They are longer.
    """
    length, batch = tokens.shape
    if length > num_positions:
        raise ConfigError(
            f"{type(model).__name__} was given tokens of shape [{length}, {batch}] and has {num_positions} positions. "
            f"Sequences come first: [T, B]. Transpose them if {length} is the batch size; otherwise make it with "
            f"num_positions={length}, or give shorter sequences."
        )


class Block(nn.Module):
    """A layer of GPT-2: attention to the pixels so far, then an MLP; both read a normalised input and add to it.

    Args:
        embed_dim: Width of the model.
        num_heads: Attention heads; they share embed_dim equally.

    Raises:
        ConfigError: A number is below 1, or num_heads does not divide embed_dim.
    """

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        _check_sizes("Block", {"embed_dim": embed_dim, "num_heads": num_heads})
        self.ln_1 = nn.LayerNorm(embed_dim)
        self.attn = _Attention(embed_dim, num_heads)
        self.ln_2 = nn.LayerNorm(embed_dim)
        self.mlp = nn.Sequential(nn.Linear(embed_dim, 4 * embed_dim), nn.GELU(), nn.Linear(4 * embed_dim, embed_dim))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Returns float[T, B, embed_dim]; row t depends on rows 0 to t alone.

        Args:
            hidden: float[T, B, embed_dim], sequences first.
        """
        hidden = hidden + self.attn(self.ln_1(hidden))
        return hidden + self.mlp(self.ln_2(hidden))  # type: ignore[no-any-return]

    def extend(self, hidden: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, place: int) -> torch.Tensor:
        """Returns float[1, B, embed_dim] of one more pixel.

        Args:
            hidden: float[1, B, embed_dim], the pixel.
            keys: float[B, heads, num_positions, head_dim] of the pixels before; that of this one is written to `place`.
            values: Likewise.
            place: Number of the pixel.
        """
        hidden = hidden + self.attn.extend(self.ln_1(hidden), keys, values, place)
        return hidden + self.mlp(self.ln_2(hidden))  # type: ignore[no-any-return]


class GPT2(nn.Module):
    """Predicts each pixel's colour from those before it.

    The sequence is shifted inside: a learnt start vector is put first and the last pixel is not read, so that
    `logits[t]` are of pixel t, given the pixels before t. A model of the same protocol can take its place.

    Args:
        embed_dim: Width of the model.
        num_heads: Attention heads; they share embed_dim equally.
        num_layers: Layers of attention and MLP.
        num_positions: Longest sequence: the pixels of an image.
        num_vocab: Colours of the palette.
        num_classes: Classes of images; None is 10, as many as CIFAR-10 has.

    Raises:
        ConfigError: A number is below 1, or num_heads does not divide embed_dim.
    """

    def __init__(
        self,
        embed_dim: int = 16,
        num_heads: int = 2,
        num_layers: int = 8,
        num_positions: int = 1024,
        num_vocab: int = 16,
        num_classes: int | None = None,
    ) -> None:
        super().__init__()
        num_classes = 10 if num_classes is None else num_classes
        sizes = {
            "embed_dim": embed_dim,
            "num_heads": num_heads,
            "num_layers": num_layers,
            "num_positions": num_positions,
            "num_vocab": num_vocab,
            "num_classes": num_classes,
        }
        _check_sizes("GPT2", sizes)
        self.num_positions = num_positions
        self.num_heads = num_heads
        self.sos = nn.Parameter(torch.empty(embed_dim))
        self.token_embeddings = nn.Embedding(num_vocab, embed_dim)
        self.position_embeddings = nn.Embedding(num_positions, embed_dim)
        self.layers = nn.ModuleList(Block(embed_dim, num_heads) for _ in range(num_layers))
        self.ln_f = nn.LayerNorm(embed_dim)
        self.head = nn.Linear(embed_dim, num_vocab, bias=False)
        self.clf_head = nn.Linear(embed_dim, num_classes)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.sos, std=_INIT_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Each layer adds two terms to the sum, whose size should not grow with the depth.
        for name, weight in self.layers.named_parameters():
            if name.endswith(("attn.out.weight", "mlp.2.weight")):
                nn.init.normal_(weight, std=_INIT_STD / math.sqrt(2 * len(self.layers)))

    def forward(self, tokens: torch.Tensor, classify: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns logits float[T, B, num_vocab]; with classify (class logits float[B, num_classes], logits).

        Args:
            tokens: int64[T, B], T at most num_positions, values 0 to num_vocab - 1.
            classify: Also predict the class, from the mean over the last hidden layer.

        Raises:
            ConfigError: There are more pixels than positions.
        """
        check_length(self, tokens, self.num_positions)
        length, batch = tokens.shape
        hidden = torch.cat([self.sos.expand(1, batch, -1), self.token_embeddings(tokens[:-1])])
        hidden = hidden + self.position_embeddings.weight[:length, None]
        for layer in self.layers:
            hidden = layer(hidden)
        hidden = self.ln_f(hidden)
        logits: torch.Tensor = self.head(hidden)
        return (self.clf_head(hidden.mean(dim=0)), logits) if classify else logits

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Takes weights of earlier checkpoints too, which called `layers` `blocks`."""
        old = f"{prefix}blocks."
        for name in [name for name in state_dict if name.startswith(old)]:
            state_dict[f"{prefix}layers.{name.removeprefix(old)}"] = state_dict.pop(name)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def start(self, batch_size: int) -> PixelCache:
        """Returns an empty cache for `extend`, on the device of the model."""
        shape = (batch_size, self.num_heads, self.num_positions, self.sos.numel() // self.num_heads)
        pairs = [(self.sos.new_zeros(shape), self.sos.new_zeros(shape)) for _ in self.layers]
        return PixelCache([key for key, _ in pairs], [value for _, value in pairs])

    def extend(self, previous: torch.Tensor | None, cache: PixelCache) -> torch.Tensor:
        """Returns logits float[B, num_vocab] of the next pixel, as `forward` gives them; the cache grows by one.

        Args:
            previous: int64[B], the pixel before; None at the first pixel.
            cache: Of `start`; changed in place.

        Raises:
            ConfigError: The cache is full, or `previous` is missing or given at the wrong time.
        """
        place = cache.length
        if place >= self.num_positions:
            raise ConfigError(f"The cache holds {place} pixels, and GPT2 has no more positions. Begin with start().")
        if (previous is None) != (place == 0):
            raise ConfigError(f"The cache holds {place} pixels: give previous=None for the first pixel and only then.")
        token = self.sos.expand(len(cache.keys[0]), -1) if previous is None else self.token_embeddings(previous)
        hidden = (token + self.position_embeddings.weight[place])[None]
        for number, layer in enumerate(self.layers):
            hidden = layer.extend(hidden, cache.keys[number], cache.values[number], place)  # type: ignore[operator]
        cache.length += 1
        logits: torch.Tensor = self.head(self.ln_f(hidden[0]))
        return logits
