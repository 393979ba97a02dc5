"""Resamples pixels as an image processor does: by PIL, or by torch as torchvision does."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from energon_dali.decode.front_ends.pil_memory import pixel_memory, split_planes
from energon_dali.errors import DecodeError

if TYPE_CHECKING:
    import torch

Resampling = Literal["pil", "torch"]
"""Who resamples: "pil" gives the pixels of transformers' PIL backend bit for bit, "torch" those of its torchvision
backend, in a quarter to a half of the time. `docs/vlm.md` has the differences in a table."""
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]

PIL_FILTERS: dict[str, Image.Resampling] = {name: Image.Resampling[name.upper()] for name in get_args(Filter)}
FILTER_NAMES: dict[int, Filter] = {int(value): name for name, value in PIL_FILTERS.items()}  # type: ignore[misc]
"""Name of a filter by the number that PIL and preprocessor_config.json give it."""
_BY_TORCH = ("bilinear", "bicubic", "nearest")
_SUPPORT = {"bilinear": 1, "bicubic": 2}
"""Pixels on each side of its centre that a filter reads when an image does not shrink."""
_CUDA_WEIGHTS = (48 << 10) // 4
"""Weights of a filter (float32) that fit into a block's shared memory, as CUDA gives it to every kernel."""


class Pixels:
    """RGB pixels, as a PIL image or a tensor; each form is made from the other when it is first asked for.

    Args:
        image: An image of mode RGB, which is not changed.
        tensor: uint8[3, H, W] in any memory order, which is not changed, in place of an image; or uint8[n, 3, H, W],
            images of one size, which are then treated at once.
        box: (left, top, right, bottom) of the image that is shown, in its pixels and fractions of them; PIL then
            resamples it. None is all of it.
    """

    __slots__ = ("_box", "_image", "_tensor")

    def __init__(
        self,
        *,
        image: Image.Image | None = None,
        tensor: torch.Tensor | None = None,
        box: tuple[float, float, float, float] | None = None,
    ) -> None:
        self._image, self._tensor, self._box = image, tensor, box

    @property
    def image(self) -> Image.Image:
        """As a PIL image. A box in fractions of pixels is rounded to whole ones."""
        if self._box is not None:
            assert self._image is not None
            height, width = self.size
            left, top = round(self._box[0]), round(self._box[1])
            self._image, self._box = self._image.crop((left, top, left + width, top + height)), None
        if self._image is None:
            assert self._tensor is not None
            self._image = Image.fromarray(self._tensor.permute(1, 2, 0).contiguous().cpu().numpy())
        return self._image

    @property
    def tensor(self) -> torch.Tensor:
        """uint8[3, H, W], from a PIL image a view of memory [H, W, 3]; or uint8[n, 3, H, W]."""
        if self._tensor is None:
            import torch

            self._tensor = torch.from_numpy(np.array(self.image)).permute(2, 0, 1)
        return self._tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        if self._tensor is not None:
            return self._tensor.shape[-2], self._tensor.shape[-1]
        if self._box is not None:
            left, top, right, bottom = self._box
            return max(1, round(bottom - top)), max(1, round(right - left))
        assert self._image is not None
        return self._image.height, self._image.width

    def planes(self) -> torch.Tensor:
        """Returns uint8[3, H, W] or uint8[n, 3, H, W], contiguous."""
        if self._tensor is None:
            import torch

            if 0 in self.size:
                return torch.empty((3, *self.size), dtype=torch.uint8)
            return torch.from_numpy(split_planes(self.image))
        return self._tensor.contiguous()

    def cropped(self, box: tuple[int, int, int, int], size: tuple[int, int]) -> Pixels:
        """Returns a box of the pixels; it may share their memory.

        Args:
            box: (left, top, right, bottom) in pixels of an image of that size.
            size: (height, width) that the box refers to.
        """
        left, top, right, bottom = box
        if self._box is not None:
            scale_x, scale_y = (self._box[2] - self._box[0]) / size[1], (self._box[3] - self._box[1]) / size[0]
            x, y = self._box[:2]
            part = (x + left * scale_x, y + top * scale_y, x + right * scale_x, y + bottom * scale_y)
            return Pixels(image=self._image, box=part)
        if size != self.size:
            scale_y, scale_x = self.size[0] / size[0], self.size[1] / size[1]
            left, right = round(left * scale_x), max(round(left * scale_x) + 1, round(right * scale_x))
            top, bottom = round(top * scale_y), max(round(top * scale_y) + 1, round(bottom * scale_y))
        if self._tensor is not None:
            return Pixels(tensor=self._tensor[..., top:bottom, left:right])
        return Pixels(image=self.image.crop((left, top, right, bottom)))

    def resized(self, height: int, width: int, filter: Filter, by: Resampling, *, widened: bool = True) -> Pixels:
        """Returns the pixels at another size; `self` if they have it already. An image without pixels becomes black.

        Args:
            height: Pixels of the result.
            width: Likewise.
            filter: Widened when the image shrinks, except "nearest".
            by: Who resamples. Filters that torch does not have are PIL's in any case.
            widened: False does not widen "bilinear" and "bicubic"; torch resamples then in any case.
        """
        if not widened and (self._box is not None or (height, width) != self.size):
            return Pixels(tensor=_interpolated(self.tensor, height, width, filter))
        if self._box is not None:
            assert self._image is not None
            return Pixels(image=_resized_box(self._image, self._box, (width, height), PIL_FILTERS[filter]))
        if (height, width) == self.size:
            return self
        if 0 in self.size:
            return Pixels(tensor=self.tensor.new_zeros((*self.tensor.shape[:-2], height, width)))
        on_gpu = self._tensor is not None and self._tensor.is_cuda
        too_far = on_gpu and shrinks_too_far(self.size, (height, width), filter)
        if filter in _BY_TORCH and not too_far and (by == "torch" or on_gpu):
            shrunk = self._shrunk(height, width, filter) if self._tensor is None else None
            return Pixels(tensor=_resized_by_torch(self.tensor, height, width, filter) if shrunk is None else shrunk)
        if self._tensor is not None and self._tensor.ndim == 4:
            import torch

            each = [Pixels(tensor=one).resized(height, width, filter, by).tensor for one in self._tensor]
            return Pixels(tensor=torch.stack(each))
        resized = Pixels(image=self.image.resize((width, height), PIL_FILTERS[filter]))
        if not on_gpu:
            return resized
        # From page-locked memory, so that only the way to the CPU waits.
        return Pixels(tensor=resized.planes().pin_memory().to(self.tensor.device, non_blocking=True))

    def _shrunk(self, height: int, width: int, filter: str) -> torch.Tensor | None:
        """Returns what `_resized_by_torch` makes of a PIL image, without copying its pixels.

        torch resamples four channels in about the time of three, unless the result is larger than the image.

        Returns:
            None if the result is larger, or PIL's memory cannot be read.
        """
        if height > self.size[0] or width > self.size[1]:
            return None
        memory = pixel_memory(self.image)
        if memory is None:
            return None
        import torch

        return _resized_by_torch(torch.from_numpy(memory).permute(2, 0, 1), height, width, filter)[:3]


