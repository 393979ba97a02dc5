"""Tokenizers of transformers."""

from __future__ import annotations

from typing import Any

from energon_dali.errors import ConfigError


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
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            "tokenizer=autotokenizer needs the package transformers, which is not installed. Install the extra: "
            'pip install "energon-dali[transformers]".'
        ) from error
    try:
        return AutoTokenizer.from_pretrained(name, use_fast=use_fast, local_files_only=local_files_only, **options)
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
