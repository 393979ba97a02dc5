"""Reads conversations as datasets store them: messages with roles, or LLaVA's turns with placeholders in their text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from energon_dali.errors import DatasetError

Message: TypeAlias = dict[str, Any]

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
"""Speakers of LLaVA's format and of its relatives, and their roles."""
_FIELDS = ("messages", "conversations", "conversation")
"""Fields of a JSON that hold a conversation."""
_PLACEHOLDER = re.compile(r"\s*<(image|video|audio|sound|speech)>\s*")
_KINDS = {"image": "image", "video": "video", "audio": "audio", "sound": "audio", "speech": "audio"}


def read_messages(conversation: Any) -> list[Message]:
    """Returns a conversation as messages with a role and a content, as chat templates of transformers take them.

    Messages with a `role` stay as they are, but for keys whose value is None, which are left out, and images of the
    type "image_url", which become "image". Turns with `from` and `value` (LLaVA's format) become messages whose content
    is a list of texts and media: each `<image>`, `<video>` or `<audio>` is a medium, without the white space around it.

    Args:
        conversation: A list of messages or turns, or a mapping with one in `messages` or `conversations`.

    Raises:
        DatasetError: It is something else, is empty, a turn has an unknown speaker, or a content is neither a text nor
            a list of blocks.
    """
    if isinstance(conversation, Mapping):
        name = next((name for name in _FIELDS if name in conversation), None)
        if name is None:
            raise DatasetError(
                f"A conversation has the fields {', '.join(map(str, conversation))}. One of {', '.join(_FIELDS)} must "
                "hold the list of its messages."
            )
        conversation = conversation[name]
    if not isinstance(conversation, Sequence) or isinstance(conversation, (str, bytes)) or not conversation:
        raise DatasetError(f"A conversation is {conversation!r}. It must be a list of at least one message.")
    return [_message(turn) for turn in conversation]


def _message(turn: Any) -> Message:
    if isinstance(turn, Mapping) and isinstance(turn.get("role"), str):
        message = {name: value for name, value in turn.items() if value is not None}
        if isinstance(message.get("content"), (list, tuple)):
            message["content"] = [_block(block) for block in message["content"]]
        if message["role"] != "tool" and "content" in message:  # a tool may return anything
            _check_content(message["content"])
        return message
    if isinstance(turn, Mapping) and isinstance(turn.get("from"), str) and isinstance(turn.get("value"), str):
        role = _ROLES.get(turn["from"].lower())
        if role is None:
            raise DatasetError(
                f"A turn of a conversation is from {turn['from']!r}. Known are {', '.join(_ROLES)}. Rename it in a "
                "cooker, or in preencode_sample."
            )
        return {"role": role, "content": list(_blocks(turn["value"]))}
    raise DatasetError(
        f"A message of a conversation is {turn!r}. It must have a role and a content, or from and value with texts."
    )


def _check_content(content: Any) -> None:
    """Checks what templates would write as "None", or leave out without a word."""
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise DatasetError(f"The content of a message is {content!r}. It must be a text, or a list of blocks.")
    for block in content:
        if not isinstance(block, Mapping):
            raise DatasetError(
                f'A block of a message is {block!r}. It must be a mapping such as {{"type": "text", "text": "..."}} or '
                '{"type": "image"}.'
            )
        text = block.get("text", block.get("content"))
        if block.get("type") == "text" and not isinstance(text, str):
            raise DatasetError(f'A block of a message is {block!r}. The text of a block of the type "text" is missing.')


def media_kinds(messages: Sequence[Message]) -> set[str]:
    """Returns the kinds of media in the blocks of messages: "image", "video" and "audio".

    Args:
        messages: What `read_messages` returned.
    """
    contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
    types = {block.get("type") for blocks in contents for block in blocks if isinstance(block, Mapping)}
    return {kind for kind in ("image", "video", "audio") if types & {kind, f"{kind}_url", f"input_{kind}"}}


def _block(block: Any) -> Any:
    if isinstance(block, Mapping) and block.get("type") == "image_url" and "image_url" in block:
        found = block["image_url"]
        return {"type": "image", "url": found.get("url", "") if isinstance(found, Mapping) else found}
    return block


def _blocks(text: str) -> Iterator[Message]:
    """Yields the texts and media of a turn in LLaVA's format."""
    start = 0
    for match in _PLACEHOLDER.finditer(text):
        if match.start() > start:
            yield {"type": "text", "text": text[start : match.start()]}
        yield {"type": _KINDS[match[1]]}
        start = match.end()
    if start < len(text) or not text:
        yield {"type": "text", "text": text[start:]}
