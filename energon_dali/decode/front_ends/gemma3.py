"""Gemma 3: images of one size; with "pan and scan", the crops of long ones follow them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, LARGEST_SIDE, ProcessorConfig
from energon_dali.errors import ConfigError, DecodeError

_PROCESSOR_DEFAULTS = {
    "do_pan_and_scan": False,
    "pan_and_scan_min_crop_size": 256,
    "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}
"""What Gemma3Processor passes to its image processor, whatever that is set to."""
_MOST = {"pan_and_scan_min_crop_size": LARGEST_SIDE, "pan_and_scan_max_num_crops": 256}
_WORDS_AROUND_CROPS = 17
"""Tokens of the words of `image_text` with crops: each of the 15 words, and the space before an image, is one."""


@dataclass(frozen=True, kw_only=True)
class Gemma3(FrontEnd):
    """Resizes an image to a size; with `do_pan_and_scan`, also crops of an image whose sides differ much in length.

    `layout.grid` is (crops,). Values: dtype[1 + crops, 3, height, width], the whole image first.
    """

    size: tuple[int, int] | None = (224, 224)
    """(height, width) of the image and of each crop; None does not resize."""
    do_pan_and_scan: bool = False
    """Whether crops are added. Gemma3Processor adds none unless its caller says so."""
    pan_and_scan_min_crop_size: int = 256
    """Fewest pixels of a crop's shorter side, before resizing."""
    pan_and_scan_max_num_crops: int = 4
    """Most crops of an image."""
    pan_and_scan_min_ratio_to_activate: float = 1.2
    """Ratio of the longer to the shorter side from which an image is cropped."""
    image_seq_length: int = 256
    """Tokens of the image and of each crop."""
    image_token: str = "<start_of_image>"
    """Placeholder of an image in the text. In the expanded text it is before the features."""
    feature_token: str = "<image_soft_token>"
    """Placeholder of a feature in the expanded text."""
    end_token: str = "<end_of_image>"
    """Text after the features."""
    blank_line_tokens: int = 1
    """Tokens of an empty line in the tokenizer: 1 if it merges two line breaks."""

    family: ClassVar[str] = "gemma3"
    processors: ClassVar[tuple[str, ...]] = ("Gemma3ImageProcessor",)
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD
    separate_placeholder: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pan_and_scan_min_crop_size < 1 or self.pan_and_scan_max_num_crops < 1:
            raise ConfigError(
                f"Gemma3(pan_and_scan_min_crop_size={self.pan_and_scan_min_crop_size}, "
                f"pan_and_scan_max_num_crops={self.pan_and_scan_max_num_crops}) is invalid. Both must be at least 1."
            )

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        pair = config.take_pair(224)
        given = {name: config.take(name) for name in _PROCESSOR_DEFAULTS}
        if config.outer:
            passed = config.outer.get("images_kwargs")
            given.update(_PROCESSOR_DEFAULTS)
            if isinstance(passed, Mapping):
                given.update({name: passed[name] for name in given if passed.get(name) is not None})
        elif given["do_pan_and_scan"]:
            missing = [name for name, value in given.items() if value is None]
            if missing:
                raise config.error(f"do_pan_and_scan is set, but {', '.join(missing)} is not")
        # Checked like values of the file itself.
        scan = ProcessorConfig({**given, "image_processor_type": config.type_name})
        sizes: dict[str, Any] = {
            name: scan.take_integer(name, getattr(cls, name), most=most) for name, most in _MOST.items()
        }
        own_length = config.take_integer("image_seq_length", cls.image_seq_length)
        return cls(
            values=config.take_values(mean=HALF, std=HALF),
            filter=config.take_filter("bilinear"),
            convert_rgb=config.take_flag("do_convert_rgb", True) or bool(config.outer),
            size=pair,
            do_pan_and_scan=scan.take_flag("do_pan_and_scan", cls.do_pan_and_scan),
            **sizes,
            pan_and_scan_min_ratio_to_activate=scan.take_number(
                "pan_and_scan_min_ratio_to_activate", cls.pan_and_scan_min_ratio_to_activate
            ),
            image_seq_length=config.outer_integer("image_seq_length", own_length, least=1),
            image_token=config.outer_text("boi_token", cls.image_token),
            placeholder_id=config.start_token_id,
            blank_line_tokens=config.blank_line_tokens(),
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        boxes = self._crops(width, height) if self.do_pan_and_scan else []
        out_height, out_width = self.size or (height, width)
        views = [View(out_height, out_width)]
        for box in boxes:
            if self.size is None:
                raise DecodeError("The processor does not resize, and an image and its crops differ in size")
            views.append(View(out_height, out_width, box=box))
        return ImageLayout(height, width, tuple(views), self.image_seq_length * len(views), (len(boxes),))

    def _crops(self, width: int, height: int) -> list[tuple[int, int, int, int]]:
        """Returns the boxes of the crops: equal parts of the longer side. The last ones may be smaller, or empty."""
        long, short = max(width, height), min(width, height)
        if long / short < self.pan_and_scan_min_ratio_to_activate:
            return []
        count = min(math.floor(long / self.pan_and_scan_min_crop_size), math.floor(long / short + 0.5))
        count = min(self.pan_and_scan_max_num_crops, max(2, count))
        length = math.ceil(long / count)
        if min(length, short) < self.pan_and_scan_min_crop_size:
            return []
        edges = [(min(start * length, long), min((start + 1) * length, long)) for start in range(count)]
        if width >= height:
            return [(first, 0, last, height) for first, last in edges]
        return [(0, first, width, last) for first, last in edges]

    def image_text(self, layout: ImageLayout) -> str:
        features = self.feature_token * self.image_seq_length
        image = f"\n\n{self.image_token}{features}{self.end_token}\n\n"
        (crops,) = layout.grid
        if not crops:
            return image
        return f"Here is the original image {image} and here are some crops to help you see better " + " ".join(
            [image] * crops
        )

    def text_tokens(self, layout: ImageLayout) -> int:
        """Returns the tokens of `image_text`; the words around crops are counted as Gemma's tokenizer splits them."""
        views = len(layout.views)
        markers = views * (2 + 2 * self.blank_line_tokens)
        if views == 1:
            return layout.num_tokens + markers
        return layout.num_tokens + markers + _WORDS_AROUND_CROPS + views - 2  # spaces between crops

    def kept_placeholders(self, layout: ImageLayout) -> int:
        return len(layout.views)

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        return {"num_crops": [image.layout.grid[0] for image in images]}
