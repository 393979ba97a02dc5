"""What tasks see of any tokenizer, one that needs no download, and those of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

from energon_dali.calls import import_extra
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch


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


def pretrained_tokenizer(
    pretrained_model_name_or_path: str | None = None,
    *,
    use_fast: bool = True,
    local_files_only: bool = True,
    **options: Any,
) -> Any:
    """Returns the tokenizer that transformers' AutoTokenizer makes of a folder or of a name of the hub.

    Args:
        pretrained_model_name_or_path: Folder that a tokenizer was saved to, or a name of the hub.
        use_fast: Take the tokenizer in Rust where there is one.
        local_files_only: Take a name of the hub only from transformers' cache; False downloads what is not there.
        **options: What else `AutoTokenizer.from_pretrained` takes.

    Raises:
        ConfigError: There is no name, transformers is not installed, or there is no such tokenizer.
    """
    name = pretrained_model_name_or_path
    if not name:
        raise ConfigError(
            "tokenizer.pretrained_model_name_or_path has no value, and the backbone has none to share. Add "
            "tokenizer.pretrained_model_name_or_path=FOLDER to the command, or choose tokenizer=byte."
        )
    auto = import_extra("transformers", "tokenizer=autotokenizer", "transformers").AutoTokenizer
    try:
        return auto.from_pretrained(name, use_fast=use_fast, local_files_only=local_files_only, **options)
    except (OSError, ValueError, KeyError, ImportError) as error:
        how = (
            "Nothing is downloaded; with a network, tokenizer.local_files_only=false fetches it from the hub."
            if local_files_only
            else "Check the name and the network."
        )
        raise ConfigError(
            f"tokenizer.pretrained_model_name_or_path={name} cannot be read as a tokenizer: "
            f"{str(error).partition(chr(10))[0]} Give a folder that save_pretrained wrote a tokenizer to, or a name of "
            f"the hub that is in transformers' cache. {how}"
        ) from error
