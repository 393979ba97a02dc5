"""The options that decide the bytes of the shards, and the sample types that are chosen or named.

An interrupted run continues only with the same values of the options.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from energon_dali.calls import describe_nearest
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError
from energon_dali.pack.files import AUDIO_SUFFIXES
from energon_dali.shards.meta.dataset_config import CRUDE, crude_config, sample_config

Kind = Literal["auto", "folder", "table", "conversations", "hugging-face", "tars"]
KINDS: tuple[Kind, ...] = ("auto", "folder", "table", "conversations", "hugging-face", "tars")
ROLES = ("key", "image", "video", "audio", "caption", "question", "answers", "label")
"""The roles that a column can have."""
AUTO = "auto"
MAX_SAMPLES = 10_000
MAX_BYTES = 256 << 20

NEEDS: dict[str, tuple[str, ...]] = {
    "VQASample": ("image", "question"),
    "VidQASample": ("video", "question"),
    "CaptioningSample": ("image", "caption"),
    "ImageClassificationSample": ("image", "label"),
    "ImageSample": ("image",),
    "TextSample": ("caption",),
    CRUDE: (),
}
"""The sample types that are written, most special first, and the roles that each sample must have."""
_ONE_IMAGE = ("CaptioningSample", "ImageClassificationSample", "ImageSample", "VQASample")
_PART = re.compile(r"[A-Za-z0-9_]+\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """What decides the bytes of the shards.

    Raises:
        ConfigError: A value is invalid.
    """

    kind: Kind = "auto"
    """Kind of the source; "auto" detects it."""
    max_samples: int = MAX_SAMPLES
    """Most samples in a shard."""
    max_bytes: int = MAX_BYTES
    """Largest shard in bytes. A larger sample gets a shard of its own. Rows of Parquet files count with the average
    size of their row group."""
    split: tuple[tuple[str, float | str], ...] = ()
    """(part, weight) pairs, or (part, pattern of keys) pairs. Without any, the source's own split is kept, or all is
    train."""
    split_seed: int = 0
    """Seed of a split by weights."""
    shuffle: int | None = None
    """Seed of the order; None keeps the order of the source."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Column of each role; see `ROLES`. Roles that are not named are guessed."""
    metadata: tuple[str, ...] | None = None
    """Columns that go into the part `json`; None is all that have no role as media."""
    sample_type: str = AUTO
    """Name of the sample type; "auto" chooses."""
    media_root: str = ""
    """Folder that paths in a table are relative to; "" is the folder of the table."""
    allow_outside: bool = False
    """Also pack files outside the source that a table or a symbolic link names."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"kind={self.kind!r} is not known. Give one of {', '.join(KINDS)}.")
        for name in ("max_samples", "max_bytes"):
            if not getattr(self, name) >= 1:
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid: give a number of at least 1.")
        for role in self.columns:
            if role not in ROLES:
                raise ConfigError(
                    f"The role {role!r} of a column is not known. {describe_nearest(role, ROLES)} Write columns as "
                    "ROLE=COLUMN, such as image=file_name."
                )
        if self.sample_type not in (AUTO, *NEEDS):
            raise ConfigError(
                f"The sample type {self.sample_type!r} cannot be packed. Give one of {', '.join((AUTO, *NEEDS))}. "
                "For any other, pack a CrudeWebdataset and make the samples in a cooker."
            )
        _check_split(self.split)

    def as_plain(self) -> dict[str, Any]:
        """Returns the options as values of JSON."""
        return {**asdict(self), "columns": dict(sorted(self.columns.items()))}


def _check_split(split: tuple[tuple[str, float | str], ...]) -> None:
    weights = [rule for _, rule in split if not isinstance(rule, str)]
    if weights and len(weights) < len(split):
        raise ConfigError("The split mixes weights and patterns. Give train=0.9,val=0.1, or NAME:PATTERN for each.")
    if weights and not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
        raise ConfigError(f"The split {dict(split)} is invalid: give weights of at least 0 with a positive sum.")
    if weights and len({part for part, _ in split}) < len(split):
        raise ConfigError(f"The split {split} names a part twice. Give each part one weight.")
    for part, rule in split:
        if not _PART.match(part):
            raise ConfigError(
                f"The part {part!r} of the split is invalid: its name begins the names of its shards, so give letters, "
                "digits and underscores."
            )
        if isinstance(rule, str):
            try:
                re.compile(rule)
            except re.error as error:
                raise ConfigError(
                    f"The pattern {rule!r} of the part {part!r} is not a regular expression: {error}."
                ) from error


def parse_split(texts: tuple[str, ...]) -> tuple[tuple[str, float | str], ...]:
    """Returns the rules of a split from the command line: `train=0.9,val=0.1`, or `NAME:PATTERN` once per rule.

    Raises:
        ConfigError: It has another form.
    """
    rules: list[tuple[str, float | str]] = []
    for text in texts:
        name, colon, pattern = text.partition(":")
        if colon and "=" not in name:
            rules.append((name.strip(), pattern))
            continue
        for pair in text.split(","):
            name, _equals, weight = pair.partition("=")
            try:
                rules.append((name.strip(), float(weight)))
            except ValueError:
                raise ConfigError(
                    f"The split {text!r} cannot be understood. Write weights as train=0.9,val=0.1, or patterns of keys "
                    "as --split 'val:val/.*' --split 'train:.*'."
                ) from None
    return tuple(rules)


def parse_columns(texts: tuple[str, ...]) -> dict[str, str]:
    """Returns the columns of roles from `image=file_name,caption=title`.

    Raises:
        ConfigError: It has another form.
    """
    columns = {}
    for pair in (pair for text in texts for pair in text.split(",")):
        role, equals, column = pair.partition("=")
        if not equals or not column.strip():
            raise ConfigError(f"--columns {pair!r} cannot be understood. Write ROLE=COLUMN, such as image=file_name.")
        columns[role.strip()] = column.strip()
    return columns


def choose_sample_type(roles: Collection[str], asked: str = "auto") -> str:
    """Returns the name of a sample type for which the roles suffice.

    Args:
        roles: The roles that samples have.
        asked: The name that the user gave, or "auto".

    Raises:
        ConfigError: The roles do not suffice for the requested type.
    """
    if asked != "auto":
        missing = [role for role in NEEDS[asked] if role not in roles]
        if missing:
            found = ", ".join(sorted(roles)) or "nothing that is known"
            raise ConfigError(
                f"{asked} needs {' and '.join(NEEDS[asked])}, but the source has {found}. Name the column with "
                f"--columns {missing[0]}=COLUMN, or choose another --sample-type."
            )
        return asked
    for name, needed in NEEDS.items():
        if not set(needed) <= set(roles):
            continue
        if name in _ONE_IMAGE and ("video" in roles or "audio" in roles):
            continue  # it would lose them
        if name == "TextSample" and set(roles) & {"image", "video", "audio", "label", "question"}:
            continue
        return name
    return CRUDE


def make_dataset_config(sample_type: str, part_names: Iterable[str], *, caption: str = "txt") -> dict[str, Any]:
    """Returns the content of `dataset.yaml`.

    Args:
        sample_type: One of `NEEDS`.
        part_names: All parts that the shards have.
        caption: The part of the caption, such as "txt" or "json[caption]".
    """
    if sample_type == CRUDE:
        return crude_config()
    names = sorted(name for name in part_names if "." not in name)
    images = [name for name in names if find_part_kind(name)[0] == "image"]
    videos = [name for name in names if find_part_kind(name)[0] == "av" and name not in AUDIO_SUFFIXES]
    fields: dict[str, str] = {}
    if sample_type == "TextSample":
        fields["text"] = caption
    elif sample_type == "VidQASample":
        fields["video"] = ",".join(videos)
    else:
        fields["image"] = ",".join(images)
    if sample_type == "CaptioningSample":
        fields["caption"] = caption
    elif sample_type in ("VQASample", "VidQASample"):
        fields |= {"context": "json[question]", "answers": "json[answers]"}
    elif sample_type == "ImageClassificationSample":
        fields |= {"label": "cls"} if "cls" in names else {}
        fields |= {"label_name": "json[label_name]"} if "json" in names else {}
    return sample_config(sample_type, fields)
