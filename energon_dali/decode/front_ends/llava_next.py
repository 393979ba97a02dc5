"""LLaVA-NeXT: tiles of the best resolution of a list, and tokens without those of the padding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import CLIP_MEAN, CLIP_STD, cropped_view, resized_size
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import LARGEST_SIDE, ProcessorConfig, is_integer
from energon_dali.decode.front_ends.value_memory import empty_values
from energon_dali.errors import ConfigError, DecodeError

if TYPE_CHECKING:
    import torch

_RESOLUTIONS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))


@dataclass(frozen=True, kw_only=True)
class AnyResolution(FrontEnd):
    """Fits an image into the best of several resolutions, with black around it, and cuts that into tiles.

    Values: dtype[1 + tiles, 3, height, width]: the whole image resized to one tile, then the tiles row by row.
    """

    resolutions: tuple[tuple[int, int], ...]
    """(height, width) of the canvases that an image may be fitted into ("image_grid_pinpoints")."""
    overview: tuple[int, int]
    """(height, width) that the whole image is resized to, whatever its aspect ratio."""
    cut: int
    """Side of the squares that a canvas is cut into, in pixels."""
    size: tuple[int, int] | None = None
    """(height, width) that the overview and the squares are resized to; None with `shortest_edge`, or if they are not
    resized."""
    shortest_edge: int | None = None
    """Length that their shorter side is resized to."""
    crop: tuple[int, int] | None = None
    """(height, width) of their centre that is kept; None keeps all."""
    pads_batch: bool = True
    """Whether `batch_vision` appends zeros to images with fewer tiles. If not, and numbers differ, it returns a list of
    tensors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self.tile_size
        if not self.resolutions or any(tall < height or wide < width for tall, wide in self.resolutions):
            raise ConfigError(
                f"{type(self).__name__}(resolutions={self.resolutions}) has no entry, or one that is smaller than a "
                f"tile of {height} x {width}. The processor cannot count the tokens of such an image. Give "
                "image_grid_pinpoints of at least one tile."
            )

    @property
    def tile_size(self) -> tuple[int, int]:
        """(height, width) of a tile in the result."""
        return cropped_view(*resized_size(self.cut, self.cut, self.size, self.shortest_edge), self.crop).canvas_size

    def views(self, height: int, width: int) -> tuple[View, ...]:
        """Returns the views of an image: overview and tiles.

        Raises:
            DecodeError: They have different sizes.
        """
        views: list[View] = []
        self._finish(views, self.overview, None)
        canvas = choose_resolution(height, width, self.resolutions)
        fitted = fit(height, width, canvas)
        position = ((canvas[0] - fitted[0]) // 2, (canvas[1] - fitted[1]) // 2)
        square = (self.cut, self.cut)
        whole = not (canvas[0] % self.cut or canvas[1] % self.cut)
        if whole and self.finished_view(square) == View(*square):
            views.append(View(*fitted, canvas=canvas, position=position, tile=square))
        else:
            source = len(views)
            views.append(View(*fitted, canvas=canvas, position=position, emitted=False))
            for top in range(0, canvas[0], self.cut):
                for left in range(0, canvas[1], self.cut):
                    box = (left, top, min(left + self.cut, canvas[1]), min(top + self.cut, canvas[0]))
                    self._finish(views, (box[3] - top, box[2] - left), box, source)
        if len({view.tile_size for view in views if view.emitted}) > 1:
            raise DecodeError(
                f"{width} x {height} pixels become tiles of different sizes, which the processor cannot stack"
            )
        return tuple(views)

    def finished_view(self, size: tuple[int, int], **fields: Any) -> View:
        """Returns the view of pixels of a size after the processor's last resizing and crop."""
        return cropped_view(
            *resized_size(*size, self.size, self.shortest_edge), self.crop, by=self.values.arithmetic, **fields
        )

    def _finish(
        self, views: list[View], size: tuple[int, int], box: tuple[int, int, int, int] | None, source: int = -1
    ) -> None:
        """Appends the views of a box of a source, or of all of it resampled to a size, finished."""
        if box is not None:
            views.append(self.finished_view(size, box=box, source=source))
        elif self.finished_view(size) == View(*size):
            views.append(View(*size))
        else:
            views += (View(*size, emitted=False), self.finished_view(size, source=len(views)))

    def concatenated(self, images: Sequence[VisionInput]) -> torch.Tensor | list[torch.Tensor]:
        """Returns dtype[images, tiles, 3, height, width], or one tensor per image."""
        most = max(image.rows for image in images)
        if not self.pads_batch and any(image.rows != most for image in images):
            return [image.values for image in images]
        tile = self.values_shape(images[0].pixels, images[0].layout)[1:]
        stacked = empty_values((len(images), most, *tile), self.torch_dtype, images[0].pixels.device)
        for image, tiles in zip(images, stacked, strict=True):
            image.front_end.finish(image.pixels, image.layout, tiles[: image.rows])
            tiles[image.rows :] = 0
        return stacked

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"image_sizes": [(image.layout.height, image.layout.width) for image in images]}


