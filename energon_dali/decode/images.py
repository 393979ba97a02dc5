"""Reads an image's header before any decoder sees the file, and decodes images with PIL.

Headers are read in pure Python on purpose: 2 to 5 us for a JPEG, and no call that releases the interpreter lock
(getting it back takes 5 to 10 ms next to a busy thread). DALI 2.4 ends the process if its parser refuses a file in a
batch of 32 or more, so only files that are certainly readable may reach it (`ImageHeader.dali_decodable`). Unusual
files are left to PIL. Without operations, its results equal those of webdataset's image handler bit for bit.
"""

from __future__ import annotations

import re
from io import BytesIO
from struct import error as struct_error
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from energon_dali.decode.formats import (
    FORMATS,
    PIL_NAMES,
    Buffer,
    ImageFormat,
    ImageHeader,
    IrregularHeaderError,
    signatures,
)
from energon_dali.decode.formats.png import open_plain_png
from energon_dali.decode.front_ends import FrontEnd, VisionInput
from energon_dali.decode.front_ends.resampling import PIL_FILTERS, Pixels, resample_plain, to_rgb
from energon_dali.decode.geometry import Geometry, draw_geometry, handle_geometry, upright_size
from energon_dali.decode.reduction import Reduction, find_reduction
from energon_dali.decode.spec import DEFAULT_MAX_BYTES, DEFAULT_MAX_PIXELS, EncodedImage, ImageSpec
from energon_dali.errors import DecodeError

_BITS = {"1": 1, "I;16": 16, "I;16B": 16, "I;16L": 16, "I": 32, "F": 32}
"""Bits per channel by PIL's mode."""
_HARMLESS_PIXELS = 1 << 24
"""Files of at most this size are left to their decoder, which finds out at small cost that pixels are missing."""
_ORIENTATION_TAG, _ORIENTATIONS = 0x0112, range(1, 9)
_NOT_UNDERSTOOD = (IrregularHeaderError, struct_error, IndexError)
_FEW_PIXELS = 64 * 64
"""Images up to which numpy transposes the axes in less time than PIL needs to begin with splitting the channels."""
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def screen_image(
    data: Buffer, *, max_pixels: int = DEFAULT_MAX_PIXELS, max_bytes: int = DEFAULT_MAX_BYTES, for_dali: bool = True
) -> ImageHeader:
    """Returns what the header of an image says. The format is recognised by content, never by name.

    Args:
        data: The whole encoded file.
        max_pixels: Largest width x height.
        max_bytes: Largest size of the file.
        for_dali: Whether to look for damage after the header too, which decides `dali_decodable`. If PIL decodes the
            file anyway, False saves about 25 us for a JPEG of 80 KB.

    Raises:
        DecodeError: This is not an image, its header is broken, a side is 0, or it is larger than a limit.
    """
    if len(data) > max_bytes:
        raise DecodeError(f"The file has {len(data):,} bytes, the limit max_bytes is {max_bytes:,}", route="screen")
    match = signatures().match(data)
    known = None if match is None else FORMATS[match.lastgroup or ""]
    try:
        if known is None or known.read_header is None:
            raise IrregularHeaderError
        header = known.read_header(data)
    except _NOT_UNDERSTOOD:
        header = _open_with_pil(data, known)
    width, height = header.width, header.height
    if not 0 < width * height <= max_pixels or width <= 0:
        wrong = "nothing to decode" if width * height <= 0 else f"more than the limit max_pixels={max_pixels:,}"
        raise DecodeError(f"The header says {width} x {height} pixels, {wrong}", header.format, "screen")
    if for_dali and header.dali_decodable and known is not None and known.is_whole is not None:
        header.dali_decodable = known.is_whole(data)
    return header


