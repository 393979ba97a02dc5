"""Several images of one size, arranged at once as on a GPU, are arranged as each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from energon_dali import FrontEnd
from energon_dali.decode.front_ends.resampling import Pixels

_SMALL = {"size": {"height": 28, "width": 28}}
_CONFIGS = {
    "AriaImageProcessor": {"max_image_size": 490, "split_image": True, "split_resolutions": [[490, 980]]},
    "Cohere2VisionImageProcessor": _SMALL,
    "Cosmos3EdgeImageProcessor": {"size": {"shortest_edge": 400, "longest_edge": 6000}, "patch_size": 8},
    "DeepseekOcr2ImageProcessor": {**_SMALL, "tile_size": 20},
    "DeepseekVLHybridImageProcessor": {**_SMALL, "high_res_size": {"height": 40, "width": 40}},
    "DeepseekVLImageProcessor": _SMALL,
    "Emu3ImageProcessor": {"min_pixels": 400, "max_pixels": 6000},
    "Gemma4ImageProcessor": {"patch_size": 4, "max_soft_tokens": 70},
    "Glm5NextImageProcessor": {"max_image_tokens": 20},
    "GraniteDoclingImageProcessor": _SMALL,
    "HunYuanVLImageProcessor": {"size": {"shortest_edge": 400, "longest_edge": 6000}},
    "Idefics2ImageProcessor": {"size": {"shortest_edge": 20, "longest_edge": 60}, "do_image_splitting": True},
    "Kimi_K25ImageProcessor": {"size": {"max_height": 4, "max_width": 4}},
    "Lfm2VlImageProcessor": {"tile_size": 32, "encoder_patch_size": 4, "min_image_tokens": 4, "max_image_tokens": 16},
    "Llama4ImageProcessor": {**_SMALL, "max_patches": 4},
    "MiniCPMV4_6ImageProcessor": {"scale_resolution": 30, "patch_size": 4},
    "Molmo2ImageProcessor": {**_SMALL, "patch_size": 4, "overlap_margins": [1, 1]},
    "MuseGlimmerImageProcessor": {"max_image_tokens": 12},
    "NemotronH_Omni_Reasoning_V3ImageProcessor": {"patch_size": 4, "min_num_patches": 9, "max_num_patches": 40},
    "Ovis2ImageProcessor": {**_SMALL, "crop_to_patches": True},
    "PaddleOCRVLImageProcessor": {"size": {"shortest_edge": 400, "longest_edge": 6000}},
    "PerceptionLMImageProcessor": {"tile_size": 28},
    "Phi4MultimodalImageProcessor": _SMALL,
    "Step3p7ImageProcessor": {**_SMALL, "patch_size": 20},
}


@pytest.mark.parametrize("name", _CONFIGS)
def test_images_at_once_equal_each(name: str) -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": name, **_CONFIGS[name]})
    pixels = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (2, 3, 60, 90), dtype=np.uint8))
    layout = front_end.layout(90, 60)
    together = front_end.arrange_alike(pixels, layout)
    each = [front_end.arrange(Pixels(tensor=one), layout) for one in pixels]
    assert torch.equal(together, torch.stack(each))
