"""What an image is decoded to: container, channels, dtype, layout, operations and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from energon_dali.calls import check_switches
from energon_dali.decode.formats import Buffer
from energon_dali.decode.front_ends import FrontEnd, VideoFrontEnd
from energon_dali.decode.operations import (
    GEOMETRIC_OPERATIONS,
    OPERATIONS,
    GeometricOperation,
    Interpolation,
    Normalize,
    Operation,
    RandomResizedCrop,
    Resize,
)
from energon_dali.errors import ConfigError

ImageDecode = Literal[
    "l8",
    "rgb8",
    "rgba8",
    "l",
    "rgb",
    "rgba",
    "torchl8",
    "torchrgb8",
    "torchrgba8",
    "torchl",
    "torchrgb",
    "torch",
    "torchrgba",
    "pill",
    "pil",
    "pilrgb",
    "pilrgba",
]
AVDecode = Literal["AVDecoder", "torch", "pyav"]
Container = Literal["torch", "numpy", "pil"]
ImageMode = Literal["L", "RGB", "RGBA"]
ImageDtype = Literal["uint8", "float32", "float16", "bfloat16"]
ImageLayout = Literal["CHW", "HWC", "HW"]
DecodeScale = Literal["exact", "fast", "fastest"]
"""How small an image may be decoded: "exact": at full size. "fast": so that at least 2 decoded pixels remain for each
pixel of the result, in both directions. "fastest": at least 1."""
BackendName = Literal["pyav", "dali", "torchcodec", "pynvvideocodec"]
BackendOption = Literal["auto", "pyav", "dali", "torchcodec", "pynvvideocodec"]
"""What decodes videos, as a user may give it: "auto", or the backend for all videos that it decodes correctly."""

IMAGE_DECODE_NAMES: tuple[str, ...] = get_args(ImageDecode)
DEFAULT_MAX_PIXELS = 178_956_970
"""Default for the largest width x height: at this size PIL's own guard against decompression bombs raises an error."""
DEFAULT_MAX_BYTES = 256 * 1024 * 1024
"""Default for the largest encoded image."""