def _open_with_pil(data: Buffer, recognised: ImageFormat | None) -> ImageHeader:
    """Returns the header as PIL reads it. Never one that DALI may decode.

    Args:
        data: The file.
        recognised: The format by its signature, for messages.
    """
    if not len(data):
        raise DecodeError("The file is empty", route="screen")
    try:
        image = open_image(data)
    except DecodeError as error:
        name = "" if recognised is None else recognised.name
        raise DecodeError(error.reason, error.format or name, "screen") from error
    pil_name = image.format or ""
    format = PIL_NAMES.get(pil_name.upper()) or ImageFormat(pil_name.lower())
    width, height = image.size
    if format.swaps_sides is not None and format.swaps_sides(image):
        width, height = height, width
    if width * height > max(len(data) * format.pixel_bound(image.info.get("compression")), _HARMLESS_PIXELS):
        raise DecodeError(
            f"{len(data):,} bytes cannot hold {width} x {height} pixels: its header is broken", format.name, "screen"
        )
    bands = len(image.getbands())
    # A palette image without its palette is black to PIL, which cannot say whether it is transparent.
    has_alpha = image.has_transparency_data if image.mode != "P" or image.palette is not None else False
    color = {"P": "palette", "CMYK": "cmyk"}.get(image.mode, "rgb" if bands > 2 else "gray")
    turn = _orientation(image, format)
    return ImageHeader(format.name, width, height, bands, _BITS.get(image.mode, 8), has_alpha, turn, color)


def _orientation(image: Image.Image, format: ImageFormat) -> int:
    """Returns the EXIF orientation of an opened image as PIL finds it; 1 if PIL turns the image when it loads it."""
    if format.swaps_sides is not None:
        return 1
    try:
        orientation = Image.Image.getexif(image).get(_ORIENTATION_TAG)  # that of a PNG would load the pixels
    except Exception:  # broken metadata
        return 1
    return orientation if isinstance(orientation, int) and orientation in _ORIENTATIONS else 1


def import_readers() -> None:
    """Imports PIL's readers of BMP, GIF, JPEG, PNG and PNM. It imports all others when one of them is needed."""
    Image.preinit()


def open_image(data: Buffer, format: str = "") -> Image.Image:
    """Returns an image with its header read and its pixels not yet loaded.

    Args:
        data: The encoded file. It must stay unchanged until the image is loaded.
        format: `ImageHeader.format` if known. This avoids trying PIL's readers one by one.

    Raises:
        DecodeError: PIL cannot read it, or its format is refused.
    """
    try:
        known = FORMATS.get(format)
        if known is not None and known.pil_names and not known.refused:
            plugin = known.pil_names[0]
            if known.pil_name_without_signature and not re.match(known.signature, data):
                plugin = known.pil_name_without_signature
            if plugin not in Image.OPEN:
                import_readers()
            if plugin not in Image.OPEN:
                Image.init()
            if plugin in Image.OPEN:
                # Not through Image.open: the screening has found the format, and `max_pixels` replaces PIL's limit.
                return Image.OPEN[plugin][0](BytesIO(data), "")
        Image.init()
        refused = {name for name, known in PIL_NAMES.items() if known.refused}
        return Image.open(BytesIO(data), formats=[name for name in Image.ID if name not in refused])
    except UnidentifiedImageError as error:
        raise DecodeError("PIL does not recognise this as an image", format, "pil") from error
    except Exception as error:
        raise _decode_error(error, format, 0) from error


def decode_image(handle: EncodedImage) -> Any:
    """Returns the pixels of a handle as its spec says, with all declared operations applied: a new, writable value.

    For a JPEG of 500 x 400 pixels the JPEG library takes two thirds of the time, without holding the interpreter lock,
    and creating a float tensor in CHW takes one third (a tenth for uint8 in HWC).

    Raises:
        DecodeError: PIL cannot decode it, it is larger than the spec allows, or a crop is larger than the image.
        MemoryError: The machine does not have the memory that an image of its size needs.
    """
    spec, pixels = handle.spec, handle.width * handle.height
    try:
        geometry, reduction = _plan(handle)
        image = None if reduction is None else _load_reduced(handle, reduction)
        if image is None:
            reduction = None
            plain = open_plain_png(handle.data) if handle.format == "png" else None
            image = plain or open_image(handle.data, handle.format)
            pixels = image.width * image.height
            if pixels > spec.max_pixels:
                raise DecodeError(f"{image.width} x {image.height} pixels are more than max_pixels={spec.max_pixels:,}")
            image.load()
        if spec.front_end is not None:
            return _rendered(image, handle, spec.front_end, geometry, reduction)
        if spec.mode != "RGBA" and isinstance(image.info.get("transparency"), bytes):
            # PIL would warn that it drops the transparency, which is what was asked for.
            del image.info["transparency"]
        if image.mode != spec.mode or spec.container == "pil":
            # A PIL image is copied even if the mode is right: the copy does not hold the file's reader.
            image = image.convert(spec.mode)
        if spec.apply_exif_orientation:
            image = _upright(image, handle)
        geometry = _fitting(geometry, handle, image) if reduction is None else reduction.geometry(handle, geometry)
        if geometry is not None:
            image = transform(image, geometry, spec)
        return image if spec.container == "pil" else pack_image(image, spec)
    except Exception as error:
        raise _decode_error(error, handle.format, pixels) from error


