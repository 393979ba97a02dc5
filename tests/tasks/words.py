"""A tokenizer of transformers, made here and saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def save_word_tokenizer(folder: Path, words: Sequence[str]) -> None:
    """Saves a tokenizer with a token per word: 0 pads, 1 begins, 2 ends, words from 3 on, and one for all others."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    names = ["[PAD]", "[BOS]", "[EOS]", *words, "[UNK]"]
    tokenizer = Tokenizer(WordLevel({name: number for number, name in enumerate(names)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    special = {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
