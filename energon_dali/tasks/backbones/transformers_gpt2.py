"""GPT-2 of the library transformers, built from numbers and not downloaded, as a backbone of the tasks here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from energon_dali.errors import ConfigError


@dataclass(slots=True)
class TokenCache:
    """What attention needs of the tokens so far."""

    layers: Any
    """transformers' DynamicCache."""
    batch_size: int


class SequenceGPT2(nn.Module):
    """transformers' GPT2Model with the protocol of `vision.igpt.gpt2.GPT2`: guesses each token from those before it.

    Args:
        embed_dim: Width of the model.
        num_heads: Attention heads; they share embed_dim equally.
        num_layers: Blocks.
        num_positions: Longest sequence.
        num_vocab: Values that a token can have.
        num_classes: Classes of sequences.

    Raises:
        ConfigError: transformers is not installed, or it cannot build such a model.
    """

    def __init__(
        self,
        embed_dim: int = 16,
        num_heads: int = 2,
        num_layers: int = 8,
        num_positions: int = 1024,
        num_vocab: int = 16,
        num_classes: int = 10,
    ) -> None:
        super().__init__()
        self.num_positions = num_positions
        self.model = _build(embed_dim, num_heads, num_layers, num_positions, num_vocab)
        self.sos = nn.Parameter(torch.randn(embed_dim) * 0.02)
        self.head = nn.Linear(embed_dim, num_vocab, bias=False)
        self.clf_head = nn.Linear(embed_dim, num_classes)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, classify: bool = False) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Returns logits float[T, B, num_vocab]; with classify (class logits float[B, num_classes], logits).

        Args:
            tokens: int64[T, B], T at most num_positions; `logits[t]` do not depend on tokens[t:].
            classify: Also guess the class, from the mean over the last hidden layer.

        Raises:
            ConfigError: There are more tokens than positions.
        """
        length, batch = tokens.shape
        if length > self.num_positions:
            raise ConfigError(
                f"SequenceGPT2 was given tokens of shape [{length}, {batch}] and has {self.num_positions} positions. "
                f"Sequences come first: [T, B]. Transpose them if {length} is the batch size; otherwise make it with "
                f"num_positions={length}, or give shorter sequences."
            )
        start = self.sos.expand(batch, 1, -1)
        vectors = torch.cat([start, self.model.wte(tokens[:-1].t())], dim=1)
        hidden = self.model(inputs_embeds=vectors, use_cache=False).last_hidden_state
        logits: torch.Tensor = self.head(hidden).transpose(0, 1)
        return (self.clf_head(hidden.mean(dim=1)), logits) if classify else logits

    def start(self, batch_size: int) -> TokenCache:
        """Returns an empty cache for `extend`."""
        from transformers import DynamicCache

        return TokenCache(DynamicCache(config=self.model.config), batch_size)

    def extend(self, previous: torch.Tensor | None, cache: TokenCache) -> torch.Tensor:
        """Returns logits float[B, num_vocab] of the next token, as `forward` gives them; the cache grows by one.

        Args:
            previous: int64[B], the token before; None at the first one.
            cache: Of `start`; changed in place.
        """
        vector = self.sos.expand(cache.batch_size, -1) if previous is None else self.model.wte(previous)
        hidden = self.model(
            inputs_embeds=vector[:, None], past_key_values=cache.layers, use_cache=True
        ).last_hidden_state
        logits: torch.Tensor = self.head(hidden[:, 0])
        return logits


def _build(embed_dim: int, num_heads: int, num_layers: int, num_positions: int, num_vocab: int) -> Any:
    """Returns a GPT2Model with new weights.

    Raises:
        ConfigError: transformers is not installed, or it cannot build such a model.
    """
    try:
        from transformers import GPT2Config, GPT2Model
    except ModuleNotFoundError as error:
        raise ConfigError(
            "A backbone of transformers needs that package, which is not installed. "
            'Install the extra: pip install "energon-dali[transformers]".'
        ) from error
    config = GPT2Config(
        vocab_size=num_vocab,
        n_positions=num_positions,
        n_embd=embed_dim,
        n_layer=num_layers,
        n_head=num_heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
    )
    try:
        return GPT2Model(config)
    except ValueError as error:
        raise ConfigError(
            f"transformers cannot build a GPT-2 with {embed_dim=}, {num_heads=}: {error} Change these numbers."
        ) from error
