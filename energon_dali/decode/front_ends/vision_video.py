"""Videos of vision models: VideoMAE, TimeSformer, ViViT and V-JEPA 2 resize, crop and stack frames."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF, IMAGENET_MEAN, IMAGENET_STD, cropped_view
from energon_dali.decode.front_ends.frame_video import StackedVideo
from energon_dali.decode.front_ends.layout import VideoLayout
from energon_dali.decode.front_ends.processor_config import ProcessorConfig
from energon_dali.decode.front_ends.resize_rules import ResizeRule, ToShortestEdge, checked_size, take_rule
from energon_dali.decode.front_ends.video_front_end import frame_sampling, take_unused

_SQUARE_224 = {"height": 224, "width": 224}
_SQUARE_256 = {"height": 256, "width": 256}


@dataclass(frozen=True, kw_only=True)
class VisionVideo(StackedVideo):
    """Resizes each frame and cuts out its centre. Values: dtype[frames, 3, height, width]."""

    rule: ResizeRule | None = None
    """Chooses the size of the resized frames; None does not resize."""
    crop: tuple[int, int] | None = None
    """(height, width) of the centre that is cut out after resizing, with black around frames that are smaller."""

    family: ClassVar[str] = "vision_video"
    processors: ClassVar[tuple[str, ...]] = tuple(
        f"{name}VideoProcessor" for name in ("VideoMAE", "Timesformer", "Vivit")
    )
    unused_keys: ClassVar[frozenset[str]] = frozenset({"do_pad", "pad_size"})

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        vivit = config.type_name == "VivitVideoProcessor"
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if config.type_name.startswith("Time") else (HALF, HALF)
        rule = take_rule(config, {"shortest_edge": 256 if vivit else 224}, square=False)
        factor = 1 / 127.5 if vivit else 1 / 255
        fields = config.take_conversion(mean, std, "bilinear", rgb=None, factor=factor)
        if vivit and fields["values"].rescale is not None:
            fields["values"] = replace(fields["values"], offset=1.0)
        return cls(**fields, rule=rule, crop=_crop(config, _SQUARE_224), **_common(config))

    def tokens(self, frames: int) -> int:
        return 0

    def frames_layout(self, width: int, height: int, frames: tuple[int, ...], total: int, fps: float) -> VideoLayout:
        view = cropped_view(*checked_size(self.rule, height, width), self.crop, by="torch")
        return VideoLayout(height, width, (view,), 0, (len(frames),), frames, total, fps)


@dataclass(frozen=True, kw_only=True)
class VJepa2Video(VisionVideo):
    """Videos of V-JEPA 2, whose frames are resized in proportion to the crop."""

    family: ClassVar[str] = "vjepa2_video"
    processors: ClassVar[tuple[str, ...]] = ("VJEPA2VideoProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values_videos",)
    unused_keys: ClassVar[frozenset[str]] = VisionVideo.unused_keys | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        size = config.take_size("crop_size", _SQUARE_256, square=True)
        height = config.height_and_width("crop_size", size)[0]
        rule = ToShortestEdge(int(height * 256 / 224)) if config.take_flag("do_resize", True) else None
        fields = config.take_conversion(IMAGENET_MEAN, IMAGENET_STD, "bilinear", rgb=None)
        return cls(**fields, rule=rule, crop=_crop(config, _SQUARE_256), **_common(config))


def _crop(config: ProcessorConfig, default: dict[str, int]) -> tuple[int, int] | None:
    size = config.take_size("crop_size", default, square=True)
    return config.height_and_width("crop_size", size) if config.take_flag("do_center_crop", True) else None


def _common(config: ProcessorConfig) -> dict[str, Any]:
    take_unused(config)
    return frame_sampling(config, num_frames=None, fps=None, samples=False)
