"""A tokenizer whose tokens are the bytes of UTF-8: nothing to train, nothing to download, nothing unknown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch

BYTES = 256
"""Token ids below are bytes; the special tokens follow."""


class ByteTokenizer:
    """Turns text into the bytes of its UTF-8 form and back, with the names that tokenizers of transformers have.

    Token ids 0 to 255 are bytes, then come padding, beginning and end.
    """

    pad_token_id = BYTES
    """Fills rows that are not full."""
    bos_token_id = BYTES + 1
    """Begins a text."""
    eos_token_id = BYTES + 2
    """Ends a text."""
    vocab_size = BYTES + 3
    """Number of token ids."""
    special_tokens = ("<pad>", "<bos>", "<eos>")
    """How the special tokens look in text, from `pad_token_id` on."""

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"ByteTokenizer(vocab_size={self.vocab_size})"

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the token ids of a text.

        Args:
            text: Any text; half of a surrogate pair, which UTF-8 has no form for, becomes "?".
            add_special_tokens: Put beginning and end around it.
        """
        content = list(text.encode("utf-8", "replace"))
        return [self.bos_token_id, *content, self.eos_token_id] if add_special_tokens else content

    def decode(self, token_ids: Iterable[int] | torch.Tensor, skip_special_tokens: bool = True) -> str:
        """Returns the text of token ids; bytes that are not UTF-8 become the replacement character.

        Args:
            token_ids: Whole numbers, or a tensor with one axis.
            skip_special_tokens: Leave special tokens out; else they are written as "<bos>".

        Raises:
            ConfigError: There is no such token.
        """
        content = bytearray()
        for token in token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids:
            if 0 <= token < BYTES:
                content.append(token)
            elif not BYTES <= token < self.vocab_size:
                raise ConfigError(f"Token {token} cannot be decoded: ByteTokenizer has 0 to {self.vocab_size - 1}.")
            elif not skip_special_tokens:
                content += self.special_tokens[token - BYTES].encode()
        return content.decode("utf-8", "replace")

    def batch_decode(self, sequences: Iterable[Any], skip_special_tokens: bool = True) -> list[str]:
        """Returns the texts of several sequences of token ids.

        Raises:
            ConfigError: There is no such token.
        """
        return [self.decode(sequence, skip_special_tokens) for sequence in sequences]

    def __call__(
        self,
        text: str | Sequence[str],
        *,
        add_special_tokens: bool = True,
        padding: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        return_tensors: Literal["pt"] | None = None,
    ) -> dict[str, Any]:
        """Returns {"input_ids", "attention_mask"} of a text or of several: lists, or int64[n, longest] tensors.

        Args:
            text: One text or several.
            add_special_tokens: Put beginning and end around each.
            padding: Pad to the longest, on the right.
            truncation: Cut what is longer than `max_length`, from the end.
            max_length: Tokens of a text at most, with truncation.
            return_tensors: "pt" gives torch tensors.

        Raises:
            ConfigError: Truncation has no length, or texts of different lengths were to be one tensor.
        """
        if truncation and (max_length is None or max_length < 1):
            raise ConfigError(f"truncation=True with {max_length = }: give a number of tokens from 1 on.")
        if return_tensors not in (None, "pt"):
            raise ConfigError(f'{return_tensors = } is unknown: give "pt" for torch tensors, or None for lists.')
        one = isinstance(text, str)
        rows = [self.encode(each, add_special_tokens) for each in ([text] if isinstance(text, str) else text)]
        if truncation:
            rows = [row[:max_length] for row in rows]
        lengths = [len(row) for row in rows]
        if return_tensors and not padding and len(set(lengths)) > 1:
            raise ConfigError(
                f"Texts of {min(lengths)} to {max(lengths)} tokens do not form a tensor: give padding=True."
            )
        longest = max(lengths, default=0) if padding else 0
        masks = [[1] * length + [0] * (longest - length) for length in lengths]
        rows = [row + [self.pad_token_id] * (longest - len(row)) for row in rows]
        if return_tensors:
            import torch

            return {"input_ids": torch.tensor(rows), "attention_mask": torch.tensor(masks)}
        return {"input_ids": rows[0] if one else rows, "attention_mask": masks[0] if one else masks}
