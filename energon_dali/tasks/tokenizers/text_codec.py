"""What tasks need of a tokenizer, whoever made it: text to tokens and back, and tokens for begin, end and padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from energon_dali.errors import ConfigError


class Tokenizer(Protocol):
    """The part of a tokenizer that is used: of ByteTokenizer, or of one from transformers."""

    def __len__(self) -> int: ...

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text."""

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        """Returns the text of token ids."""


class TextCodec:
    """A tokenizer with all three special tokens, also where it lacks some.

    A missing beginning is the classification token or the end, a missing end the separator, a missing padding the end:
    padding is never predicted, so that it may be any token.

    Args:
        tokenizer: `len()`, `encode` and `decode`, and `bos_token_id`, `eos_token_id`, ... as far as it has them.

    Raises:
        ConfigError: It has neither an end nor a separator.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        end = _first_token(tokenizer, "eos_token_id", "sep_token_id")
        if end is None:
            raise ConfigError(
                f"{type(tokenizer).__name__} has neither eos_token nor sep_token, so that no text could end. Give one "
                'when it is loaded, such as tokenizer.eos_token="</s>", or take tokenizer=byte.'
            )
        self.end = end
        begin = _first_token(tokenizer, "bos_token_id", "cls_token_id")
        padding = _first_token(tokenizer, "pad_token_id")
        self.begin = end if begin is None else begin
        self.padding = end if padding is None else padding

    def __len__(self) -> int:
        return len(self.tokenizer)

    def encode(self, text: str, max_tokens: int | None = None) -> list[int]:
        """Returns beginning, text and end.

        Args:
            text: What is encoded.
            max_tokens: Tokens of the text at most, without beginning and end; the rest is cut off.
        """
        return [self.begin, *self.tokenizer.encode(text, add_special_tokens=False)[:max_tokens], self.end]

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text without special tokens, up to the end."""
        tokens = list(token_ids)
        tokens = tokens[1:] if tokens[:1] == [self.begin] else tokens
        tokens = tokens[: tokens.index(self.end)] if self.end in tokens else tokens
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def _first_token(tokenizer: Tokenizer, *names: str) -> int | None:
    """Returns the first of several special tokens that the tokenizer has."""
    return next((int(token) for name in names if (token := getattr(tokenizer, name, None)) is not None), None)
