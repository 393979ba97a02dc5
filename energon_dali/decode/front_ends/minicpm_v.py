"""MiniCPM-V: the whole image, and for large ones the slices of a grid, as patches of their own sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.cutting import cut_patches, cut_tiles
from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.internvl import MOST_TILES
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig
from energon_dali.decode.front_ends.processor_family import check_text
from energon_dali.decode.front_ends.qwen2_vl import LARGEST_PATCH
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch

_MERGED = {"16x": 4, "4x": 2}
"""By downsample_mode: patches per side that become one token."""


@dataclass(frozen=True, kw_only=True)
class MiniCpmV(FrontEnd):
    """Resizes an image to about a square of `slice_side`, and a larger one also to a grid of slices of that size.

    `layout.grid` is (rows, columns) of slices, (0, 0) without. Values: dtype[patches, 3, patch_size, patch_size], those
    of the whole image first; `batch_vision` puts all patches of a batch side by side, as one strip.
    """

    slice_side: int = 448
    """Side in pixels of the square that has as many pixels as a slice ("scale_resolution")."""
    max_slices: int = 9
    """Most slices of an image ("max_slice_nums")."""
    patch_size: int = 14
    """Pixels of a patch's side."""
    merge_size: int = 4
    """Patches per side that become one token ("downsample_mode")."""
    slices: bool = True
    """Whether large images are sliced ("slice_mode")."""
    numbers_images: bool = True
    """Whether `expand_text` writes the number of each image of a sample ("use_image_id")."""
    image_token: str = "<|image_pad|>"
    image_start_token: str = "<image>"
    """Text before the tokens of the whole image."""
    image_end_token: str = "</image>"
    """Text after them."""
    slice_start_token: str = "<slice>"
    """Text before the tokens of a slice."""
    slice_end_token: str = "</slice>"
    """Text after them."""
    image_id_start_token: str = "<image_id>"
    """Text before the number of an image."""
    image_id_end_token: str = "</image_id>"
    """Text after it."""

    family: ClassVar[str] = "minicpm_v"
    processors: ClassVar[tuple[str, ...]] = ("MiniCPMV4_6ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "target_sizes")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_resize", True, "images that are not resized are not whole patches")
        mode = config.take("downsample_mode", "16x")
        if not isinstance(mode, str) or mode not in _MERGED:
            raise config.invalid("downsample_mode", mode, '"16x" or "4x"')
        tokens = ("image_token", "image_start_token", "image_end_token", "slice_start_token", "slice_end_token")
        return cls(
            **config.take_conversion(HALF, HALF, "bicubic"),
            slice_side=config.take_integer("scale_resolution", 448, most=LARGEST_SIDE),
            max_slices=config.take_integer("max_slice_nums", 9, most=MOST_TILES),
            patch_size=config.take_integer("patch_size", 14, most=LARGEST_PATCH),
            merge_size=_MERGED[mode],
            slices=config.take_flag("slice_mode", True),
            numbers_images=config.take_flag("use_image_id", True),
            **config.take_texts(cls, *tokens, "image_id_start_token", "image_id_end_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        grid = _slice_grid(height, width, self.slice_side, self.max_slices) if self.slices else (0, 0)
        rows, columns = grid
        views = [View(*self._resized(height, width, enlarges=not rows))]
        if rows:
            tall, wide = _multiple(height, rows) / rows, _multiple(width, columns) / columns
            tile = self._resized(tall, wide, enlarges=True)
            views.append(View(tile[0] * rows, tile[1] * columns, tile=tile))
        tokens = self._tokens(views[0]) + rows * columns * self._tokens(views[-1])
        markers = 2 + 2 * rows * columns + max(0, rows - 1)
        return ImageLayout(height, width, tuple(views), tokens + markers, grid, num_markers=markers)

    def _resized(self, height: float, width: float, *, enlarges: bool) -> tuple[int, int]:
        """Returns (height, width) in whole tokens, with the pixels of a slice if there are more, or `enlarges`."""
        if height * width > self.slice_side**2 or enlarges:
            ratio = width / height
            height = int(self.slice_side / math.sqrt(ratio))
            width = int(height * ratio)
        block = self.patch_size * self.merge_size
        return _multiple(height, block), _multiple(width, block)

    def _tokens(self, view: View) -> int:
        height, width = view.tile_size
        return (height // self.patch_size) * (width // self.patch_size) // self.merge_size**2

    def image_text(self, layout: ImageLayout) -> str:
        first, last = layout.views[0], layout.views[-1]
        whole = f"{self.image_start_token}{self.image_token * self._tokens(first)}{self.image_end_token}"
        rows, columns = layout.grid
        one = f"{self.slice_start_token}{self.image_token * self._tokens(last)}{self.slice_end_token}"
        return whole + "\n".join([one * columns] * rows)

    def number_tokens(self, number: int) -> int:
        return 2 + len(str(number)) if self.numbers_images else 0  # one per digit, between two markers

    def expand_text(self, text: str, layouts: Iterable[ImageLayout]) -> str:
        """Returns a text with each image token replaced by the tokens of its image, as the processor expands it.

        Args:
            text: With one `image_token` per image; all of a sample, whose images are numbered from 0.
            layouts: Of the images, in the order of the text.

        Raises:
            ConfigError: The text has more or fewer image tokens than there are images.
        """
        check_text(text)
        if self.numbers_images:
            first, *others = text.split(self.image_token)
            start, end = self.image_id_start_token, self.image_id_end_token
            text = first + "".join(
                f"{start}{number}{end}{self.image_token}{piece}" for number, piece in enumerate(others)
            )
        return super().expand_text(text, layouts)

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        import torch

        parts = []
        for view, canvas in self.canvases(pixels, layout):
            tiles = cut_tiles(canvas, *view.tile_size)
            parts += [cut_patches(tile.view(3, *view.tile_size), self.patch_size) for tile in tiles]
        return torch.cat(parts)  # uint8[patches, 3, patch_size ** 2]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        return torch.stack([self.arrange(Pixels(tensor=image), layout) for image in pixels])

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return len(pixels), 3, self.patch_size, self.patch_size

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        values: Any = self.concatenated(images)
        sizes = [
            [view.tile_size[0] // self.patch_size, view.tile_size[1] // self.patch_size]
            for image in images
            for view in image.layout.views
            for _ in range(view.num_tiles)
        ]
        return {
            "pixel_values": values.permute(1, 2, 0, 3).reshape(1, 3, self.patch_size, -1),
            "target_sizes": torch.tensor(sizes, dtype=torch.int32),
            "grids": [list(image.layout.grid) for image in images],
            "num_patches_per_image": [image.layout.num_tiles for image in images],
        }


def _multiple(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)


@lru_cache(maxsize=4096)
def _slice_grid(height: int, width: int, side: int, most: int) -> tuple[int, int]:
    """Returns (rows, columns) of the grid whose shape is closest to an image's; (0, 0) for one of a slice's size."""
    wanted = min(math.ceil(width * height / (side * side)), most)
    if wanted <= 1:
        return 0, 0
    log_ratio = math.log(width / height)
    best, smallest = (1, 1), math.inf
    for count in (wanted - 1, wanted, wanted + 1):
        if count == 1 or count > most:
            continue
        for rows in (number for number in range(1, count + 1) if count % number == 0):
            error = abs(log_ratio - math.log(count // rows / rows))
            if error < smallest or (error == smallest and rows > best[0]):
                best, smallest = (rows, count // rows), error
    return best
