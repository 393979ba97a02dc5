"""Images whose processors resample values, not bytes: DINOv3, DepthPro, OWLv2 and ZoeDepth."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import (
    CLIP_MEAN,
    CLIP_STD,
    HALF,
    IMAGENET_MEAN,
    IMAGENET_STD,
    cropped_view,
    require_one_size,
)
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig
from energon_dali.decode.front_ends.resampling import Pixels
from energon_dali.decode.front_ends.resize_rules import (
    ResizeRule,
    ToNearestMultiples,
    ToSize,
    checked_size,
    take_rule,
)
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True)
class ComputedValues(FrontEnd):
    """Computes values of pixels at their own size and resamples these, on the CPU. Values: dtype[1, 3, height, width].

    Its dtype cannot be "uint8": the values are not those of bytes.
    """

    rule: ResizeRule | None = None
    """Chooses the size of the resized image; None does not resize."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dtype == "uint8":
            raise ConfigError(
                f'{type(self).__name__} has no dtype "uint8": its processor resamples values, which bytes cannot hold. '
                'Give "float32", "bfloat16" or "float16".'
            )

    @abstractmethod
    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns the values of an image.

        Args:
            pixels: uint8[3, H, W], contiguous.

        Returns:
            float32[3, height, width].
        """

    def layout(self, width: int, height: int) -> ImageLayout:
        return ImageLayout(height, width, (View(*checked_size(self.rule, height, width)),), 0, (0, 0))

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        whole = pixels.resized(layout.height, layout.width, self.filter, self.resampling).planes()
        return self.compute(whole.cpu())[None].to(whole.device)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        return torch.stack([self.arrange(Pixels(tensor=image), layout) for image in pixels])

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return tuple(pixels.shape)

    def finish(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor | None = None) -> torch.Tensor:
        return pixels.to(self.torch_dtype) if out is None else out.copy_(pixels)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        require_one_size(images)
        return {}

    def rescaled(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns bytes rescaled to float32, not normalised, as the processor's backend does it."""
        import torch

        plain = replace(self.values, mean=None, std=None)
        flat = pixels.flatten(1)[None]
        return plain.convert(flat, torch.float32, channel_axis=1).view(pixels.shape)

    def normalized(self, values: torch.Tensor) -> torch.Tensor:
        """Returns float32[3, H, W] normalised."""
        import torch

        if self.values.mean is None or self.values.std is None:
            return values
        mean, std = (
            torch.tensor(given, dtype=torch.float32)[:, None, None] for given in (self.values.mean, self.values.std)
        )
        return (values - mean) / std


@dataclass(frozen=True, kw_only=True)
class DinoV3(ComputedValues):
    """Rescales, resizes with antialiasing, crops and normalises; DepthPro normalises first and has no antialiasing."""

    crop: tuple[int, int] | None = None
    """(height, width) of the centre that is cut out after resizing, with zeros around images that are smaller."""
    antialias: bool = True
    """Whether the filter is widened where the image shrinks, as DINOv3's is."""
    normalizes_first: bool = False
    """Whether it normalises before it resizes."""

    family: ClassVar[str] = "dinov3"
    processors: ClassVar[tuple[str, ...]] = ("DINOv3ViTImageProcessor", "DepthProImageProcessor")
    torchvision_only: ClassVar[frozenset[str]] = frozenset(processors)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        depth = config.type_name == "DepthProImageProcessor"
        default = {"height": 1536, "width": 1536} if depth else {"height": 224, "width": 224}
        mean, std = (HALF, HALF) if depth else (IMAGENET_MEAN, IMAGENET_STD)
        fields = config.take_conversion(mean, std, "bilinear", rgb=False)
        rule = take_rule(config, default, square=True)
        if fields["values"].rescale is None:
            raise config.error("do_rescale=False is not supported: it makes the processor resample bytes")
        if fields["filter"] not in ("bilinear", "bicubic", "nearest"):
            raise config.error(f"resample={config.take('resample')} is not supported: it must be 0, 2 or 3")
        crop_size = {} if depth else config.take_size("crop_size", {}, square=True)
        crops = not depth and config.take_flag("do_center_crop", False)
        crop = config.height_and_width("crop_size", crop_size) if crops else None
        return cls(**fields, rule=rule, crop=crop, antialias=not depth, normalizes_first=depth)

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = checked_size(self.rule, height, width)
        return ImageLayout(height, width, (cropped_view(rows, columns, self.crop, by="torch"),), 0, (0, 0))

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        if self.normalizes_first:
            flat = self.values.convert(pixels.flatten(1)[None], torch.float32, channel_axis=1)
            return self._resized(flat.view(pixels.shape))
        values = self._resized(self.rescaled(pixels))
        view = cropped_view(values.shape[1], values.shape[2], self.crop, by="torch")
        canvas = torch.zeros((3, *view.canvas_size))
        top, left = view.position
        inside = values[:, max(0, -top) :, max(0, -left) :]
        rows, columns = canvas[:, max(0, top) :, max(0, left) :].shape[1:]
        inside = inside[:, :rows, :columns]
        canvas[:, max(0, top) :, max(0, left) :][:, : inside.shape[1], : inside.shape[2]] = inside
        return self.normalized(canvas)

    def _resized(self, values: torch.Tensor) -> torch.Tensor:
        from torch.nn.functional import interpolate

        size = checked_size(self.rule, values.shape[1], values.shape[2])
        if size == tuple(values.shape[1:]):
            return values
        if self.filter == "nearest":
            return interpolate(values[None], size=size, mode="nearest-exact")[0]
        return interpolate(values[None], size=size, mode=self.filter, align_corners=False, antialias=self.antialias)[0]