_DTYPES: dict[str, tuple[str, ...]] = {
    "torch": ("uint8", "float32", "float16", "bfloat16"),
    "numpy": ("uint8", "float32", "float16"),
    "pil": ("uint8",),
}


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """What to decode an image to. Hashable and picklable; all handles of a decoder share one object.

    Floating point values are pixel / 255 in float32 (then normalised, then rounded to a narrower dtype).

    Raises:
        ConfigError: The combination is invalid; the message says what to change.
    """

    image_decode: ImageDecode = "torchrgb"
    """One of the 17 names of webdataset."""
    operations: tuple[Operation, ...] = ()
    """Operations applied to each image, in this order; Normalize is applied last."""
    image_dtype: ImageDtype | None = None
    """Overrides the dtype of the name; None keeps it."""
    image_layout: Literal["CHW", "HWC"] | None = None
    """Overrides the layout of the name (torch: CHW, numpy: HWC, one channel: HW); None keeps it."""
    apply_exif_orientation: bool = False
    """Rotates and mirrors as the file's EXIF orientation says, before all operations. Energon does not."""
    max_pixels: int = DEFAULT_MAX_PIXELS
    """Largest width x height; a larger image is a DecodeError before memory is allocated."""
    max_bytes: int = DEFAULT_MAX_BYTES
    """Largest encoded size in bytes; a larger file is a DecodeError."""
    front_end: FrontEnd | None = None
    """What a model makes of each image after all operations; the decoder's output is then a VisionInput."""
    decode_scale: DecodeScale = "exact"
    """How small an image may be decoded where its result is smaller (`energon_dali.decode.reduction`)."""

    container: Container = field(init=False, compare=False)
    """Type of the result: "torch", "numpy" or "pil"."""
    mode: ImageMode = field(init=False, compare=False)
    """Channels: "L", "RGB" or "RGBA"."""
    dtype: ImageDtype = field(init=False, compare=False)
    """Type of one value."""
    layout: ImageLayout = field(init=False, compare=False)
    """Order of the axes; "HW" is a single channel without a channel axis. Meaningless for PIL images."""
    channels: int = field(init=False, compare=False)
    """Number of channels: 1, 3 or 4."""
    geometric: tuple[GeometricOperation, ...] = field(init=False, compare=False, repr=False)
    """The operations except Normalize."""
    normalize: Normalize | None = field(init=False, compare=False, repr=False)
    """The Normalize operation, or None."""
    interpolation: Interpolation = field(init=False, compare=False, repr=False)
    """The filter of the one resampling."""
    antialias: bool = field(init=False, compare=False, repr=False)
    """Whether the filter is widened when the image shrinks."""

    def __post_init__(self) -> None:
        if self.image_decode not in IMAGE_DECODE_NAMES:
            raise ConfigError(
                f"image_decode={self.image_decode!r} is unknown. A name says container, dtype and channels, as in "
                f"webdataset. Choose one of {', '.join(IMAGE_DECODE_NAMES)}."
            )
        container, mode, dtype = _form_of(self.image_decode)
        _store(self, container=container, mode=mode, channels=len(mode))
        check_switches(apply_exif_orientation=self.apply_exif_orientation)
        _store(self, operations=_checked_operations(self.operations))
        if self.front_end is not None:
            self._check_front_end(self.front_end)
            mode, dtype = "RGB", "uint8"
            _store(self, container="torch", mode=mode, channels=3)
        normalize = _the_normalize(self.operations, self.channels)
        _store(self, normalize=normalize, dtype=self.image_dtype or dtype, layout=self._checked_layout())
        _store(self, geometric=tuple(op for op in self.operations if isinstance(op, GEOMETRIC_OPERATIONS)))
        interpolation, antialias = _the_resampling(self.operations)
        _store(self, interpolation=interpolation, antialias=antialias)
        self._check_dtype()
        if self.decode_scale not in get_args(DecodeScale):
            raise ConfigError(
                f"decode_scale={self.decode_scale!r} is unknown. It says how small an image may be decoded if its "
                'result is smaller. Give "exact" (full size), "fast" (at least 2 decoded pixels for each pixel of the '
                'result) or "fastest" (at least 1).'
            )
        for name in ("max_pixels", "max_bytes"):
            limit = getattr(self, name)
            if not isinstance(limit, int) or limit < 1:
                reason = "would refuse every image" if isinstance(limit, (int, float)) else "is not a number"
                raise ConfigError(
                    f"{name}={limit!r} {reason}. The limit is a whole number of at least 1. Leave it "
                    f"out for the default of {DEFAULT_MAX_PIXELS if name == 'max_pixels' else DEFAULT_MAX_BYTES:,}."
                )

    def _check_front_end(self, front_end: object) -> None:
        if not isinstance(front_end, FrontEnd):
            raise ConfigError(
                f"front_end={front_end!r} is not a front end. Make one with FrontEnd.from_processor(processor)."
            )
        if isinstance(front_end, VideoFrontEnd):
            raise ConfigError(
                f"front_end={front_end!r} is for videos. Give it to the clips: av_decode=VideoClips(front_end=...)."
            )
        for name, default in (("image_decode", "torchrgb"), ("image_dtype", None), ("image_layout", None)):
            if getattr(self, name) != default:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} was given with a front end, which decides what images become. "
                    f"Leave {name} out, and give the front end a dtype."
                )
        if any(isinstance(operation, Normalize) for operation in self.operations):
            raise ConfigError(
                "Normalize was given with a front end, which normalises as its processor does. Leave it out."
            )

    def _checked_layout(self) -> ImageLayout:
        if self.front_end is not None:
            return "HWC"
        if self.image_layout is None:
            return "HW" if self.mode == "L" else "CHW" if self.container == "torch" else "HWC"
        if self.container == "pil":
            raise ConfigError(
                f"image_layout={self.image_layout!r} was given with image_decode={self.image_decode!r}. A PIL image "
                'has no layout of its own. Leave image_layout out, or take an array such as "torchrgb8" or "rgb8".'
            )
        if self.image_layout not in ("CHW", "HWC"):
            raise ConfigError(
                f"image_layout={self.image_layout!r} is unknown. The axes are channels, height and width. "
                'Give "CHW" or "HWC", or leave it out.'
            )
        return self.image_layout

    def _check_dtype(self) -> None:
        allowed = _DTYPES[self.container]
        if self.dtype not in allowed:
            why = {"pil": "PIL images of these modes hold bytes", "numpy": "numpy has no bfloat16"}.get(
                self.container if self.image_dtype in _DTYPES["torch"] else "", "No backend makes it"
            )
            raise ConfigError(
                f"image_dtype={self.dtype!r} was given with image_decode={self.image_decode!r}. {why}. "
                f'Give one of {", ".join(allowed)}, or an image_decode name that starts with "torch".'
            )
        if self.normalize is not None and (self.container == "pil" or self.dtype == "uint8"):
            raise ConfigError(
                f"Normalize was given with image_decode={self.image_decode!r} and dtype uint8. Its results are "
                'fractions and negative numbers, which bytes cannot hold. Take a float name such as "torchrgb", or '
                'image_dtype="float32".'
            )


