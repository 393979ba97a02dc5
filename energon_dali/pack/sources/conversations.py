"""Conversations about images, as LLaVA stores them: a list of {id, image, conversations: [{from, value}]}."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.pack.options import AUTO, PackOptions
from energon_dali.pack.record import JsonPart, Part, SkipRecord
from energon_dali.pack.sources.table import RowSource, first_rows
from energon_dali.shards.meta.dataset_config import CRUDE

TURNS = ("conversations", "messages", "conversation")
"""Fields that hold the turns."""
_MEDIA = (("image", ""), ("images", ""), ("video", ""), ("videos", "video."), ("audio", ""), ("audios", "audio."))
"""Fields that name files, and what their parts begin with if there are several."""
_SPEAKERS = {"human": "question", "user": "question", "gpt": "answer", "assistant": "answer", "system": "system"}
_PLACEHOLDERS = ("<image>", "<video>")


def is_conversation(row: Mapping[str, Any]) -> bool:
    """Returns whether a row holds turns of a conversation."""
    return any(isinstance(row.get(name), list) for name in TURNS)


class ConversationSource(RowSource):
    """A JSON or JSONL file of conversations.

    Args:
        path: Absolute path of the file.
        options: What the user chose.

    Raises:
        ConfigError: The sample type does not fit conversations.
        DatasetFormatError: The file cannot be understood.
        StorageError: It cannot be opened.
    """

    kind = "conversations"

    def __init__(self, path: str, options: PackOptions) -> None:
        super().__init__(path, options)
        chosen = {role: options.columns[role] for role in ("image", "video", "audio") if role in options.columns}
        self._fields = {**{field: field for field, _ in _MEDIA}, **chosen}
        self.sample_type = CRUDE if options.sample_type == AUTO else options.sample_type
        if self.sample_type not in (CRUDE, "VQASample"):
            raise ConfigError(
                f"Conversations become {CRUDE}, or VQASample if each has one question and one answer; "
                f"{self.sample_type} was given."
            )
        first_rows(path)

    def describe(self) -> list[str]:
        return [f"Paths are relative to {self._media_root}"]

    def _parts(self, row: dict[str, Any]) -> list[Part]:
        if not is_conversation(row):
            raise SkipRecord(f"it has none of the lists {', '.join(TURNS)}")
        return [*self._media(row), JsonPart("json", self._document(row))]

    def _media(self, row: dict[str, Any]) -> list[Part]:
        parts: list[Part] = []
        for field, start in _MEDIA:
            value = row.get(self._fields[field])
            if value is None or value == "" or value == []:
                continue
            if isinstance(value, list):
                for index, item in enumerate(value):
                    # Some programs write {"image": {"path": ...}}, others the path alone.
                    path = item.get("path") if isinstance(item, dict) else item
                    parts.append(self._look_up(f"{start}{index}.", path))
            else:
                parts.append(self._look_up("", value))
        if self.sample_type == "VQASample" and len(parts) != 1:
            raise SkipRecord(f"it has {len(parts)} files, and a VQASample has one image")
        return parts

    def _document(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the part `json`: the whole row, and for VQASample also the question and the answers."""
        if self.sample_type == CRUDE:
            return row
        turns = next(row[name] for name in TURNS if isinstance(row.get(name), list))
        said: dict[str, list[str]] = {"question": [], "answer": [], "system": []}
        for turn in turns:
            speaker = turn.get("from", turn.get("role")) if isinstance(turn, dict) else None
            text = turn.get("value", turn.get("content")) if isinstance(turn, dict) else None
            if speaker not in _SPEAKERS or not isinstance(text, str):
                raise SkipRecord("a turn is not {from: human or gpt, value: text}")
            said[_SPEAKERS[speaker]].append(text)
        if len(said["question"]) != 1 or len(said["answer"]) != 1:
            raise SkipRecord("it does not have exactly one question and one answer, which a VQASample needs")
        question = said["question"][0]
        for placeholder in _PLACEHOLDERS:
            question = question.replace(placeholder, "")
        return {**row, "question": question.strip(), "answers": said["answer"]}