def _plan(handle: EncodedImage) -> tuple[Geometry | None, Reduction | None]:
    """Returns (geometry by the size in the header, how little of the file is loaded).

    The reduction is None if the file is loaded whole; only then may the geometry be that of another size, or None.

    Raises:
        DecodeError: A crop is larger than the image, or a front end refuses its size.
    """
    if not handle.spec.geometric and handle.spec.front_end is None:
        return None, None
    known = FORMATS.get(handle.format)
    if known is None or known.open_reduced is None:
        return None, None
    geometry = handle_geometry(handle)
    return geometry, find_reduction(handle, geometry)


def _load_reduced(handle: EncodedImage, reduction: Reduction) -> Image.Image | None:
    """Returns the loaded part of an image; None if the file may be damaged, which only loading all of it shows."""
    known = FORMATS[handle.format]
    if handle.width * handle.height > handle.spec.max_pixels or known.open_reduced is None:
        return None
    try:
        if known.is_whole is not None and not known.is_whole(handle.data):
            return None
        image = known.open_reduced(handle.data, reduction.factor, reduction.rows)
        image.load()
    except Exception:  # loading the whole file decides, and finds the words
        return None
    return image


def _fitting(geometry: Geometry | None, handle: EncodedImage, image: Image.Image) -> Geometry | None:
    """Returns the geometry for an upright image, whose size may not be that of the handle."""
    if not handle.spec.geometric:
        return None
    known = FORMATS.get(handle.format)
    if known is not None and known.open_reduced is not None and upright_size(handle) == (image.height, image.width):
        return geometry
    return draw_geometry(handle.spec.geometric, image.width, image.height, handle.seed)


def _rendered_box(image: Image.Image, front_end: FrontEnd, geometry: Geometry) -> VisionInput:
    """Returns what a front end makes of a box of a reduced image, which it resamples itself.

    Args:
        image: The image in RGB, upright.
        front_end: The front end.
        geometry: In pixels of the reduced image.
    """
    layout = front_end.layout(geometry.out_width, geometry.out_height)
    left, right = geometry.left, min(geometry.left + geometry.width, image.width)
    if geometry.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        left, right = image.width - right, image.width - left
    box = (left, geometry.top, right, min(geometry.top + geometry.height, image.height))
    return front_end.render(Pixels(image=image, box=box), layout)


def _rendered(
    image: Image.Image,
    handle: EncodedImage,
    front_end: FrontEnd,
    geometry: Geometry | None,
    reduction: Reduction | None,
) -> VisionInput:
    """Returns what a front end makes of an image, with one resampling where operations and front end both have one."""
    if handle.spec.apply_exif_orientation:
        image = _upright(image, handle)  # before its EXIF is lost with its transparency
    if image.mode != "RGB" or "transparency" in image.info:
        image = to_rgb(image, front_end.convert_rgb)
    if reduction is None:
        geometry = _fitting(geometry, handle, image)
    elif reduction.factor > 1:
        reduced = reduction.geometry(handle, geometry)
        if geometry is None or geometry.box_is_window:
            return _rendered_box(image, front_end, reduced)
        geometry = reduced
    height, width = (image.height, image.width) if geometry is None else (geometry.out_height, geometry.out_width)
    if geometry is not None and geometry.box_is_window:
        top, left, box_height, box_width = geometry.window
        image = image.crop((left, top, left + box_width, top + box_height))
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if geometry.flip else image
    elif geometry is not None:
        image = transform(image, geometry, handle.spec)
    return front_end.render(Pixels(image=image), front_end.layout(width, height))