@dataclass(frozen=True, kw_only=True)
class ZoeDepth(ComputedValues):
    """Rescales, mirrors the borders, resizes without antialiasing, and normalises."""

    mirrors_borders: bool = True
    """Whether borders are added, in which the image is mirrored."""

    family: ClassVar[str] = "zoedepth"
    processors: ClassVar[tuple[str, ...]] = ("ZoeDepthImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD - {"do_pad"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        fields = config.take_conversion(HALF, HALF, "bilinear", rgb=False)
        size = config.take_size("size", {"height": 384, "width": 512}, square=True)
        height, width = config.height_and_width("size", size)
        multiple = config.take_number("ensure_multiple_of", 1 / 32, least=1 / 1024, most=LARGEST_SIDE)
        keeps = config.take_flag("keep_aspect_ratio", True)
        resizes = config.take_flag("do_resize", True)
        if fields["values"].rescale is None:
            raise config.error("do_rescale=False is not supported: it makes the processor resample bytes")
        if resizes and fields["filter"] not in ("bilinear", "bicubic"):
            raise config.error(f"resample={config.take('resample')} is not supported: it must be 2 or 3")
        rule = ToNearestMultiples(height, width, multiple, keeps) if resizes else None
        return cls(**fields, rule=rule, mirrors_borders=config.take_flag("do_pad", True))

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = (side + 2 * self._border(side) for side in (height, width))
        return ImageLayout(height, width, (View(*checked_size(self.rule, rows, columns)),), 0, (0, 0))

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch
        from torch.nn.functional import interpolate

        values = self.rescaled(pixels)
        height, width = pixels.shape[1:]
        if self.mirrors_borders:
            rows, columns = self._border(height), self._border(width)
            padded = np.pad(values.numpy(), ((0, 0), (rows, rows), (columns, columns)), mode="reflect")
            values = torch.from_numpy(padded)
        if self.rule is not None:
            size = checked_size(self.rule, values.shape[1], values.shape[2])
            values = interpolate(values[None], size, mode=self.filter, align_corners=True)[0]
        return self.normalized(values)

    def _border(self, side: int) -> int:
        return int(np.sqrt(side / 2) * 3) if self.mirrors_borders else 0


@dataclass(frozen=True, kw_only=True)
class Owlv2(ComputedValues):
    """Rescales, pads to a square, blurs and resizes by SciPy, and normalises."""

    squares: bool = True
    """Whether zeros are added below or to the right, up to a square."""

    family: ClassVar[str] = "owlv2"
    processors: ClassVar[tuple[str, ...]] = ("Owlv2ImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = (CROP_AND_PAD - {"do_pad"}) | {"resample"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require_pil("it blurs and resizes otherwise")
        values = config.take_values(mean=CLIP_MEAN, std=CLIP_STD)
        size = config.take_size("size", {"height": 960, "width": 960}, square=True)
        height, width = config.height_and_width("size", size)
        if values.rescale is None:
            raise config.error("do_rescale=False is not supported: it makes the processor resample bytes")
        return cls(
            values=values,
            filter="bilinear",
            convert_rgb=config.take_flag("do_convert_rgb", True),
            rule=ToSize(height, width) if config.take_flag("do_resize", True) else None,
            squares=config.take_flag("do_pad", True),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = (max(height, width),) * 2 if self.squares else (height, width)
        return ImageLayout(height, width, (View(*checked_size(self.rule, rows, columns)),), 0, (0, 0))

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        import torch

        values = self.rescaled(pixels).numpy()
        if self.squares:
            side = max(values.shape[1:])
            values = np.pad(values, ((0, 0), *((0, side - length) for length in values.shape[1:])))
        if self.rule is not None:
            values = _resized_by_scipy(values, *self.rule.size(*values.shape[1:]))
        return self.normalized(torch.from_numpy(np.ascontiguousarray(values)))


def _resized_by_scipy(values: NDArray[np.float32], height: int, width: int) -> NDArray[np.float32]:
    try:
        from scipy import ndimage  # type: ignore[import-untyped,unused-ignore]
    except ImportError as error:
        raise ConfigError("Images of OWLv2 are resized by SciPy, which is not installed: pip install scipy.") from error
    image = values.transpose(1, 2, 0)
    factors = np.divide(image.shape, (height, width, image.shape[2]))
    sigma = np.maximum(0, (factors - 1) / 2)
    blurred = ndimage.gaussian_filter(image, sigma, cval=0, mode="mirror")
    zoomed = ndimage.zoom(blurred, [1 / factor for factor in factors], order=1, mode="mirror", cval=0, grid_mode=True)
    limited: NDArray[np.float32] = np.clip(zoomed, image.min(), image.max()).transpose(2, 0, 1)
    return limited
