"""Tokenizers that need no download, those of transformers, and what tasks see of any tokenizer."""

from __future__ import annotations

from energon_dali.tasks.tokenizers.byte import ByteTokenizer
from energon_dali.tasks.tokenizers.pretrained import pretrained_tokenizer
from energon_dali.tasks.tokenizers.text_codec import TextCodec, Tokenizer

__all__ = ["ByteTokenizer", "TextCodec", "Tokenizer", "pretrained_tokenizer"]