def shrinks_too_far(size: tuple[int, int], result: tuple[int, int], filter: str) -> bool:
    """Returns whether torch's kernel on CUDA refuses to resample, because the weights of its filter do not fit.

    It does from about a 47th of both sides on with "bicubic", and a 94th with "bilinear".

    Args:
        size: (height, width) of the pixels.
        result: (height, width) that they become.
        filter: A filter that torch has; only those that are widened when an image shrinks have weights.
    """
    if filter not in _SUPPORT:
        return False
    taps = [2 * ceil(_SUPPORT[filter] * max(1.0, old / new)) + 1 for old, new in zip(size, result, strict=True)]
    # A block of 32 x 1 threads keeps the weights of each column, those of its row, and 32 rows of sums.
    return 32 * taps[1] + 33 * taps[0] > _CUDA_WEIGHTS


def _resized_box(
    image: Image.Image, box: tuple[float, float, float, float], size: tuple[int, int], filter: Image.Resampling
) -> Image.Image:
    """Returns a box of an image at another size; the filter reads nothing outside the pixels that the box touches."""
    left, top, right, bottom = box
    corner = int(left), int(top)
    part = image.crop((*corner, min(image.width, ceil(right)), min(image.height, ceil(bottom))))
    inside = (left - corner[0], top - corner[1], right - corner[0], bottom - corner[1])
    return part.resize(size, filter, box=inside)


