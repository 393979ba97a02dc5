"""Videos of models with text whose frames become one size: LLaVA-NeXT-Video, Video-LLaVA, Perception LM and others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD, HALF, IMAGENET_MEAN, IMAGENET_STD
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.resampling import Filter
from energon_dali.decode.front_ends.resize_rules import take_rule
from energon_dali.decode.front_ends.video_front_end import frame_sampling, take_unused
from energon_dali.decode.front_ends.vision_video import VisionVideo


@dataclass(frozen=True, slots=True)
class _Processor:
    """What a video processor does where its file does not say."""

    size: dict[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    filter: Filter = "bicubic"
    crop: dict[str, int] | None = None
    """Default of crop_size, if it crops."""
    square: bool = False
    """Whether a size of one number is height and width; if not, it is the shortest edge."""


_SHORTEST_224 = {"shortest_edge": 224}
_SQUARE_224 = {"height": 224, "width": 224}
_PROCESSORS = {
    "InstructBlipVideoVideoProcessor": _Processor({"height": 384, "width": 384}, CLIP_MEAN, CLIP_STD, square=True),
    "LlavaNextVideoVideoProcessor": _Processor(_SHORTEST_224, CLIP_MEAN, CLIP_STD, crop=_SQUARE_224),
    "PerceptionLMVideoProcessor": _Processor({"height": 448, "width": 448}, HALF, HALF, square=True),
    "Sam2VideoVideoProcessor": _Processor(
        {"height": 1024, "width": 1024}, IMAGENET_MEAN, IMAGENET_STD, "bilinear", square=True
    ),
    "VideoLlavaVideoProcessor": _Processor(_SHORTEST_224, CLIP_MEAN, CLIP_STD, crop=_SQUARE_224),
}


@dataclass(frozen=True, kw_only=True)
class CroppedVideo(VisionVideo):
    """Resizes each frame, and cuts out its centre where the processor does. Values: dtype[frames, 3, height, width]."""

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        what = _PROCESSORS[config.type_name]
        rule = take_rule(config, what.size, square=what.square)
        crop_size = config.take_size("crop_size", what.crop or {}, square=True)
        crops = config.take_flag("do_center_crop", what.crop is not None)
        take_unused(config)
        return cls(
            **config.take_conversion(what.mean, what.std, what.filter, rgb=None),
            rule=rule,
            crop=config.height_and_width("crop_size", crop_size) if crops else None,
            **frame_sampling(config, num_frames=None, fps=None, samples=False),
            **cls.take_text(config),
        )

    @classmethod
    def take_text(cls, config: ProcessorConfig) -> dict[str, Any]:
        """Returns the fields for the text; none by default."""
        return {}


@dataclass(frozen=True, kw_only=True)
class Sam2Video(CroppedVideo):
    """Videos of SAM 2, whose batches have the sizes before and after resizing."""

    family: ClassVar[str] = "sam2_video"
    processors: ClassVar[tuple[str, ...]] = ("Sam2VideoVideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "the processor says that frames have the size that it resizes to")
        return super().from_config(config)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {
            "original_sizes": [(video.layout.height, video.layout.width) for video in images],
            "reshaped_input_sizes": [(video.layout.views[0].height, video.layout.views[0].width) for video in images],
        }


@dataclass(frozen=True, kw_only=True)
class InstructBlipVideo(CroppedVideo):
    """Videos of InstructBLIP, which the text begins with: four frames, whatever their number."""

    num_query_tokens: int = 0
    """Features of a frame ("num_query_tokens"); 0 if the processor is not known."""

    family: ClassVar[str] = "instructblip_video"
    processors: ClassVar[tuple[str, ...]] = ("InstructBlipVideoVideoProcessor",)
    frames_in_text: ClassVar[int] = 4
    """Frames that the text has tokens for."""

    @classmethod
    def take_text(cls, config: ProcessorConfig) -> dict[str, Any]:
        return {"num_query_tokens": config.outer_integer("num_query_tokens", 0)}

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        made = super().frames_layout(width, height, frames, total, fps)
        return made.with_tokens(self.num_query_tokens * self.frames_in_text)


@dataclass(frozen=True, kw_only=True)
class FeatureVideo(CroppedVideo):
    """Videos whose frames have as many tokens each as their size has patches, after pooling."""

    patch_size: int = 14
    """Pixels of a patch's side in the vision tower."""
    pooling_ratio: int = 1
    """Patches per side that become one token."""
    num_additional_image_tokens: int = 0
    """Features of a frame next to those of patches, such as a class token."""

    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos",)
    merged_tokens: ClassVar[int] = 1
    """Features of a frame that are one token."""

    @classmethod
    def take_text(cls, config: ProcessorConfig) -> dict[str, Any]:
        return {
            "patch_size": config.outer_integer("patch_size", cls.patch_size, least=1),
            "video_token": config.outer_text("video_token", cls.video_token),
        }

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        made = super().frames_layout(width, height, frames, total, fps)
        rows, columns = (side // self.patch_size // self.pooling_ratio for side in made.views[0].canvas_size)
        tokens = (rows * columns + self.num_additional_image_tokens) // self.merged_tokens
        return made.with_tokens(tokens * len(frames))


@dataclass(frozen=True, kw_only=True)
class LlavaNextVideo(FeatureVideo):
    """Videos of LLaVA-NeXT-Video: the model pools the features of a frame 2 x 2."""

    family: ClassVar[str] = "llava_next_video"
    processors: ClassVar[tuple[str, ...]] = ("LlavaNextVideoVideoProcessor",)
    unused_keys: ClassVar[frozenset[str]] = FeatureVideo.unused_keys | {"image_grid_pinpoints"}  # of its images
    merged_tokens: ClassVar[int] = 4


@dataclass(frozen=True, kw_only=True)
class VideoLlavaVideo(FeatureVideo):
    """Videos of Video-LLaVA, which keeps the class token of each frame."""

    num_additional_image_tokens: int = 1

    family: ClassVar[str] = "video_llava"
    processors: ClassVar[tuple[str, ...]] = ("VideoLlavaVideoProcessor",)

    @classmethod
    def take_text(cls, config: ProcessorConfig) -> dict[str, Any]:
        return {
            **super().take_text(config),
            "num_additional_image_tokens": config.outer_integer("num_additional_image_tokens", 1),
        }


@dataclass(frozen=True, kw_only=True)
class PerceptionLMVideo(FeatureVideo):
    """Videos of Perception LM: each frame is one tile, whose features are pooled."""

    pooling_ratio: int = 2
    video_token: str = "<|video|>"

    family: ClassVar[str] = "perception_lm_video"
    processors: ClassVar[tuple[str, ...]] = ("PerceptionLMVideoProcessor",)

    @classmethod
    def take_text(cls, config: ProcessorConfig) -> dict[str, Any]:
        return {**super().take_text(config), "pooling_ratio": config.outer_integer("pooling_ratio", 2, least=1)}