@dataclass(frozen=True, kw_only=True)
class LlavaNext(AnyResolution):
    """Tiles of the best of several resolutions, and an overview. `layout.grid` is (height, width) of the resolution.

    Tokens: those of the overview, those of the tiles without padding, and one at the end of each row of the tiles.
    """

    patch_size: int = 14
    """Pixels of a patch's side in the vision tower."""
    vision_feature_select_strategy: str | None = "default"
    """"default" drops one feature of an image, the class token; others keep all."""
    num_additional_image_tokens: int = 1
    """Features of the vision tower next to those of patches, such as its class token."""

    family: ClassVar[str] = "llava_next"
    processors: ClassVar[tuple[str, ...]] = ("LlavaNextImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "image_sizes")
    unused_keys: ClassVar[frozenset[str]] = frozenset({"aspect_ratio_setting", "pad_size"})

    def __post_init__(self) -> None:
        super().__post_init__()
        height, width = self.tile_size
        if not 0 < self.patch_size <= min(height, width):
            raise ConfigError(
                f"LlavaNext(patch_size={self.patch_size}) leaves no whole patch in a tile of {height} x {width}, so "
                "the tokens of an image cannot be counted. Give a patch_size between 1 and the side of a tile "
                "(size and crop_size)."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        fields = take_resolution_fields(
            config, {"shortest_edge": 224}, {"height": 224, "width": 224}, True, _RESOLUTIONS
        )
        outer = config.outer
        around = config.take_around("LlavaNextProcessor", "LlavaNextVideoProcessor")
        # LLaVA-NeXT's processor pads whatever its image processor says.
        fields["pads_batch"] = fields["pads_batch"] or around is not None
        if "patch_size" in outer:
            fields["patch_size"] = config.outer_integer("patch_size", 14, least=1)
            fields["vision_feature_select_strategy"] = config.outer_strategy()
            fields["num_additional_image_tokens"] = config.outer_integer("num_additional_image_tokens", 0)
        return cls(**fields)

    def layout(self, width: int, height: int) -> ImageLayout:
        views = self.views(height, width)
        canvas = choose_resolution(height, width, self.resolutions)
        tile_height, tile_width = self.tile_size
        tile_rows, tile_columns = tile_height // self.patch_size, tile_width // self.patch_size
        rows, columns = without_padding(
            height, width, tile_rows * (canvas[0] // tile_height), tile_columns * (canvas[1] // tile_width)
        )
        tokens = tile_rows * tile_columns + self.num_additional_image_tokens + rows * columns + rows
        if self.vision_feature_select_strategy == "default":
            tokens -= 1
        return ImageLayout(height, width, views, tokens, canvas)


def take_resolution_fields(
    config: ProcessorConfig, size: dict[str, int], crop_size: dict[str, int], crops: bool, resolutions: Any
) -> dict[str, Any]:
    """Takes the values that both processors have, and returns fields of `AnyResolution`.

    Args:
        config: Of the processor.
        size: Default of size.
        crop_size: Default of crop_size; empty if there is none.
        crops: Default of do_center_crop.
        resolutions: Default of image_grid_pinpoints.

    Raises:
        ConfigError: A value is not supported.
    """
    size = config.take_size("size", size)
    crop_size = config.take_size("crop_size", crop_size, square=True)
    edge = size.get("shortest_edge")
    pair = (size["height"], size["width"]) if size.keys() == {"height", "width"} else None
    if (pair is None) == (edge is None) or size.keys() - {"height", "width", "shortest_edge"}:
        raise config.error(f"size={size} is neither a height and a width nor a shortest_edge")
    overview = pair or (edge or 0, edge or 0)
    cut = crop_size.get("height") or overview[0]
    crop = None
    if config.take_flag("do_center_crop", crops):
        if crop_size.keys() != {"height", "width"}:
            raise config.error(f"do_center_crop=True needs a height and a width, and crop_size={crop_size}")
        crop = (crop_size["height"], crop_size["width"])
    resizes = config.take_flag("do_resize", True)
    return {
        **config.take_conversion(CLIP_MEAN, CLIP_STD, "bicubic"),
        "resolutions": take_resolutions(config, "image_grid_pinpoints", resolutions),
        "overview": overview,
        "cut": cut,
        "size": pair if resizes else None,
        "shortest_edge": edge if resizes else None,
        "crop": crop,
        "pads_batch": config.take_flag("do_pad", True),
        "image_token": config.outer_text("image_token", AnyResolution.image_token),
    }


def take_resolutions(config: ProcessorConfig, name: str, default: Any) -> tuple[tuple[int, int], ...]:
    """Returns a list of (height, width) of canvases.

    Args:
        config: Of the processor.
        name: Of the list.
        default: If the configuration does not have it.

    Raises:
        ConfigError: It is something else.
    """
    given = config.take(name, default)
    canvases = _pairs(given)
    if canvases is None:
        raise config.invalid(name, given, f"a list of [height, width], whole numbers between 1 and {LARGEST_SIDE:,}")
    return canvases


def _pairs(given: Any) -> tuple[tuple[int, int], ...] | None:
    """Returns the entries of image_grid_pinpoints, or None if one is not a height and a width."""
    if not isinstance(given, (list, tuple)):
        return None
    pairs = []
    for entry in given:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            return None
        if not all(is_integer(side) and 1 <= side <= LARGEST_SIDE for side in entry):
            return None
        pairs.append((int(entry[0]), int(entry[1])))
    return tuple(pairs)


@lru_cache(maxsize=4096)
def choose_resolution(height: int, width: int, resolutions: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """Returns the (height, width) in which an image keeps most of its pixels and leaves least of the canvas empty."""
    best, best_kept, best_empty = resolutions[0], -1, 0
    for tall, wide in resolutions:
        scale = min(wide / width, tall / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        empty = tall * wide - kept
        if kept > best_kept or (kept == best_kept and empty < best_empty):
            best, best_kept, best_empty = (tall, wide), kept, empty
    return best


def fit(height: int, width: int, canvas: tuple[int, int]) -> tuple[int, int]:
    """Returns the largest (height, width) of an image inside a canvas, with its aspect ratio, rounded up."""
    tall, wide = canvas
    if wide / width < tall / height:
        return min(math.ceil(height * (wide / width)), tall), wide
    return tall, min(math.ceil(width * (tall / height)), wide)


def without_padding(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Returns (rows, columns) of features that remain of a canvas when those of the padding are removed.

    Args:
        height: Of the image in pixels.
        width: Likewise.
        rows: Features of the canvas.
        columns: Likewise.
    """
    if width / height > columns / rows:
        kept = int(round(height * (columns / width), 7))
        return rows - (rows - kept) // 2 * 2, columns
    kept = int(round(width * (rows / height), 7))
    return rows, columns - (columns - kept) // 2 * 2
