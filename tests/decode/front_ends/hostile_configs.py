"""Configurations with one senseless value: each key of each family with values of wrong types and out of range."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from energon_dali import ConfigError, DecodeError, FrontEnd, VideoFrontEnd, batch_vision
from energon_dali.decode.front_ends.resampling import Pixels

_NESTED: list[Any] = [[]]
_NESTED.append(_NESTED)
VALUES: tuple[Any, ...] = (
    *(0, 1, -1, 10**9, 10**30, 10**400, 10**5000, 0.0, -0.5, 1e-300, 1e300, 2.5, math.nan, math.inf, -math.inf),
    *(True, False, "", "text", "1", "\0", b"1", (), [], {}, [0, 0, 0], [0, 0], [1, 1], [-1, 224], [math.nan] * 3),
    *([1e-300] * 3, [1e300] * 3, [10**400] * 3, ["1", "1", "1"], [True] * 3, [None] * 3, [[1], [2], [3]], [1] * 4),
    *([[0, 0]], [[10**9, 10**9]], [["1", "2"]], [[1, 2, 3]], [28], _NESTED, {"a": 1}, {"height": 0, "width": 0}),
    *({"height": -1, "width": 9}, {"height": 10**9, "width": 10**9}, {"height": math.nan, "width": 9}, {"height": 9}),
    *({"height": "9", "width": "9"}, {"height": True, "width": True}, {"height": 2.5, "width": 2.5}, {"height": []}),
    *({"shortest_edge": 0}, {"shortest_edge": 10**9}, {"shortest_edge": -5, "longest_edge": -9}, {"longest_edge": 0}),
    *({"shortest_edge": 10**30, "longest_edge": 10**30}, {"longest_edge": math.inf}, {0: 1}, object, object()),
)
_VALUES_KEYS = ("do_rescale", "rescale_factor", "do_normalize", "image_mean", "image_std", "resample", "do_resize")
_SIZES_KEYS = ("size", "default_to_square", "do_center_crop", "crop_size", "do_pad", "pad_size")
_COMMON = (*_VALUES_KEYS, *_SIZES_KEYS, "do_convert_rgb")
_PATCHES = ("min_pixels", "max_pixels", "patch_size", "temporal_patch_size", "merge_size")
_SAMPLING = ("do_sample_frames", "num_frames", "fps")
_SCAN = tuple(f"pan_and_scan_{name}" for name in ("min_crop_size", "max_num_crops", "min_ratio_to_activate"))
_SQUARE = {"height": 28, "width": 28}
_RANGE = {"shortest_edge": 400, "longest_edge": 6000}
_RESOLUTIONS = [[28, 56], [56, 28]]

IMAGES: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any], tuple[str, ...]]] = {
    **{
        f"{name}ImageProcessor": ({"size": 28, "crop_size": 24}, ("crop_pct", "do_reduce_labels"), {}, ())
        for name in (
            "Beit",
            "Bit",
            "Blip",
            "CLIP",
            "Chameleon",
            "ChineseCLIP",
            "DeiT",
            "Levit",
            "MobileNetV1",
            "PoolFormer",
            "Pvt",
        )
    },
    "ConvNextImageProcessor": ({"size": {"shortest_edge": 28}}, ("crop_pct",), {}, ()),
    "SiglipImageProcessor": ({"size": _SQUARE}, ("image_seq_length",), {}, ()),
    "ViTImageProcessor": ({"size": 28}, (), {}, ()),
    "DPTImageProcessor": (
        {"size": 28, "do_pad": True, "size_divisor": 9},
        ("ensure_multiple_of", "keep_aspect_ratio", "size_divisor"),
        {},
        (),
    ),
    "EfficientNetImageProcessor": ({"size": 28, "crop_size": 24}, ("rescale_offset", "include_top"), {}, ()),
    "FlavaImageProcessor": (
        {"size": 28, "crop_size": 24},
        ("return_codebook_pixels", "return_image_mask"),
        {},
        (),
    ),
    "GLPNImageProcessor": ({"size_divisor": 8}, ("size_divisor",), {}, ()),
    "LayoutLMv2ImageProcessor": ({"size": 28, "apply_ocr": False}, ("apply_ocr",), {}, ()),
    "LayoutLMv3ImageProcessor": ({"size": 28, "apply_ocr": False}, ("apply_ocr",), {}, ()),
    **{
        f"{name}ImageProcessor": ({"size": 28, "crop_size": 24}, ("do_flip_channel_order",), {}, ())
        for name in ("MobileNetV2", "MobileViT", "Perceiver", "Segformer", "SuperPoint")
    },
    "TextNetImageProcessor": ({"size": {"shortest_edge": 28}, "crop_size": 24}, ("size_divisor",), {}, ()),
    "LlavaImageProcessor": (
        {"size": 28, "crop_size": 28},
        (),
        {"processor_class": "LlavaProcessor", "patch_size": 14},
        ("image_token", "patch_size", "num_additional_image_tokens", "vision_feature_select_strategy"),
    ),
    "Qwen2VLImageProcessor": ({"size": _RANGE}, _PATCHES, {"processor_class": "Qwen2VLProcessor"}, ("image_token",)),
    "Glm4vImageProcessor": ({"size": _RANGE}, _PATCHES, {}, ("image_token",)),
    "Gemma3ImageProcessor": (
        {"size": _SQUARE, "do_pan_and_scan": True, **dict(zip(_SCAN, (9, 4, 1.2), strict=True))},
        ("do_pan_and_scan", *_SCAN, "image_seq_length"),
        {},
        ("image_seq_length", "boi_token", "processor_class"),
    ),
    "Idefics3ImageProcessor": (
        {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}},
        ("max_image_size", "do_image_splitting", "return_row_col_info", "video_sampling"),
        {},
        ("image_seq_len", "image_token", "fake_image_token", "global_image_token"),
    ),
    "ImageGPTImageProcessor": (
        {"size": 8, "clusters": [[0, 0, 0], [1, 1, 1]]},
        ("clusters", "do_color_quantize"),
        {},
        (),
    ),
    "GotOcr2ImageProcessor": (
        {"size": _SQUARE},
        ("crop_to_patches", "min_patches", "max_patches"),
        {"processor_class": "InternVLProcessor"},
        ("image_seq_length", "image_token", "start_image_token", "end_image_token", "processor_class"),
    ),
    "LlavaNextImageProcessor": (
        {"size": {"shortest_edge": 28}, "crop_size": 28, "image_grid_pinpoints": _RESOLUTIONS},
        ("image_grid_pinpoints", "aspect_ratio_setting"),
        {"processor_class": "LlavaNextProcessor", "patch_size": 14},
        ("image_token", "patch_size", "num_additional_image_tokens", "vision_feature_select_strategy"),
    ),
    "LlavaOnevisionImageProcessor": (
        {"size": _SQUARE, "image_grid_pinpoints": _RESOLUTIONS},
        ("image_grid_pinpoints",),
        {"processor_class": "LlavaOnevisionProcessor", "num_image_tokens": 4},
        ("image_token", "num_image_tokens", "vision_feature_select_strategy", "vision_aspect_ratio"),
    ),
    "MllamaImageProcessor": ({"size": _SQUARE}, ("max_image_tiles",), {}, ("image_token",)),
    "PixtralImageProcessor": (
        {"size": {"longest_edge": 56}, "patch_size": 14},
        ("patch_size",),
        {"processor_class": "PixtralProcessor", "patch_size": 14},
        ("patch_size", "spatial_merge_size", "image_token", "image_break_token", "image_end_token"),
    ),
    "Siglip2ImageProcessor": ({"patch_size": 14, "max_num_patches": 16}, ("patch_size", "max_num_patches"), {}, ()),
    **{
        f"{name}ImageProcessor": (
            {"size": {"shortest_edge": 28, "longest_edge": 40}, "pad_size": {"height": 60, "width": 60}},
            ("max_size", "pad_and_return_pixel_mask", "do_convert_annotations", "size_divisor"),
            {},
            (),
        )
        for name in ("Detr", "ConditionalDetr", "DeformableDetr", "GroundingDino", "Yolos", "RTDetr")
    },
    **{
        f"{name}ImageProcessor": (
            {"size": {"shortest_edge": 28, "longest_edge": 40}, "size_divisor": 8},
            ("max_size", "size_divisor"),
            {},
            (),
        )
        for name in ("Mask2Former", "MaskFormer")
    },
    "OneFormerImageProcessor": ({"size": {"shortest_edge": 28, "longest_edge": 40}}, ("ignore_index",), {}, ()),
    **{
        f"{name}ImageProcessor": (
            {"size": {"shortest_edge": 28}, "crop_size": {"shortest_edge": 24}, "size_divisor": 8},
            ("size_divisor",),
            {},
            (),
        )
        for name in ("BridgeTower", "Vilt")
    },
    "SamImageProcessor": (
        {"size": {"longest_edge": 28}, "pad_size": {"height": 30, "width": 30}},
        ("mask_size", "mask_pad_size"),
        {},
        (),
    ),
    **{
        f"{name}ImageProcessor": ({"size": 28, "crop_size": 24}, ("offset",), {}, ())
        for name in ("Sam2", "Sam3", "OwlViT", "Tipsv2", "VideoMAE", "Vivit", "DINOv3ViT", "DepthPro", "Owlv2")
    },
    **{
        f"{name}ImageProcessor": (
            {"size": {"height": 40, "width": 28}},
            ("do_align_long_axis", "do_thumbnail", "do_crop_margin"),
            {},
            (),
        )
        for name in ("Donut", "Nougat")
    },
    "Pix2StructImageProcessor": (
        {"patch_size": {"height": 8, "width": 8}, "max_patches": 16},
        ("patch_size", "max_patches", "is_vqa"),
        {},
        (),
    ),
    "ZoeDepthImageProcessor": (
        {"size": 28, "ensure_multiple_of": 4},
        ("ensure_multiple_of", "keep_aspect_ratio"),
        {},
        (),
    ),
    **{
        name: ({"size": _RANGE}, _PATCHES, {}, ("image_token",))
        for name in (
            "CohereCompassImageProcessor",
            "Cosmos3EdgeImageProcessor",
            "Ernie4_5_VLMoeImageProcessor",
            "GlmgaImageProcessor",
            "MiniMaxM3VLImageProcessor",
            "PaddleOCRVLImageProcessor",
            "VideoLlama3ImageProcessor",
        )
    },
    "HunYuanVLImageProcessor": (
        {"size": _RANGE},
        (*_PATCHES, "spatial_patch_size"),
        {"processor_class": "HunYuanVLProcessor"},
        ("image_token", "cat_extra_token"),
    ),
    "Kimi_K25ImageProcessor": (
        {"size": {"max_height": 4, "max_width": 4}},
        (*_PATCHES[2:], "max_patches"),
        {},
        ("image_token",),
    ),
    "Gemma4ImageProcessor": (
        {"patch_size": 4, "max_soft_tokens": 70},
        ("patch_size", "max_soft_tokens", "pooling_kernel_size"),
        {},
        ("image_token", "boi_token", "eoi_token"),
    ),
    "DeepseekVLImageProcessor": (
        {"size": _SQUARE},
        ("min_size",),
        {"processor_class": "DeepseekVLProcessor"},
        ("num_image_tokens", "image_token"),
    ),
    "DeepseekVLHybridImageProcessor": (
        {"size": _SQUARE, "high_res_size": _SQUARE},
        ("min_size", "high_res_size", "high_res_resample", "high_res_image_mean", "high_res_image_std"),
        {"processor_class": "DeepseekVLHybridProcessor"},
        ("num_image_tokens", "image_token"),
    ),
    "DeepseekOcr2ImageProcessor": (
        {"size": _SQUARE, "tile_size": 20},
        ("tile_size", "crop_to_patches", "min_patches", "max_patches", "background_color"),
        {},
        ("patch_size", "downsample_ratio", "image_token"),
    ),
    "Cohere2VisionImageProcessor": (
        {"size": _SQUARE, "patch_size": 3},
        ("crop_to_patches", "min_patches", "max_patches", "patch_size"),
        {"processor_class": "Cohere2VisionProcessor"},
        ("image_token", "boi_token", "eoi_token", "img_line_break_token"),
    ),
    "Ovis2ImageProcessor": (
        {"size": _SQUARE, "crop_to_patches": True},
        ("crop_to_patches", "min_patches", "max_patches", "use_covering_area_grid"),
        {"processor_class": "Ovis2Processor"},
        ("image_seq_length",),
    ),
    "PerceptionLMImageProcessor": (
        {"tile_size": 28},
        ("tile_size", "max_num_tiles", "vision_input_type"),
        {"processor_class": "PerceptionLMProcessor", "patch_size": 14},
        ("patch_size", "pooling_ratio", "image_token"),
    ),
    "Llama4ImageProcessor": (
        {"size": _SQUARE, "max_patches": 4},
        ("max_patches", "resize_to_max_canvas"),
        {"processor_class": "Llama4Processor", "patch_size": 14},
        ("patch_size", "pixel_shuffle_ratio", "fake_image_token"),
    ),
    "Phi4MultimodalImageProcessor": (
        {"size": _SQUARE, "dynamic_hd": 4},
        ("patch_size", "dynamic_hd"),
        {"processor_class": "Phi4MultimodalProcessor"},
        ("image_token",),
    ),
    "Lfm2VlImageProcessor": (
        {"tile_size": 32, "encoder_patch_size": 4, "min_image_tokens": 4, "max_image_tokens": 16},
        (
            *("downsample_factor", "do_image_splitting", "min_tiles", "max_tiles", "use_thumbnail", "tile_size"),
            *("min_image_tokens", "max_image_tokens", "encoder_patch_size", "max_pixels_tolerance"),
            "return_row_col_info",
        ),
        {"processor_class": "Lfm2VlProcessor"},
        ("image_token", "image_start_token", "image_end_token", "image_thumbnail_token"),
    ),
    "Molmo2ImageProcessor": (
        {"size": _SQUARE, "patch_size": 4, "overlap_margins": [1, 1]},
        ("max_crops", "overlap_margins", "patch_size", "pooling_size"),
        {"processor_class": "Molmo2Processor"},
        ("image_token", "image_use_col_tokens", "use_single_crop_col_tokens", "use_single_crop_start_token"),
    ),
    "Idefics2ImageProcessor": (
        {"size": {"shortest_edge": 20, "longest_edge": 60}},
        ("do_image_splitting",),
        {"processor_class": "Idefics2Processor"},
        ("image_seq_len", "image_token", "fake_image_token"),
    ),
    "Emu3ImageProcessor": (
        {"min_pixels": 400, "max_pixels": 6000},
        ("min_pixels", "max_pixels", "spatial_factor"),
        {"processor_class": "Emu3Processor"},
        ("image_token", "image_start_token", "fake_token_around_image", "eof_token", "image_end_token"),
    ),
    "AriaImageProcessor": (
        {"max_image_size": 490, "split_image": True, "split_resolutions": [[490, 980]]},
        ("max_image_size", "min_image_size", "split_image", "split_resolutions"),
        {},
        ("image_token", "size_conversion"),
    ),
    "MiniCPMV4_6ImageProcessor": (
        {"scale_resolution": 20, "patch_size": 4},
        ("max_slice_nums", "scale_resolution", "patch_size", "slice_mode", "downsample_mode", "use_image_id"),
        {"processor_class": "MiniCPMV4_6Processor"},
        ("image_token", "image_start_token", "slice_end_token", "image_id_end_token"),
    ),
    "GraniteDoclingImageProcessor": (
        {"size": _SQUARE, "dense_max_patches": 34},
        (
            *("crop_to_patches", "min_patches", "max_patches", "fine_route", "dense_max_patches"),
            *("dense_max_scale", "dense_min_aspect", "dense_max_aspect"),
        ),
        {"processor_class": "GraniteDoclingProcessor"},
        ("image_seq_len", "image_token"),
    ),
    "Glm5NextImageProcessor": (
        {"min_image_tokens": 1, "max_image_tokens": 20},
        ("min_image_tokens", "max_image_tokens", *_PATCHES[2:]),
        {"processor_class": "Glm5NextProcessor"},
        ("image_token",),
    ),
    "MuseGlimmerImageProcessor": (
        {"max_image_tokens": 12},
        ("max_image_tokens", *_PATCHES[2:]),
        {"processor_class": "MuseGlimmerProcessor"},
        ("image_token", "image_start_token", "image_end_token"),
    ),
    "NemotronH_Omni_Reasoning_V3ImageProcessor": (
        {"patch_size": 4, "min_num_patches": 9, "max_num_patches": 40},
        ("patch_size", "downsample_ratio", "min_num_patches", "max_num_patches", "max_model_len"),
        {"processor_class": "NemotronH_Omni_Reasoning_V3Processor"},
        ("image_token", "image_start_token"),
    ),
    "PI0ImageProcessor": ({"size": {"max_height": 28, "max_width": 28}, "pad_size": 28}, (), {}, ()),
    "Step3p7ImageProcessor": (
        {"size": _SQUARE, "patch_size": 20},
        ("patch_size", "max_image_size", "vision_patch_size", "downsampler_stride"),
        {"processor_class": "Step3p7Processor"},
        (),
    ),
    "Kosmos2_5ImageProcessor": (
        {"patch_size": {"height": 8, "width": 8}, "max_patches": 16},
        ("patch_size", "max_patches"),
        {},
        ("image_token", "boi_token"),
    ),
}
"""By processor: values of a small front end, further keys, values of the processor around it, and its keys."""
VIDEOS: dict[str, tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = {
    **{
        f"{name}VideoProcessor": (
            {"size": _RANGE, "do_sample_frames": True, "fps": 2},
            (*_PATCHES, *_SAMPLING, "min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens"),
            ("video_token", "vision_start_token"),
        )
        for name in ("Qwen2VL", "Qwen3VL")
    },
    **{
        f"{name}VideoProcessor": (
            {"size": _RANGE},
            (*_PATCHES[2:], *_SAMPLING, "max_duration", "max_image_size"),
            ("video_token", "image_token"),
        )
        for name in ("Glm4v", "Glm46V")
    },
    **{
        f"{name}VideoProcessor": ({"size": {"shortest_edge": 28}, "crop_size": 24}, _SAMPLING, ())
        for name in ("VideoMAE", "Timesformer", "Vivit", "VJEPA2")
    },
    "InternVLVideoProcessor": (
        {"size": _SQUARE, "do_sample_frames": True, "num_frames": 4},
        (*_SAMPLING, "initial_shift"),
        ("image_seq_length", "video_token", "image_token", "start_image_token"),
    ),
    **{
        f"{name}VideoProcessor": ({"size": _SQUARE, "crop_size": 24}, _SAMPLING, keys)
        for name, keys in (
            ("InstructBlipVideo", ("num_query_tokens",)),
            ("LlavaNextVideo", ("patch_size", "video_token")),
            ("PerceptionLM", ("patch_size", "pooling_ratio", "video_token")),
            ("Sam2Video", ()),
            ("VideoLlava", ("patch_size", "num_additional_image_tokens", "video_token")),
        )
    },
    **{
        f"{name}VideoProcessor": ({"size": _RANGE}, (*_PATCHES[2:], *_SAMPLING, *keys), ("video_token",))
        for name, keys in (
            ("CohereCompass", ("min_frames", "max_frames", "cap_pixels_per_frame", "max_video_tokens")),
            ("Cosmos3Edge", ("min_frames", "max_frames")),
            ("Glmga", ("max_frames", "patch_expand_factor")),
        )
    },
    "Glm5NextVideoProcessor": (
        {"min_image_tokens": 1, "max_image_tokens": 20},
        (*_PATCHES[2:], *_SAMPLING, "min_image_tokens", "max_image_tokens", "max_duration", "max_frames"),
        ("video_token", "image_token"),
    ),
    "Gemma4VideoProcessor": (
        {"patch_size": 4, "num_frames": 4},
        ("patch_size", "pooling_kernel_size", "max_soft_tokens", *_SAMPLING),
        ("video_token", "boi_token"),
    ),
    "Kimi_K25VideoProcessor": (
        {"size": {"max_height": 4, "max_width": 4}},
        (*_PATCHES[2:], *_SAMPLING, "max_patches"),
        ("video_token",),
    ),
    "LlavaOnevisionVideoProcessor": (
        {"size": _SQUARE, "do_sample_frames": True, "num_frames": 4},
        _SAMPLING,
        ("num_image_tokens", "video_token"),
    ),
}
"""Likewise for videos."""
_NAMED_BY = {"default_to_square": "size"}
"""The key that a message names for another, which says what its value means."""
_IMAGE = torch.from_numpy(np.random.default_rng(5).integers(0, 256, (3, 30, 44), dtype=np.uint8))
_FRAMES = torch.from_numpy(np.random.default_rng(6).integers(0, 256, (12, 3, 30, 44), dtype=np.uint8))


def hostile_configs() -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """Yields (processor, key, value, configuration as processor_config.json has it)."""
    for name, (values, keys, outer, outer_keys) in IMAGES.items():
        inner = {**values, "image_processor_type": name}
        for value in VALUES:
            for key in (*_COMMON, *keys):
                yield name, key, value, {**outer, "image_processor": {**inner, key: value}}
            for key in outer_keys:
                yield name, key, value, {**outer, key: value, "image_processor": inner}
    for name, (values, keys, outer_keys) in VIDEOS.items():
        inner = {**values, "video_processor_type": name}
        for value in VALUES:
            for key in (*_COMMON, *keys):
                yield name, key, value, {"video_processor": {**inner, key: value}}
            for key in outer_keys:
                yield name, key, value, {key: value, "video_processor": inner}


def outcome(key: str, config: dict[str, Any]) -> str:
    """Makes a front end, and renders a small image or video with it.

    Returns:
        "refused", "refused for this image", or "finite".

    Raises:
        AssertionError: The message does not name the key, or a value is not finite.
    """
    front_end: FrontEnd | None = None
    message = ""
    try:
        kind = VideoFrontEnd if "video_processor" in config else FrontEnd
        front_end = kind.from_processor(config)
    except ConfigError as error:
        message = str(error)
    if front_end is None:
        assert key in message or _NAMED_BY.get(key, key) in message, f"{key} is not in the message: {message}"
        assert len(message) < 2000
        return "refused"
    try:
        if isinstance(front_end, VideoFrontEnd):
            video = front_end.layout(44, 30, 12, 6.0)
            made = front_end.render_video(_FRAMES[list(video.frames)], video)
        else:
            layout = front_end.layout(44, 30)
            made = front_end.render(Pixels(tensor=_IMAGE), layout)
    except DecodeError:
        return "refused for this image"
    tensors = [value for value in batch_vision([made]).values() if isinstance(value, torch.Tensor)]
    assert all(bool(torch.isfinite(tensor.float()).all()) for tensor in tensors)
    assert isinstance(front_end.text_tokens(made.layout), int)
    return "finite"
