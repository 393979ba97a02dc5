"""The sample type of a packed dataset: chosen by what the source has, and written into `dataset.yaml`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from energon_dali.decode.part_kind import find_part_kind
from energon_dali.errors import ConfigError
from energon_dali.pack.files import AUDIO_SUFFIXES
from energon_dali.shards.meta.dataset_config import CRUDE, crude_config, sample_config

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
