"""A GPT-2 of transformers as a backbone of the captioning task."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from energon_dali.errors import ConfigError


class TransformersGPT2(nn.Module):
    """A GPT-2 of transformers, with fresh weights from a config or with those of a local folder.

    Args:
        num_vocab: Number V of tokens.
        num_positions: Positions of a text, from 0 on.
        pretrained: Folder with the weights of a GPT-2, whose sizes count then; None makes new weights. Nothing is
            downloaded.
        embed_dim: Length E of a vector.
        num_heads: Heads of attention.
        num_layers: Blocks.
        dropout: Share that is dropped in training.

    Raises:
        ConfigError: transformers is not installed, or the weights have fewer tokens or positions than the data.
    """

    def __init__(
        self, num_vocab: int, num_positions: int, *, pretrained: str | None = None, embed_dim: int = 96,
        num_heads: int = 4, num_layers: int = 4, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        try:
            from transformers import GPT2Config, GPT2LMHeadModel
        except ImportError as error:
            raise ConfigError(
                "TransformersGPT2 needs the package transformers, which is not installed. Install the extra: "
                'pip install "energon-dali[transformers]".'
            ) from error
        super().__init__()
        if pretrained is None:
            config = GPT2Config(
                vocab_size=num_vocab, n_positions=num_positions, n_embd=embed_dim, n_head=num_heads,
                n_layer=num_layers, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, use_cache=False,
                bos_token_id=None, eos_token_id=None,
            )  # fmt: skip
            self.model: Any = GPT2LMHeadModel(config)
        else:
            self.model = GPT2LMHeadModel.from_pretrained(pretrained, local_files_only=True)
            self.model.train()  # loaded models are in eval mode, new ones in train mode
        config = self.model.config
        if config.vocab_size < num_vocab or config.n_positions < num_positions:
            raise ConfigError(
                f"The weights in {pretrained} know {config.vocab_size} tokens and {config.n_positions} positions, the "
                f"data has {num_vocab} and {num_positions}. Take their own tokenizer (tokenizer=autotokenizer), or a "
                "smaller max_caption_tokens."
            )
        self.num_vocab, self.embed_dim = config.vocab_size, config.n_embd

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
