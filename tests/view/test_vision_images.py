"""What front ends make of an image is put back together by its layout, and looks like the image."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from energon_dali import SampleDecoder
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.vision_batch import batch_vision
from energon_dali.view.encoded_fields import FieldDescriber, ShownField
from tests.photographs import full_photograph

NORMALISED = {
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
    "do_rescale": True,
    "do_normalize": True,
    "do_resize": True,
    "rescale_factor": 1 / 255,
}
QWEN = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 14,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "min_pixels": 3136,
    "max_pixels": 200_000,
    "resample": 3,
}
SIGLIP = {"image_processor_type": "Siglip2ImageProcessor", "patch_size": 16, "max_num_patches": 256, "resample": 2}
LLAVA = {
    "image_processor_type": "LlavaNextImageProcessor",
    "size": {"shortest_edge": 112},
    "crop_size": {"height": 112, "width": 112},
    "image_grid_pinpoints": [[112, 224], [224, 112], [224, 224]],
    "do_center_crop": True,
    "do_pad": True,
    "resample": 3,
}


def encoded(config: dict[str, Any], tmp_path: Path) -> dict[str, ShownField]:
    """Returns the fields of one photograph of 308 x 196, and of a batch of it."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**config, **NORMALISED}))
    file = io.BytesIO()
    full_photograph("china").resize((308, 196)).save(file, "PNG")
    decoder = SampleDecoder(front_end=FrontEnd.from_processor(str(tmp_path)))
    image = decoder.decode("png", file.getvalue())
    return {field.name: field for field in FieldDescriber().describe({"image": image, **batch_vision([image])})}


def distance(png: bytes, size: tuple[int, int]) -> float:
    """Returns the mean difference of an image to the photograph, in bytes."""
    image = Image.open(io.BytesIO(png)).convert("RGB").resize(size)
    return float(np.abs(np.asarray(image, int) - np.asarray(full_photograph("china").resize(size), int)).mean())


@pytest.mark.parametrize(("config", "size"), [(QWEN, (308, 196)), (SIGLIP, (304, 208))])
def test_patches(config: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    fields = encoded(config, tmp_path)
    assert "image.layout" not in fields
    (image,) = fields["image"].images
    assert (image.width, image.height) == size
    assert distance(image.png, size) < 6
    (batched,) = fields["pixel_values"].images  # by the grid that is among the other fields
    assert (batched.width, batched.height) == size


def test_tiles_of_a_view_become_one_image(tmp_path: Path) -> None:
    overview, whole = encoded(LLAVA, tmp_path)["image"].images
    assert (overview.width, overview.height) == (112, 112)
    assert distance(overview.png, (112, 112)) < 6
    assert (whole.width, whole.height) == (224, 224)
    assert whole.note == "2 x 2 tiles put together, normalisation undone"
    inner = Image.open(io.BytesIO(whole.png)).crop((0, 41, 224, 183))
    file = io.BytesIO()
    inner.save(file, "PNG")
    assert distance(file.getvalue(), (224, 142)) < 8
