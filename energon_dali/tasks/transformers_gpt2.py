"""GPT-2 of the library transformers as a backbone of the tasks here: over tokens, and over vectors before a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from energon_dali.calls import import_extra
from energon_dali.errors import ConfigError
from energon_dali.tasks.vision.gpt2 import check_length


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
        sizes = _sizes(num_vocab, num_positions, embed_dim, num_heads, num_layers)
        self.model = _new_model(import_extra("transformers", "SequenceGPT2", "transformers").GPT2Model, sizes)
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
        check_length(self, tokens, self.num_positions)
        start = self.sos.expand(tokens.shape[1], 1, -1)
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


def _sizes(
    num_vocab: int, num_positions: int, embed_dim: int, num_heads: int, num_layers: int, dropout: float = 0.0
) -> dict[str, Any]:
    """Returns arguments of GPT2Config."""
    return {
        "vocab_size": num_vocab,
        "n_positions": num_positions,
        "n_embd": embed_dim,
        "n_head": num_heads,
        "n_layer": num_layers,
        "resid_pdrop": dropout,
        "embd_pdrop": dropout,
        "attn_pdrop": dropout,
        "use_cache": False,
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _new_model(kind: type[Any], sizes: Mapping[str, Any]) -> Any:
    """Returns a model with new weights.

    Raises:
        ConfigError: transformers cannot build such a model.
    """
    try:
        return kind(kind.config_class(**sizes))
    except ValueError as error:
        raise ConfigError(
            f"transformers cannot build a GPT-2 with embed_dim={sizes.get('n_embd')}, "
            f"num_heads={sizes.get('n_head')}: {error} Change these numbers."
        ) from error


class TransformersGPT2(nn.Module):
    """A GPT-2 of transformers, with fresh weights from a config or with those of a local folder.

    Args:
        num_vocab: Number V of tokens.
        num_positions: Positions of a text, from 0 on.
        pretrained_model_name_or_path: Folder with the weights of a GPT-2, or a name of the hub that is in the cache of
            transformers. Its sizes count then; None makes new weights. Nothing is downloaded.
        embed_dim: Length E of a vector.
        num_heads: Heads of attention.
        num_layers: Blocks.
        dropout: Share that is dropped in training.
        config: What GPT2Config takes, in place of the sizes: a checkpoint has it, so that a model that began with the
            weights of a folder can be made without the folder.
        pretrained: The older name of pretrained_model_name_or_path.

    Raises:
        ConfigError: transformers is not installed, there are no such weights, or they have fewer tokens or positions
            than the data.
    """

    def __init__(
        self,
        num_vocab: int,
        num_positions: int,
        *,
        pretrained_model_name_or_path: str | None = None,
        embed_dim: int = 96,
        num_heads: int = 4,
        num_layers: int = 4,
        dropout: float = 0.0,
        config: Mapping[str, Any] | None = None,
        pretrained: str | None = None,
    ) -> None:
        kind = import_extra("transformers", "TransformersGPT2", "transformers").GPT2LMHeadModel
        super().__init__()
        self.model: Any
        newer = pretrained_model_name_or_path is not None
        folder = pretrained_model_name_or_path if newer else pretrained
        if folder is None:
            sizes = _sizes(num_vocab, num_positions, embed_dim, num_heads, num_layers, dropout)
            self.model = _new_model(kind, sizes if config is None else config)
        else:
            try:
                self.model = kind.from_pretrained(folder, local_files_only=True)
            except OSError as error:
                name = "pretrained_model_name_or_path" if newer else "pretrained"
                raise ConfigError(
                    f"backbone.{name}={folder} cannot be read: {error} Give a folder that save_pretrained wrote a "
                    "GPT-2 to."
                ) from error
            self.model.train()  # loaded models are in eval mode, new ones in train mode
        made = self.model.config
        if made.vocab_size < num_vocab or made.n_positions < num_positions:
            raise ConfigError(
                f"The weights in {folder} are for {made.vocab_size} tokens and {made.n_positions} positions, the "
                f"data has {num_vocab} and {num_positions}. Take their own tokenizer (tokenizer=autotokenizer), or a "
                "smaller max_caption_tokens."
            )
        self.num_vocab, self.embed_dim = made.vocab_size, made.n_embd
        self._sized_by_config = folder is not None or config is not None

    def checkpoint_arguments(self) -> dict[str, Any]:
        """Returns arguments that make such a model without the folder of its first weights, as plain values.

        A checkpoint has them, and the weights. Empty where there was no folder.
        """
        if not self._sized_by_config:
            return {}
        return {"pretrained_model_name_or_path": None, "pretrained": None, "config": self.model.config.to_diff_dict()}

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Returns the vectors float[..., E] of tokens int64[...], without positions."""
        vectors: torch.Tensor = self.model.transformer.wte(token_ids)
        return vectors

    def forward(
        self, inputs_embeds: torch.Tensor, position_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> torch.Tensor:
        """Returns logits float[R, L, V]; arguments as in PrefixBackbone."""
        # As numbers to add, which every attention of transformers takes; a mask with four axes is used as it is.
        added = torch.zeros_like(attention_mask, dtype=inputs_embeds.dtype)
        added.masked_fill_(~attention_mask, torch.finfo(added.dtype).min)
        logits: torch.Tensor = self.model(
            inputs_embeds=inputs_embeds, position_ids=position_ids, attention_mask=added, use_cache=False
        ).logits
        return logits