def _resized_by_torch(pixels: torch.Tensor, height: int, width: int, filter: str) -> torch.Tensor:
    """Returns uint8[3, height, width], or uint8[n, 3, height, width] of as many images."""
    import torch
    from torch.nn.functional import interpolate

    if pixels.ndim == 3:
        return _resized_by_torch(pixels[None], height, width, filter)[0]
    batch = pixels
    if filter == "nearest":
        return interpolate(batch, size=(height, width), mode="nearest-exact")  # as transformers does
    if not pixels.is_cuda:
        if height == width == 1:  # torch fails an internal assertion if the result is one pixel of separate planes
            batch = batch.contiguous(memory_format=torch.channels_last)
        return interpolate(batch, size=(height, width), mode=filter, antialias=True, align_corners=False)
    # CUDA resamples floats alone. torchvision rounds and clamps likewise.
    return _interpolated(batch, height, width, filter, widened=True)


def _interpolated(pixels: torch.Tensor, height: int, width: int, filter: str, *, widened: bool = False) -> torch.Tensor:
    """Returns the same, computed in float32 and rounded."""
    import torch
    from torch.nn.functional import interpolate

    batch = pixels if pixels.ndim == 4 else pixels[None]
    values = interpolate(batch.float(), size=(height, width), mode=filter, antialias=widened, align_corners=False)
    made = values.round_().clamp_(0, 255).to(torch.uint8)
    return made if pixels.ndim == 4 else made[0]


def to_rgb(image: Image.Image, converts: bool) -> Image.Image:
    """Returns the image in RGB, transparent pixels on white, as transformers converts it.

    Args:
        image: Of any mode.
        converts: Whether an image that is not RGB is converted.

    Raises:
        DecodeError: It is not, and must not be converted.
    """
    transparent = "A" in image.getbands() or image.info.get("transparency") is not None
    if not converts:
        if image.mode == "RGB":  # its transparent colour is ignored
            return image
        raise DecodeError(f"The processor does not convert images to RGB, and this one is {image.mode}")
    if not transparent:
        return image.convert("RGB")
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, (255, 255, 255, 255)), image).convert("RGB")


def resample_plain(
    pixels: NDArray[np.uint8], box: tuple[float, float, float, float], size: tuple[int, int], cubic: bool
) -> NDArray[np.uint8]:
    """Returns a box of the pixels at another size, using a fixed-width filter (no antialiasing), which PIL lacks.

    Args:
        pixels: uint8[H, W] or uint8[H, W, C].
        box: (left, top, right, bottom) in pixels, and fractions of them.
        size: (width, height) of the result.
        cubic: Whether the filter is bicubic; if not, it is bilinear.
    """
    left, top, right, bottom = box
    values: NDArray[np.float32] = pixels.astype(np.float32)
    for axis, (start, end, count) in enumerate(((top, bottom, size[1]), (left, right, size[0]))):
        centers = start + (np.arange(count) + 0.5) * ((end - start) / count) - 0.5
        first = np.floor(centers).astype(np.int64)
        shape = [1] * values.ndim
        shape[axis] = count
        total = np.zeros((*values.shape[:axis], count, *values.shape[axis + 1 :]), np.float32)
        for tap in (-1, 0, 1, 2) if cubic else (0, 1):
            distance = np.abs(centers - (first + tap))
            weights = _cubic(distance) if cubic else 1.0 - distance
            taken = values.take(np.clip(first + tap, 0, values.shape[axis] - 1), axis=axis)
            total += taken * weights.astype(np.float32).reshape(shape)
        values = total
    rounded: NDArray[np.uint8] = np.clip(np.floor(values + 0.5), 0, 255).astype(np.uint8)
    return rounded


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Returns the weights of the cubic filter with a = -0.5, as in PIL and DALI."""
    near = (1.5 * distance - 2.5) * distance * distance + 1.0
    far = ((-0.5 * distance + 2.5) * distance - 4.0) * distance + 2.0
    return np.where(distance < 1.0, near, np.where(distance < 2.0, far, 0.0))