def transform(image: Image.Image, geometry: Geometry, spec: ImageSpec) -> Image.Image:
    """Returns the image cropped, resampled and flipped according to the geometry.

    Args:
        image: An image in the mode of the spec, turned upright if the spec asks for it.
        geometry: The box, and the size of the result.
        spec: Its filter is used.
    """
    top, left, height, width = geometry.window
    if (height, width) != (image.height, image.width):
        image = image.crop((left, top, left + width, top + height))
    if geometry.resamples:
        box_top, box_left = geometry.top - top, geometry.left - left
        box = (box_left, box_top, min(box_left + geometry.width, width), min(box_top + geometry.height, height))
        size = (geometry.out_width, geometry.out_height)
        if spec.antialias or spec.interpolation == "nearest":
            image = image.resize(size, PIL_FILTERS[spec.interpolation], box=box)
        else:
            image = Image.fromarray(resample_plain(np.asarray(image), box, size, spec.interpolation == "bicubic"))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if geometry.flip else image


def pack_image(image: Image.Image, spec: ImageSpec) -> Any:
    """Returns an image's pixels in the dtype, layout and container of a spec: a new, writable value.

    Args:
        image: An image in the mode of the spec.
        spec: Its container is "torch" or "numpy".

    Returns:
        A torch tensor or numpy array, contiguous: [H, W], [C, H, W] or [H, W, C] as `spec.layout` says. Floats are
        pixel / 255, then (x - mean) / std if the spec normalises, in float32; narrower types are rounded to nearest.
    """
    values: NDArray[Any]
    if spec.layout == "CHW" and spec.channels > 1 and image.width * image.height <= _FEW_PIXELS:
        interleaved = np.frombuffer(image.tobytes(), np.uint8).reshape(image.height, image.width, spec.channels)
        values = interleaved.transpose(2, 0, 1).copy()
    elif spec.layout == "CHW" and spec.channels > 1:
        # PIL splits the channels in two thirds of the time that numpy takes to transpose the axes.
        planes = bytearray().join([plane.tobytes() for plane in image.split()])
        values = np.frombuffer(planes, np.uint8).reshape(spec.channels, image.height, image.width)
    else:
        values = np.asarray(image) if spec.dtype != "uint8" else np.array(image)
        if spec.channels == 1 and spec.layout != "HW":
            values = values[None] if spec.layout == "CHW" else values[:, :, None]
    if spec.dtype != "uint8":
        values = np.divide(values, np.float32(255), dtype=np.float32)
        if spec.normalize is not None:
            shape = (-1, 1, 1) if spec.layout == "CHW" else (-1,)
            values -= np.array(spec.normalize.mean, np.float32).reshape(shape)
            values /= np.array(spec.normalize.std, np.float32).reshape(shape)
        if spec.dtype == "float16":
            values = values.astype(np.float16)
    if spec.container == "numpy":
        return values
    import torch  # only here: a process that decodes no tensors need not load it

    tensor = torch.from_numpy(values)
    return tensor.to(torch.bfloat16) if spec.dtype == "bfloat16" else tensor


def _upright(image: Image.Image, handle: EncodedImage) -> Image.Image:
    known = FORMATS.get(handle.format)
    if known is None or not known.reads_orientation:
        return ImageOps.exif_transpose(image)
    turn = _UPRIGHT.get(handle.orientation)
    return image if turn is None else image.transpose(turn)


def _decode_error(error: Exception, format: str, pixels: int) -> DecodeError:
    """Returns the DecodeError for an exception of PIL. Raises MemoryError if the machine is really out of memory."""
    if isinstance(error, DecodeError):
        return error if error.route else DecodeError(error.reason, format, "pil")
    if isinstance(error, MemoryError):
        # A broken file can ask for absurd amounts. The machine is at fault only if it lacks what the image needs.
        np.empty(max(pixels, 1 << 20) * 4, np.uint8).fill(0)
        return DecodeError("The file made PIL ask for more memory than an image of its size needs", format, "pil")
    return DecodeError(f"PIL cannot decode it: {type(error).__name__}: {error}", format, "pil")
