"""Pix2Struct: an image normalised by its own mean, as many patches as a budget allows, each with its row and column."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from typing_extensions import Self

from energon_dali.decode.front_ends.computed_values import ComputedValues
from energon_dali.decode.front_ends.front_end import VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch

    from energon_dali.decode.spec import ImageDtype

_MOST_PATCHES = 1 << 14
_UNREAD = ("do_resize", "size", "resample", "do_rescale", "rescale_factor", "image_mean", "image_std")


@dataclass(frozen=True, kw_only=True)
class Pix2Struct(ComputedValues):
    """Resizes an image to as many patches as are allowed, and flattens them.

    `layout.grid` is (rows, columns) of patches. Values: dtype[rows * columns, 2 + height * width * 3 of a patch]: the
    row and the column of the patch, counted from 1, and its values, the channel of each pixel last. `batch_vision` adds
    zeros up to `max_patches`.
    """

    patch_size: tuple[int, int] = (16, 16)
    """(height, width) of a patch in pixels."""
    max_patches: int = 2048
    """Most patches of an image, and the patches of each image in a batch."""
    normalizes: bool = True
    """Whether the mean of the whole image becomes 0, and its standard deviation 1."""

    channels_last: ClassVar[bool] = True
    family: ClassVar[str] = "pix2struct"
    processors: ClassVar[tuple[str, ...]] = ("Pix2StructImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("flattened_patches", "attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | frozenset(_UNREAD)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require_pil("it rounds and normalises otherwise")
        config.require("is_vqa", False, "it writes the question into the image")
        size = config.take_size("patch_size", {"height": 16, "width": 16}, square=True, most=LARGEST_PATCH)
        return cls(
            values=PixelValues(None),
            filter="bilinear",
            convert_rgb=config.take_flag("do_convert_rgb", True),
            patch_size=config.height_and_width("patch_size", size),
            max_patches=config.take_integer("max_patches", 2048, most=_MOST_PATCHES),
            normalizes=config.take_flag("do_normalize", True),
        )

    def own_dtype(self) -> ImageDtype:
        return "float32"

    def layout(self, width: int, height: int) -> ImageLayout:
        rows, columns = self._grid(height, width)
        view = View(rows * self.patch_size[0], columns * self.patch_size[1])
        return ImageLayout(height, width, (view,), 0, (rows, columns))

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        whole = pixels.resized(layout.height, layout.width, self.filter, self.resampling).tensor
        return self.compute(whole.cpu()).to(whole.device)

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        """Returns float32[rows * columns, 2 + values of a patch]."""
        import torch
        from torch.nn.functional import interpolate

        # The processor's sums depend on the order of pixels in memory, where the channel is last.
        image = np.moveaxis(pixels.permute(1, 2, 0).contiguous().numpy(), -1, 0)
        if self.normalizes:
            image = image.astype(np.float32)
            least = 1.0 / math.sqrt(np.prod(image.shape))
            image = (image - np.mean(image)) / max(np.std(image), least)
        (height, width), (rows, columns) = self.patch_size, self._grid(*image.shape[1:])
        resized = interpolate(
            torch.from_numpy(image)[None].float(),
            size=(rows * height, columns * width),
            mode="bilinear",
            align_corners=False,
            antialias=True,
        )[0]
        cut = resized.reshape(3, rows, height, columns, width).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
        places = torch.cartesian_prod(torch.arange(1.0, rows + 1), torch.arange(1.0, columns + 1))
        return torch.cat([places.view(-1, 2), cut], 1)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        first = images[0].pixels
        shape = (len(images), self.max_patches, first.shape[1])
        patches = torch.zeros(shape, dtype=self.torch_dtype, device=first.device)
        mask = torch.zeros(shape[:2])
        for number, image in enumerate(images):
            patches[number, : image.rows] = image.pixels
            mask[number, : image.rows] = torch.from_numpy(image.pixels.cpu().numpy().sum(axis=-1) != 0).float()
        return {"flattened_patches": patches, "attention_mask": mask.to(first.device)}

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        (patch_height, patch_width), most = self.patch_size, self.max_patches
        scale = (most * (patch_height / height) * (patch_width / width)) ** 0.5
        rows = max(min(int(scale * height / patch_height), most), 1)
        return rows, max(min(int(scale * width / patch_width), most), 1)


@dataclass(frozen=True, kw_only=True)
class Kosmos25(Pix2Struct):
    """Kosmos-2.5: Pix2Struct's patches, whose grid and size `batch_vision` returns too.

    The processor writes the text of an image before all other, after the `<s>` of the tokenizer.
    """

    num_image_tokens: int = 0
    """Features of an image in the text; 0 if the processor is not known."""
    image_token: str = "<s>"
    boi_token: str = "<image>"
    """Text before the features."""
    eoi_token: str = "</image>"
    """Text after them."""

    family: ClassVar[str] = "kosmos2_5"
    processors: ClassVar[tuple[str, ...]] = ("Kosmos2_5ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("flattened_patches", "width", "height")

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_normalize", True, "the processor fails to cut patches of bytes")
        known = config.take_around("Kosmos2_5Processor") is not None
        size = config.take_size("patch_size", {"height": 16, "width": 16}, square=True, most=LARGEST_PATCH)
        config.require_pil("it rounds and normalises otherwise")
        most = config.take_integer("max_patches", 4096, most=_MOST_PATCHES)
        return cls(
            values=PixelValues(None),
            filter="bilinear",
            convert_rgb=config.take_flag("do_convert_rgb", True),
            patch_size=config.height_and_width("patch_size", size),
            max_patches=4096 if known else most,  # which the processor passes, whatever its image processor says
            num_image_tokens=config.outer_integer("num_image_tokens", 2048) if known else 0,
            **config.take_texts(cls, "image_token", "boi_token", "eoi_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        made = super().layout(width, height)
        markers = 2 if self.num_image_tokens else 0
        return replace(made, num_tokens=self.num_image_tokens + markers, num_markers=markers)

    def image_text(self, layout: ImageLayout) -> str:
        return f"{self.boi_token}{self.image_token * self.num_image_tokens}{self.eoi_token}"

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        views = [image.layout.views[0] for sample in samples for image in sample]
        grids = [image.layout.grid for sample in samples for image in sample]
        facts = {
            "width": [view.width for view in views],
            "height": [view.height for view in views],
            "rows": [rows for rows, _ in grids],
            "cols": [columns for _, columns in grids],
        }
        return {**super().collate(samples), **{key: torch.tensor(numbers) for key, numbers in facts.items()}}
