"""From an image and its caption to rows: what is CPU work in the workers, what needs pixels after the decoder.

Crude samples are made into captioning samples, so that shards of images and texts need no field map.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

import numpy as np

from energon_dali.decode import MediaHandle, Resize
from energon_dali.decode.geometry import handle_geometry
from energon_dali.errors import ConfigError, DatasetError, DecodeError
from energon_dali.samples import CaptioningSample, CrudeSample
from energon_dali.samples.base import join_sources
from energon_dali.task_encoder.cooking import Cooker, basic_sample_keys
from energon_dali.task_encoder.encoder import TaskEncoder
from energon_dali.task_encoder.packing import PackSelection, SequencePacker
from energon_dali.task_encoder.stateless import stateless
from energon_dali.tasks.captioning.rows import CaptioningBatch, CaptionRow, EncodedCaption, lay_rows
from energon_dali.tasks.tokenizers import TextCodec, Tokenizer

CAPTION_PARTS = ("txt", "caption", "text")
"""Parts that may be the caption, also fields of a part `json`; the first that is there is taken."""


@stateless
def cook_caption(sample: CrudeSample) -> CaptioningSample:
    """Returns the first image of a crude sample with its caption.

    Args:
        sample: Its image is a handle, or uint8[H, W, 3].

    Raises:
        DatasetError: It has no image, or no caption.
    """
    parts = {name: value for name, value in sample.items() if not name.startswith("__")}
    image = next((value for value in parts.values() if _is_image(value)), None)
    described = {**value, **parts} if isinstance(value := parts.get("json"), Mapping) else parts
    caption = next((described[name] for name in CAPTION_PARTS if isinstance(described.get(name), str)), None)
    if image is None or caption is None:
        missing = "image" if image is None else f"caption ({', '.join(CAPTION_PARTS)}, also in json)"
        raise DatasetError(
            f"Sample {sample['__key__']} has no {missing}; its parts are {', '.join(parts)}. Prepare the dataset as "
            "CaptioningSample with a field map that names its parts."
        )
    return CaptioningSample(**basic_sample_keys(sample), image=image, caption=caption)


def _is_image(value: Any) -> bool:
    return isinstance(value, MediaHandle) or len(getattr(value, "shape", ())) == 3


def image_options(shorter_px: int) -> dict[str, Any]:
    """Returns the options of a decoder whose images this encoder takes.

    Args:
        shorter_px: Pixels of the shorter side; the aspect ratio is kept.
    """
    return {"image_decode": "torchrgb8", "image_layout": "HWC", "operations": (Resize(shorter_px),)}


class CaptioningTaskEncoder(TaskEncoder[CaptioningSample, EncodedCaption, CaptioningBatch, CaptioningBatch]):
    """Rows of one sample each, as long as the longest of their batch.

    The tokens of a sample and the number of its patches are known before its image is decoded (`preencode_sample`, in
    the workers); only what was chosen for a row is decoded, and cut into patches together with its batch.

    Args:
        tokenizer: Of the captions.
        decoder: Made with `image_options`.
        patch_size: Pixels along each side of a patch.
        shorter_px: Pixels of the shorter side of each image.
        longest_px: Pixels of the longer side at most; what is longer loses its ends, evenly.
        max_caption_tokens: Tokens of a caption at most; the rest is cut off.
    """

    cookers = (Cooker(cook_caption),)

    def __init__(
        self,
        tokenizer: Tokenizer,
        decoder: Any,
        *,
        patch_size: int,
        shorter_px: int,
        longest_px: int,
        max_caption_tokens: int,
    ) -> None:
        self.codec = TextCodec(tokenizer)
        self.decoder = decoder
        self.patch_size = patch_size
        self.shorter_px = shorter_px
        self.longest_px = longest_px
        self.max_caption_tokens = max_caption_tokens

    @stateless
    def preencode_sample(self, sample: CaptioningSample) -> EncodedCaption:  # type: ignore[override]
        """Returns the sample with its caption as tokens and the number of its patches; its image stays as it is."""
        height, width = size_of(sample.image)
        tokens = self.codec.encode(sample.caption, self.max_caption_tokens)
        return EncodedCaption.derive_from(
            sample,
            image=sample.image,
            caption=sample.caption,
            tokens=np.asarray(tokens, np.int64),
            grid=(self._patches_along(height), self._patches_along(width)),
        )

    @stateless
    def postencode_sample(self, sample: EncodedCaption) -> EncodedCaption:  # type: ignore[override]
        """Returns the sample with its image cut to the longest side that is allowed.

        Raises:
            DecodeError: The image is of another size than its header says.
        """
        height, width = sample.image.shape[:2]
        if (self._patches_along(height), self._patches_along(width)) != sample.grid:
            raise DecodeError(
                f"An image of {height} x {width} pixels came where its header promised {sample.grid} patches of "
                f"{self.patch_size} pixels (rows, columns); it is left out."
            )
        if max(height, width) > self.longest_px:  # a view: patchify reads images of any strides
            top, left = max(0, height - self.longest_px) // 2, max(0, width - self.longest_px) // 2
            sample.image = sample.image[top : top + self.longest_px, left : left + self.longest_px]
        return sample

    @stateless
    def batch(self, samples: list[EncodedCaption]) -> CaptioningBatch:
        """Returns the batch with a row for each sample."""
        return self._lay([[sample] for sample in samples], max(sample.length for sample in samples))

    def _lay(self, rows: list[list[EncodedCaption]], row_length: int) -> CaptioningBatch:
        return lay_rows(rows, row_length, patch_size=self.patch_size, padding=self.codec.padding)

    def _patches_along(self, side_px: int) -> int:
        return -(-min(side_px, self.longest_px) // self.patch_size)


class PackedCaptioningTaskEncoder(CaptioningTaskEncoder):
    """Rows of one length, each with as many samples as fit.

    Args:
        row_length: Places of a row.
        max_padding: Share of a row that may stay empty, 0 to 1 (`SequencePacker`).
        **options: As for CaptioningTaskEncoder.

    Raises:
        ConfigError: A row could not hold the largest image with the longest caption.
    """

    def __init__(self, *args: Any, row_length: int, max_padding: float = 0.05, **options: Any) -> None:
        super().__init__(*args, **options)
        largest = self._patches_along(self.shorter_px) * self._patches_along(self.longest_px)
        longest = largest + self.max_caption_tokens + 1
        if row_length < longest:
            raise ConfigError(
                f"row_length={row_length} cannot hold an image of {self.shorter_px} x {self.longest_px} pixels with a "
                f"caption of {self.max_caption_tokens} tokens, which take {longest} places. Give a row_length "
                "from that on, or smaller longest_px or max_caption_tokens."
            )
        self.row_length = row_length
        self.packer = SequencePacker(row_length, length=attrgetter("length"), max_padding=max_padding)

    def select_samples_to_pack(self, samples: list[EncodedCaption]) -> PackSelection[EncodedCaption]:
        """Returns the samples of each row, chosen by best fit."""
        return self.packer(samples)

    @stateless
    def pack_selected_samples(self, samples: list[EncodedCaption]) -> CaptionRow:  # type: ignore[override]
        """Returns the samples as one row; it is laid out together with its batch."""
        return CaptionRow.derive_from(samples[0], captions=samples, __sources__=join_sources(samples))

    @stateless
    def batch(self, samples: list[CaptionRow]) -> CaptioningBatch:  # type: ignore[override]
        """Returns the batch of the rows."""
        return self._lay([row.captions for row in samples], self.row_length)


def size_of(image: Any) -> tuple[int, int]:
    """Returns (height, width) in pixels of an image uint8[H, W, 3], or that a handle will have once decoded.

    Raises:
        DecodeError: The decoder's operations cannot be done to it.
    """
    if not isinstance(image, MediaHandle):
        return image.shape[0], image.shape[1]
    geometry = handle_geometry(image)
    if geometry is not None:
        return geometry.out_height, geometry.out_width
    turned = image.spec.apply_exif_orientation and image.orientation >= 5
    return (image.width, image.height) if turned else (image.height, image.width)
