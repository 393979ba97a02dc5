"""Makes captioning samples of crude ones, so that shards of images and texts need no field map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from energon_dali.decode import MediaHandle
from energon_dali.errors import DatasetError
from energon_dali.samples import CaptioningSample, CrudeSample
from energon_dali.task_encoder import basic_sample_keys
from energon_dali.task_encoder.stateless import stateless

CAPTION_PARTS = ("txt", "caption", "text")
"""Parts that may be the caption, also fields of a part `json`; the first that is there is taken."""


@stateless
def cook_caption(sample: CrudeSample) -> CaptioningSample:
    """Returns the first image of a crude sample with its caption.

    Args:
        sample: Its image is a handle, or uint8[H, W, 3].

    Raises:
        DatasetError: It has no image, or no caption.
    """
    parts = {name: value for name, value in sample.items() if not name.startswith("__")}
    image = next((value for value in parts.values() if _is_image(value)), None)
    described = {**value, **parts} if isinstance(value := parts.get("json"), Mapping) else parts
    caption = next((described[name] for name in CAPTION_PARTS if isinstance(described.get(name), str)), None)
    if image is None or caption is None:
        missing = "image" if image is None else f"caption ({', '.join(CAPTION_PARTS)}, also in json)"
        raise DatasetError(
            f"Sample {sample['__key__']} has no {missing}; its parts are {', '.join(parts)}. Prepare the dataset as "
            "CaptioningSample with a field map that names its parts."
        )
    return CaptioningSample(**basic_sample_keys(sample), image=image, caption=caption)


def _is_image(value: Any) -> bool:
    return isinstance(value, MediaHandle) or len(getattr(value, "shape", ())) == 3