class EncodedImage(Protocol):
    """An encoded image and its spec: the attributes of a `MediaHandle` that decoding needs."""

    data: Buffer
    format: str
    width: int
    height: int
    spec: ImageSpec
    orientation: int
    seed: int


def _store(spec: ImageSpec, **values: object) -> None:
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def _form_of(name: str) -> tuple[Container, ImageMode, ImageDtype]:
    """Returns (container, channels, dtype) of an `image_decode` name, such as "torchrgb8"."""
    container: Container = "torch" if name.startswith("torch") else "pil" if name.startswith("pil") else "numpy"
    rest = name.removeprefix(container)
    mode: ImageMode = "L" if rest.startswith("l") else "RGBA" if rest.startswith("rgba") else "RGB"
    return container, mode, "uint8" if container == "pil" or rest.endswith("8") else "float32"


def _checked_operations(operations: object) -> tuple[Operation, ...]:
    if isinstance(operations, OPERATIONS):
        operations = (operations,)
    if not isinstance(operations, (tuple, list)) or not all(isinstance(op, OPERATIONS) for op in operations):
        raise ConfigError(
            f"operations={operations!r} cannot run inside the decoder. It is a sequence of operations that all "
            f"backends know. Use {', '.join(op.__name__ for op in OPERATIONS)} of energon_dali.decode; "
            "anything else belongs in encode_sample."
        )
    return tuple(operations)


def _the_normalize(operations: tuple[Operation, ...], channels: int) -> Normalize | None:
    found = [op for op in operations if isinstance(op, Normalize)]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(
            f"operations hold Normalize {len(found)} times. It is applied once, after everything else. "
            "Combine them into one: mean and std in units of [0, 1]."
        )
    if len(found[0].mean) not in (1, channels):
        raise ConfigError(
            f"Normalize has {len(found[0].mean)} means, the image {channels} channel(s). Each channel needs its own, "
            f"or all share one. Give 1 or {channels} values of mean and std."
        )
    return found[0]


def _the_resampling(operations: tuple[Operation, ...]) -> tuple[Interpolation, bool]:
    kinds = {(op.interpolation, op.antialias) for op in operations if isinstance(op, (Resize, RandomResizedCrop))}
    if len(kinds) > 1:
        raise ConfigError(
            f"operations resample in different ways: {sorted(kinds)}. All of them together resample the source once. "
            "Give all of them the same interpolation and antialias."
        )
    return kinds.pop() if kinds else ("bilinear", True)
