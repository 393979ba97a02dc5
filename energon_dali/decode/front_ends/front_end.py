"""The description of what a vision-language model wants of an image: sizes as integers, and how to render them."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from typing_extensions import Self

from energon_dali.calls import CallableT
from energon_dali.decode.front_ends.annotations import place_boxes, place_map
from energon_dali.decode.front_ends.cutting import clear_outside, cut_all_tiles, placed
from energon_dali.decode.front_ends.folding import fold_into
from energon_dali.decode.front_ends.layout import IMAGE, ImageLayout, View
from energon_dali.decode.front_ends.pixel_values import PixelValues
from energon_dali.decode.front_ends.processor_config import is_integer
from energon_dali.decode.front_ends.processor_family import (
    ProcessorFamily,
    check_text,
    checked_layouts,
    expand_placeholders,
)
from energon_dali.decode.front_ends.resampling import PIL_FILTERS, Filter, Pixels, Resampling
from energon_dali.decode.front_ends.value_memory import empty_values
from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import ArrayLike, NDArray

    from energon_dali.decode.spec import ImageDtype

DTYPES = ("float32", "bfloat16", "float16", "uint8")
_LARGEST_VALUES = {"float32": 3.4e38, "bfloat16": 3.38e38, "float16": 65504.0, "uint8": 3.4e38}
"""By dtype, what the values of bytes may be; for "uint8" what the model makes of them."""


@dataclass(frozen=True, kw_only=True)
class FrontEnd(ProcessorFamily):
    """What a vision-language model wants of an image, declared on a decoder; `from_processor` makes one.

    It has two halves. `layout` computes canvas, tiles, patch grid and number of tokens from the size in the header.
    `render` resamples, pads, cuts, rescales and normalises decoded pixels. Values are frozen, hashable and picklable.

        front_end = FrontEnd.from_processor("folder/of/a/processor", dtype="bfloat16")
        front_end.layout(1024, 768).num_tokens
        decoder = DaliDecoder(front_end=front_end)      # images become VisionInput

    Raises:
        ConfigError: A field has an invalid value.
    """

    values: PixelValues
    """What a byte becomes."""
    filter: Filter
    """The filter of all resamplings."""
    resampling: Resampling = "pil"
    """Who resamples: "pil" or "torch"."""
    dtype: ImageDtype = "float32"
    """Type of the values: "float32", "bfloat16", "float16", or "uint8": bytes that the model normalises
    (`normalization`)."""
    image_token: str = "<image>"
    """Placeholder of an image in the text, and of each of its features after `expand_text`."""
    image_token_id: int | None = None
    """Id of an image's features in the expanded text, by which token counts recognise an expanded text: that of
    `image_token`, except where `separate_placeholder` is set. `from_processor` takes it from a processor that has a
    tokenizer, or from the config.json of a model's folder."""
    placeholder_id: int | None = None
    """Id of `image_token`, if it is not that of a feature (Gemma 3, Llama 4); taken likewise."""
    convert_rgb: bool = True
    """Converts gray, palette and CMYK images to RGB and puts transparent ones on white. If not, an image that is not
    RGB is a DecodeError of its sample."""

    torchvision_only: ClassVar[frozenset[str]] = frozenset()
    """Those of `processors` that transformers has with the torchvision backend alone: a folder's values follow it."""
    token_ids: ClassVar[tuple[str, ...]] = ("image_token_id", "placeholder_id")
    """Fields that are ids of tokens."""
    model_keys: ClassVar[tuple[str, ...]] = ("pixel_values",)
    """Keys of `collate` that the model's forward takes."""
    channels_last: ClassVar[bool] = False
    """Whether the fastest axis of a patch is the channel."""
    float_backends: ClassVar[frozenset[str]] = frozenset()
    """Backends of the processors ("pil", "torch") that return float32 even if they neither rescale nor normalise. The
    others return bytes then."""
    separate_placeholder: ClassVar[bool] = False
    """Whether `image_token` is another token than that of a feature, which the field `feature_token` then names."""
    encoder_patch: ClassVar[int] = 14
    """Pixels of a patch's side in the vision encoders of the published models, where no field says it."""
    fill: ClassVar[tuple[int, int, int] | None] = (0, 0, 0)
    """Bytes around a view on its canvas; None: zeros after normalisation."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "layout" in cls.__dict__:
            cls.layout = _of_pixels(cls.layout)  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("filter", self.filter, tuple(PIL_FILTERS)),
            ("resampling", self.resampling, get_args(Resampling)),
            ("dtype", self.dtype, DTYPES),
        ):
            if value not in allowed:
                raise ConfigError(
                    f"{type(self).__name__}({name}={value!r}) is unknown. Give one of {', '.join(allowed)}."
                )
        for name in self.token_ids:
            number = getattr(self, name)
            if number is not None and not is_integer(number):
                raise ConfigError(
                    f"{type(self).__name__}({name}={number!r}) is invalid: it must be the id of a token, a whole "
                    "number, which tokenizer.convert_tokens_to_ids(...) returns, or None."
                )
        largest = self.values.largest()
        if not largest <= _LARGEST_VALUES[self.dtype]:
            raise ConfigError(
                f"{type(self).__name__}(values={self.values}, dtype={self.dtype!r}) makes values of up to {largest:g}, "
                "which that dtype cannot hold. Give other values for rescale, mean and std, or another dtype."
            )

    @classmethod
    def from_processor(
        cls, processor: object, *, dtype: ImageDtype | None = None, resampling: Resampling | None = None, **fields: Any
    ) -> Self:
        """Returns the front end that makes what a Hugging Face processor makes; on VideoFrontEnd, its video half.

        Args:
            processor: An image or video processor, or a processor that has one; or the folder (or JSON file) that it
                was saved to, for which transformers need not be installed.
            dtype: Type of the values; None takes the processor's: "float32", or "uint8" if it neither rescales nor
                normalises.
            resampling: Who resamples; None follows the processor's backend, and takes "pil" for a folder; for videos
                "torch", as video processors do.
            **fields: Further fields of the family's front end, such as patch_size, fps or num_frames, which some
                processors do not know.

        Raises:
            ConfigError: No front end covers this processor, or one of its values. The message lists those that exist.
        """
        from energon_dali.decode.front_ends.registry import make_front_end

        return make_front_end(cls, processor, dtype, resampling, fields)

    @abstractmethod
    def layout(self, width: int, height: int) -> ImageLayout:
        """Returns what an image of this size becomes.

        Args:
            width: Pixels, after EXIF rotation and declared operations.
            height: Likewise.

        Raises:
            ConfigError: A side is not a whole number of at least 1.
            DecodeError: The processor refuses images of this size.
        """

    def attention_groups(self, layout: ImageLayout) -> list[tuple[int, int]]:
        """Returns (number of groups, patches of each): which patches the model's vision encoder attends to together.

        By default each tile is a group. Where the front end does not know the side of a patch, as processors do not,
        `encoder_patch` stands for it: numbers for balancing, not for shapes.

        Args:
            layout: Of an image.
        """
        return [(view.num_tiles, self.patches_of(*view.tile_size)) for view in layout.views if view.emitted]

    def patches_of(self, height: int, width: int) -> int:
        """Returns the patches of a rectangle.

        Args:
            height: Pixels.
            width: Pixels.
        """
        side: int | tuple[int, int] = getattr(self, "patch_size", None) or self.encoder_patch
        rows, columns = side if isinstance(side, tuple) else (side, side)
        return (height // rows) * (width // columns)

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        """Returns what the processor returns for these images.

        By default their values one after the other, under the first of `model_keys`, and their `facts` as int64.

        Args:
            samples: The images of each sample.

        Raises:
            ConfigError: They cannot form one batch.
        """
        import torch

        images = [image for sample in samples for image in sample]
        facts = {key: torch.tensor(rows, dtype=torch.int64) for key, rows in self.facts(images).items()}
        return {self.model_keys[0]: self.concatenated(images), **facts}

    def facts(self, images: Sequence[VisionInput]) -> dict[str, Sequence[Any]]:
        """Returns what the processor returns next to the values, by key: integers for each image.

        Raises:
            ConfigError: The images cannot form one batch.
        """
        return {}

    def image_text(self, layout: ImageLayout) -> str:
        """Returns the text that stands for one image: its placeholder tokens, and those that mark rows and tiles.

        Args:
            layout: Of the image.
        """
        return self.image_token * layout.num_tokens

    def text_tokens(self, layout: ImageLayout) -> int:
        """Returns the tokens of `image_text`, of which each marker is one in the tokenizers of the published models.

        Args:
            layout: Of the image.
        """
        return layout.num_tokens

    def number_tokens(self, number: int) -> int:
        """Returns how many tokens the number before an image takes in `expand_text`; 0 if it writes none.

        Args:
            number: Of the image among those of its sample, from 0.
        """
        return 0

    def kept_placeholders(self, layout: ImageLayout) -> int:
        """Returns how often `image_token` is in `image_text` without being a feature; mostly 0.

        Args:
            layout: Of the image.
        """
        return 0

    def place_boxes(self, boxes: ArrayLike, layout: ImageLayout) -> NDArray[np.float32]:
        """Returns boxes of an image, in pixels of the canvas of its last view.

        Args:
            boxes: (left, top, right, bottom) of each, in pixels of the image: [n, 4]. Points are [n, 2].
            layout: Of the image (`handle.layout`, or `VisionInput.layout`).

        Returns:
            float32, of the shape of `boxes`; not limited to the canvas.
        """
        return place_boxes(boxes, layout)

    def place_map(self, values: ArrayLike, layout: ImageLayout, fill: int = 0) -> NDArray[Any]:
        """Returns a map of an image, such as a mask or classes of pixels, on the canvas of its last view.

        Args:
            values: bool, uint8 or integers[height, width]; or [n, height, width] for several maps. The nearest pixel
                is taken.
            layout: Of the image.
            fill: Value of pixels outside the image.

        Returns:
            [height, width] or [n, height, width] of the canvas, of the same dtype.

        Raises:
            ConfigError: The map has another size than the image.
        """
        return place_map(values, layout, fill=fill, by=self.resampling)

    def expand_text(self, text: str, layouts: Iterable[ImageLayout]) -> str:
        """Returns a text with each image token replaced by the tokens of its image, as the processor expands it.

        Args:
            text: With one `image_token` per image.
            layouts: Of the images (`handle.layout`, or `VisionInput.layout`), in the order of the text.

        Raises:
            ConfigError: The text has more or fewer image tokens than there are images, or an argument is of another
                type.
        """
        return self._expanded(text, self.image_token, checked_layouts(layouts, ImageLayout), "images")

    def _expanded(self, text: str, token: str, layouts: Sequence[ImageLayout], noun: str) -> str:
        check_text(text)
        return expand_placeholders(text, token, [self.image_text(layout) for layout in layouts], noun)

    def fold_normalization(self, patch_embedding: torch.nn.Module) -> None:
        """Changes the weights of a model's first layer so that it takes bytes (dtype "uint8") in place of values.

        The layer's results are those on values, up to rounding. Parts of a canvas that the front end fills with zeros
        after normalising are bytes of 0 in such a batch.

        Args:
            patch_embedding: torch.nn.Conv2d, Conv3d or Linear, changed in place; it gets a bias if it has none. Its
                input must be converted to the dtype of its weights, as the models of transformers do.

        Raises:
            ConfigError: The layer is of another kind, or the front end's dtype is not "uint8".
        """
        if self.dtype != "uint8":
            raise ConfigError(
                f'The front end\'s dtype is "{self.dtype}", whose values are normalised already. Make the front end '
                'with dtype="uint8" to let the model normalise.'
            )
        fold_into(patch_embedding, *self.normalization(), channels_last=self.channels_last)

    def own_dtype(self) -> ImageDtype:
        """Returns the dtype of the values that the processor returns."""
        return "float32" if self.values.converts or self.values.arithmetic in self.float_backends else "uint8"

    def normalization(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Returns (scale, shift) per channel: value = byte * scale + shift. For dtype "uint8"."""
        table = self.values.table()
        scale = tuple(float(row[255] - row[0]) / 255 for row in table)
        return scale, tuple(float(row[0]) for row in table)

    # --- rendering -------------------------------------------------------------------------------------------------

    def render(self, pixels: Pixels, layout: ImageLayout) -> VisionInput:
        """Returns an image as the model takes it.

        Args:
            pixels: The decoded image. Its size may differ from the layout's where declared operations end with a
                resampling: it is then resampled once, from its own pixels.
            layout: Of its size.
        """
        return VisionInput(self.arrange(pixels, layout), layout, self)

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        """Returns the bytes of an image, resampled and cut; `finish` converts them.

        Returns:
            By default uint8[tiles, 3, height * width], the tiles of all views in turn.
        """
        return cut_all_tiles(self.canvases(pixels, layout))

    def render_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> list[VisionInput]:
        """Returns several images of one size and layout as the model takes them: what `render` returns for each.

        On a GPU this starts as many kernels as for one image.

        Args:
            pixels: uint8[n, 3, H, W], in any memory order.
            layout: Of each.
        """
        return [VisionInput(rows, layout, self) for rows in self.arrange_alike(pixels, layout).unbind(0)]

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        """Returns the bytes of `arrange` for images of one size and layout, one after the other along a first axis."""
        return cut_all_tiles(self.canvases(Pixels(tensor=pixels), layout))

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        """Returns the shape of the values that `finish` makes of the bytes of `arrange`."""
        height, width = next(view.tile_size for view in layout.views if view.emitted)
        return len(pixels), 3, height, width

    def finish(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the values of an image: its bytes rescaled, normalised and rounded to the front end's dtype.

        Args:
            pixels: What `arrange` made.
            layout: Of the image.
            out: Where to write them: contiguous, of `values_shape` and the dtype. None makes a new tensor.

        Returns:
            By default dtype[tiles, 3, height, width].
        """
        if out is None:
            out = empty_values(self.values_shape(pixels, layout), self.torch_dtype, pixels.device)
        self.write_values(pixels, layout, out)
        return out

    def write_values(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor) -> None:
        """Writes the values of an image; the arguments are those of `finish`."""
        self.values.convert(pixels, self.torch_dtype, channel_axis=1, out=out.view(len(pixels), 3, -1))
        if self.fill is None:
            start = 0
            for view in layout.views:
                if view.fill is None:
                    clear_outside(out[start : start + view.num_tiles], view)
                start += view.num_tiles

    def concatenated(self, images: Sequence[VisionInput]) -> torch.Tensor | list[torch.Tensor]:
        """Returns the values of several images one after the other, each converted into its place.

        Args:
            images: At least one, whose values differ in their first axis at most.

        Returns:
            dtype[all rows, ...].
        """
        import torch

        shapes = [self.values_shape(image.pixels, image.layout) for image in images]
        total = sum(shape[0] for shape in shapes)
        first = images[0]
        out = empty_values((total, *shapes[0][1:]), self.torch_dtype, first.pixels.device)
        alike = first.pixels.is_cuda and first.front_end.fill is not None
        if alike and len(images) > 1 and all(image.front_end == first.front_end for image in images):
            # Two kernels for all images: the values of bytes do not depend on the layout.
            first.front_end.finish(torch.cat([image.pixels for image in images]), first.layout, out)
            return out
        start = 0
        for image, shape in zip(images, shapes, strict=True):
            # Images of one batch may come from twins of this front end, such as one with fewer tiles.
            image.front_end.finish(image.pixels, image.layout, out[start : start + shape[0]])
            start += shape[0]
        return out

    def canvases(self, pixels: Pixels, layout: ImageLayout) -> Iterator[tuple[View, torch.Tensor]]:
        """Yields the views that are part of the result, with their canvases as uint8[3, H, W], contiguous.

        With several images, canvases have the same axis before.
        """
        made: list[Pixels] = []
        for view in layout.views:
            source = pixels if view.source == IMAGE else made[view.source]
            if view.box is not None:
                source = source.cropped(
                    view.box, (layout.height, layout.width) if view.source == IMAGE else source.size
                )
            kind = view.filter or self.filter
            resized = source.resized(view.height, view.width, kind, self.resampling, widened=view.widened)
            fills = view.canvas_size == (view.height, view.width) and view.position == (0, 0)
            if fills and not view.emitted:
                made.append(resized)
                continue
            canvas = placed(resized, view, view.fill or self.fill or (0, 0, 0))
            made.append(resized if fills else Pixels(tensor=canvas))
            if view.emitted:
                yield view, canvas


def _of_pixels(layout: CallableT) -> CallableT:
    """Returns a family's `layout`, which refuses an image without pixels before it computes anything."""

    @functools.wraps(layout)
    def checked(self: FrontEnd, width: int, height: int, *args: Any, **kwargs: Any) -> ImageLayout:
        if not (is_integer(width) and is_integer(height) and width > 0 and height > 0):
            raise ConfigError(
                f"layout(width={width!r}, height={height!r}) is not the size of an image: both must be whole numbers "
                "of at least 1."
            )
        made: ImageLayout = layout(self, width, height, *args, **kwargs)
        return made

    return checked  # type: ignore[return-value]


@dataclass(eq=False)
class VisionInput:
    """One image as a model takes it, kept as bytes: a fraction of the values, to which `batch_vision` converts them."""

    pixels: torch.Tensor
    """Bytes of the patches or tiles, resampled and cut but not converted: uint8[rows, a, b], one of whose axes is the
    channel. Families that make something else of bytes keep the values themselves."""
    layout: ImageLayout
    """Size of the image, views, grid and number of tokens."""
    front_end: FrontEnd
    """What made it; one object for all images of a decoder within a process."""

    @property
    def values(self) -> torch.Tensor:
        """Patches or tiles in the front end's dtype, converted now; the front end's class says their shape."""
        return self.front_end.finish(self.pixels, self.layout)

    @property
    def rows(self) -> int:
        """Number of patches or tiles: the length of `values`."""
        return len(self.pixels)

    @property
    def num_tokens(self) -> int:
        """Tokens of this image in the text, as the processor counts them: its features and the markers around them."""
        return self.layout.num_tokens

    @classmethod
    def from_samples(cls, samples: Sequence[VisionInput]) -> dict[str, Any]:
        """Returns what `batch_vision` makes of one image or video per sample: this is how the default `batch` uses it.

        Raises:
            ConfigError: As `batch_vision`.
        """
        from energon_dali.decode.front_ends.vision_batch import batch_vision

        return batch_vision([[sample] for sample in samples])

    def __repr__(self) -> str:
        return (
            f"VisionInput({self.front_end.family}: {self.layout.width}x{self.layout.height} -> "
            f"{list(self.front_end.values_shape(self.pixels, self.layout))} {self.front_end.dtype}, "
            f"{self.num_tokens} tokens)"
        )
