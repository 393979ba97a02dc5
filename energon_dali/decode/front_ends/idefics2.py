"""Idefics 2: images within a range of sides, padded to the largest of a batch; with splitting, their quarters too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig
from energon_dali.decode.front_ends.value_memory import zero_values
from energon_dali.errors import DecodeError


@dataclass(frozen=True, kw_only=True)
class Idefics2(FrontEnd):
    """Brings the sides of an image into a range; with `splits`, those of its quarters too, which are before it.

    Values: dtype[1 or 5, 3, height, width] of the largest, zeros at the bottom and on the right of the others.
    `batch_vision` keeps samples apart and pads them likewise.
    """

    shortest_edge: int | None = 378
    """Fewest pixels of a side; None with `size`, or without resizing."""
    longest_edge: int | None = 980
    """Most pixels of the longer side."""
    size: tuple[int, int] | None = None
    """(height, width) of the image and of each quarter."""
    splits: bool = False
    """Whether quarters are added ("do_image_splitting")."""
    image_seq_len: int = 64
    """Tokens of an image, and of each quarter."""
    fake_image_token: str = "<fake_token_around_image>"
    """Text before and after the tokens of an image or quarter, once between two."""
    image_token: str = "<image>"

    family: ClassVar[str] = "idefics2"
    processors: ClassVar[tuple[str, ...]] = ("Idefics2ImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values", "pixel_attention_mask")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD
    fill: ClassVar[tuple[int, int, int] | None] = None

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        config.require("do_pad", True, "images of different sizes form no batch without padding")
        size = config.take_size("size", {"shortest_edge": 378, "longest_edge": 980})
        resizes = config.take_flag("do_resize", True)
        pair = (size["height"], size["width"]) if {"height", "width"} <= size.keys() else None
        edges = size.get("shortest_edge"), size.get("longest_edge")
        if None in edges:
            edges = None, None
            if pair is None:
                raise config.error(f"size={size} is neither a height and a width nor a shortest_edge and longest_edge")
        return cls(
            **config.take_conversion(HALF, HALF, "bilinear"),
            shortest_edge=edges[0] if resizes else None,
            longest_edge=edges[1] if resizes else None,
            size=pair if resizes and edges[0] is None else None,
            splits=config.take_flag("do_image_splitting", False),
            image_seq_len=config.outer_integer("image_seq_len", 64, least=1),
            **config.take_texts(cls, "image_token", "fake_image_token"),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        boxes: list[tuple[int, int, int, int] | None] = [None]
        if self.splits:
            x, y = width // 2, height // 2
            boxes = [(0, 0, x, y), (x, 0, width, y), (0, y, x, height), (x, y, width, height), None]
        sizes = [
            self._resized(*((height, width) if box is None else (box[3] - box[1], box[2] - box[0]))) for box in boxes
        ]
        canvas = (max(size[0] for size in sizes), max(size[1] for size in sizes))
        views = tuple(View(*size, box=box, canvas=canvas) for size, box in zip(sizes, boxes, strict=True))
        markers = len(views) + 1
        return ImageLayout(height, width, views, len(views) * self.image_seq_len + markers, num_markers=markers)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Returns (height, width) with the longer side at most a length, then each side at least one."""
        if self.size is not None:
            return self.size
        if self.shortest_edge is None or self.longest_edge is None:
            return height, width
        if not height:
            raise DecodeError("An image of one row has quarters without rows, which the processor refuses")
        ratio = width / height
        if width >= height and width > self.longest_edge:
            width = self.longest_edge
            height = int(width / ratio)
        elif height > width and height > self.longest_edge:
            height = self.longest_edge
            width = int(height * ratio)
        return max(height, self.shortest_edge), max(width, self.shortest_edge)

    def image_text(self, layout: ImageLayout) -> str:
        tokens = self.image_token * self.image_seq_len
        return self.fake_image_token + (tokens + self.fake_image_token) * len(layout.views)

    def expand_text(self, text: str, layouts: Iterable[ImageLayout]) -> str:
        """Returns a text with each image token replaced by the tokens of its image, as the processor expands it.

        Images that follow each other share the marker between them, which counts of tokens do not see. A space is
        written between a marker and a word.

        Args:
            text: With one `image_token` per image.
            layouts: Of the images, in the order of the text.

        Raises:
            ConfigError: The text has more or fewer image tokens than there are images.
        """
        fake = self.fake_image_token
        expanded = super().expand_text(text, layouts).replace(fake + fake, fake)
        return re.sub(rf"{re.escape(fake)}(?=[^\s<])", f"{fake} ", expanded)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        inputs = [image for sample in samples for image in sample]
        sides = [view.canvas_size for image in inputs for view in image.layout.views]
        height, width = max(side[0] for side in sides), max(side[1] for side in sides)
        counts = [sum(image.rows for image in sample) for sample in samples]
        shape = (len(samples), max(counts), 3, height, width)
        values = zero_values(shape, self.torch_dtype, inputs[0].pixels.device)
        mask = torch.zeros((*shape[:2], height, width), dtype=torch.int64, device=values.device)
        for number, sample in enumerate(samples):
            start = 0
            for image in sample:
                tall, wide = image.layout.views[0].canvas_size
                values[number, start : start + image.rows, :, :tall, :wide] = image.values
                for row, view in enumerate(image.layout.views, start):
                    mask[number, row, : view.height, : view.width] = 1
                start += image.rows
        return {"pixel_values": values, "pixel_attention_mask": mask}
