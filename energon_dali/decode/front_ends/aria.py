"""Aria: an image inside a square with black around it, and with splitting the crops of a canvas in squares likewise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import IMAGE, ImageLayout, View
from energon_dali.decode.front_ends.llava_next import choose_resolution, fit, take_resolutions
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_COUNT, ProcessorConfig, is_integer

_TILES = ((1, 2), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7), (1, 8), (2, 4), (2, 3), (2, 2), (2, 1), (3, 1), (3, 2))
_MORE_TILES = ((4, 1), (4, 2), (5, 1), (6, 1), (7, 1), (8, 1))
_RESOLUTIONS = [[490 * rows, 490 * columns] for rows, columns in (*_TILES, *_MORE_TILES)]
_TOKENS = {490: 128, 980: 256}
"""By side of a square: its tokens in the published models ("size_conversion")."""


@dataclass(frozen=True, kw_only=True)
class Aria(FrontEnd):
    """Resizes the longer side to that of a square, and the shorter one with it, to at least `min_side`.

    With `splits`, an image is first fitted into the best of several canvases, whose crops become squares instead.
    Values: dtype[squares, 3, side, side].
    """

    side: int = 980
    """Pixels of the square's side ("max_image_size")."""
    min_side: int = 336
    """Fewest pixels of the shorter side ("min_image_size")."""
    splits: bool = False
    """Whether images are split ("split_image")."""
    resolutions: tuple[tuple[int, int], ...] = ()
    """(height, width) of the canvases ("split_resolutions")."""
    square_tokens: int = 256
    """Tokens of a square."""
    image_token: str = "<|img|>"

    family: ClassVar[str] = "aria"
    processors: ClassVar[tuple[str, ...]] = ("AriaImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD | {"do_resize", "size"}

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        side = config.take_integer("max_image_size", 980)
        splits = config.take_flag("split_image", False)
        if config.take_around("AriaProcessor") is not None:  # it passes these, whatever its image processor says
            side, splits = 980, False
        if side not in _TOKENS:
            raise config.invalid("max_image_size", side, "490 or 980")
        resolutions = take_resolutions(config, "split_resolutions", _RESOLUTIONS)
        if splits and not resolutions:
            raise config.error("split_resolutions is empty, and split_image=True needs one")
        return cls(
            **config.take_conversion(HALF, HALF, "bicubic"),
            side=side,
            min_side=config.take_integer("min_image_size", 336, most=side),
            splits=splits,
            resolutions=resolutions,
            square_tokens=_tokens_of(config, side),
            image_token=config.outer_text("image_token", cls.image_token),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        if not self.splits:
            return ImageLayout(height, width, (self._square(height, width),), self.square_tokens)
        tall, wide = canvas = choose_resolution(height, width, self.resolutions)
        inner = fit(height, width, canvas)
        position = ((tall - inner[0]) // 2, (wide - inner[1]) // 2)
        views = [View(*inner, canvas=canvas, position=position, emitted=False)]
        for top in range(0, tall, self.side):
            for left in range(0, wide, self.side):
                bottom, right = min(top + self.side, tall), min(left + self.side, wide)
                views.append(self._square(bottom - top, right - left, source=0, box=(left, top, right, bottom)))
        return ImageLayout(height, width, tuple(views), (len(views) - 1) * self.square_tokens)

    def _square(
        self, height: int, width: int, *, source: int = IMAGE, box: tuple[int, int, int, int] | None = None
    ) -> View:
        scale = self.side / max(height, width)
        size = (
            (max(int(height * scale), self.min_side), self.side)
            if width >= height
            else (self.side, max(int(width * scale), self.min_side))
        )
        return View(*size, canvas=(self.side, self.side), source=source, box=box)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        images = [image for sample in samples for image in sample]
        views = [view for image in images for view in image.layout.views if view.emitted]
        mask = torch.zeros((len(views), self.side, self.side), dtype=torch.bool)
        for view, row in zip(views, mask, strict=True):
            row[: view.height, : view.width] = True
        most = max(image.rows for image in images)
        return {"pixel_values": self.concatenated(images), "pixel_mask": mask, "num_crops": torch.tensor(most)}


def _tokens_of(config: ProcessorConfig, side: int) -> int:
    """Returns the tokens of a square, which the processor around it has by the square's side.

    Raises:
        ConfigError: It has no whole number for this side.
    """
    given = config.outer.get("size_conversion", _TOKENS)
    if not isinstance(given, Mapping):
        raise config.invalid("size_conversion", given, "an object with the tokens of a square by its side")
    tokens = given.get(side, given.get(str(side)))  # JSON has texts as keys
    if not is_integer(tokens) or not 1 <= tokens <= LARGEST_COUNT:
        raise config.invalid(
            "size_conversion", given, f"tokens by side, from 1 to {LARGEST_COUNT:,}, {side} among them"
        )
    return int(tokens)
