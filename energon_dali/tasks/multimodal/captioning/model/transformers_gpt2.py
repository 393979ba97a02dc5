"""A GPT-2 of transformers as a backbone of the captioning task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from energon_dali.errors import ConfigError


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
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ImportError as error:
            raise ConfigError(
                "TransformersGPT2 needs the package transformers, which is not installed. Install the extra: "
                'pip install "energon-dali[transformers]".'
            ) from error
        super().__init__()
        self.model: Any
        newer = pretrained_model_name_or_path is not None
        folder = pretrained_model_name_or_path if newer else pretrained
        if folder is None:
            sizes = {
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
            self.model = GPT2LMHeadModel(GPT2Config(**(sizes if config is None else config)))
        else:
            try:
                self.model = GPT2LMHeadModel.from_pretrained(folder, local_files_only=True)
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
                f"The weights in {folder} know {made.vocab_size} tokens and {made.n_positions} positions, the "
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
