"""Small images of what samples hold, as data URIs for a page: of tensors, arrays and PIL images that are decoded."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from energon_dali.samples.description import is_array

if TYPE_CHECKING:
    from PIL import Image

SIDE_PX = 112
"""Longest side of a thumbnail."""
MOST_BYTES = 24_000
"""Largest file of a thumbnail; JPEGs of this side are smaller."""
_LEAST_SIDE = 8
"""Arrays with a shorter side are not images."""
_CHANNELS = (1, 3, 4)


def count_images(value: Any) -> int:
    """Returns how many images a value holds: of a PIL image 1, of a tensor the product of its leading axes; 0 if none.

    Args:
        value: Anything. Values are images if their last three axes are (C, H, W) or (H, W, C) with 1, 3 or 4 channels,
            or if they are bytes of (H, W).
    """
    if hasattr(value, "thumbnail") and hasattr(value, "mode"):
        return 1
    if not is_array(value) or _axes(value) is None:
        return 0
    count = 1
    for side in value.shape[: -len(_axes(value) or "")]:
        count *= int(side)
    return count


def thumbnails(value: Any, most: int) -> list[str]:
    """Returns data URIs of images of a value, at most `most` of them, evenly spaced; [] if it holds none.

    Of a tensor on a device only the pixels that are shown are copied, which waits for its stream.

    Args:
        value: What `count_images` takes.
        most: Number of images.
    """
    count = count_images(value)
    if not count or most < 1:
        return []
    shown = min(most, count)
    chosen = [number * (count - 1) // max(1, shown - 1) for number in range(shown)]
    try:
        made = [_data_uri(_image_of(value, number)) for number in chosen]
    except Exception:  # such as a PIL image that was closed, or whose file is damaged
        return []
    return [uri for uri in made if uri]


def _axes(value: Any) -> str | None:
    """Returns the axes of an image at the end of a shape: "CHW", "HWC" or "HW"; None if it holds no images."""
    shape, kind = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    if 0 in shape or not (kind == "uint8" or "float" in kind):
        return None
    if len(shape) >= 3:
        for axes, channels, sides in (("CHW", shape[-3], shape[-2:]), ("HWC", shape[-1], shape[-3:-1])):
            if channels in _CHANNELS and min(sides) >= _LEAST_SIDE:
                return axes
    is_gray = len(shape) == 2 and kind == "uint8" and min(shape) >= 2 * _LEAST_SIDE
    return "HW" if is_gray else None


def _image_of(value: Any, number: int) -> Image.Image:
    """Returns one of the images of a value, small."""
    from PIL import Image

    if not is_array(value):
        image = value.copy()
        image.thumbnail((SIDE_PX, SIDE_PX))
        return image if image.mode in ("L", "RGB", "RGBA") else image.convert("RGB")  # type: ignore[no-any-return]
    axes = _axes(value)
    assert axes is not None, "count_images counted it"
    for index in np.unravel_index(number, tuple(value.shape[: -len(axes)])) if value.shape[: -len(axes)] else ():
        value = value[int(index)]
    if axes == "CHW":
        value = value.permute(1, 2, 0) if hasattr(value, "permute") else value.transpose(1, 2, 0)
    step = max(1, min(value.shape[0], value.shape[1]) // (2 * SIDE_PX))
    pixels = _as_bytes(_as_array(value[::step, ::step]))
    image = Image.fromarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[-1] == 1 else pixels)
    image.thumbnail((SIDE_PX, SIDE_PX))
    return image


def _as_array(value: Any) -> NDArray[Any]:
    """Returns a tensor or an array as an array of bytes or of float32."""
    if hasattr(value, "detach"):
        value = value.detach()
        value = (value if str(value.dtype) == "torch.uint8" else value.float()).cpu().numpy()
    values = np.asarray(value)
    return np.ascontiguousarray(values if values.dtype == np.uint8 else values.astype(np.float32))


def _as_bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Returns pixels of 0 to 255. Floats are those of 0 to 1; normalised ones are stretched to their own range."""
    if values.dtype == np.uint8:
        return values
    values = np.nan_to_num(values, nan=0.0, posinf=1.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if low < -0.01 or high > 1.01:
        values = (values - low) / ((high - low) or 1.0)
    return (np.clip(values, 0.0, 1.0) * 255 + 0.5).astype(np.uint8)


def _data_uri(image: Image.Image) -> str:
    """Returns an image as a data URI; "" if its file is too large, as of a narrow strip of noise."""
    for kind in ("PNG", "JPEG") if image.mode in ("L", "RGBA") else ("JPEG",):
        file = io.BytesIO()
        (image if kind == "PNG" else image.convert("RGB")).save(file, kind, quality=80)
        if file.tell() <= MOST_BYTES:
            return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
    return ""
