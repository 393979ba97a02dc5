"""Resamples pixels as an image processor does: by PIL, or by torch as torchvision does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch

Resampling = Literal["pil", "torch"]
"""Who resamples: "pil" gives the pixels of transformers' PIL backend bit for bit, "torch" those of its torchvision
backend, in a quarter to a half of the time. `docs/vlm.md` has the differences in a table."""
Filter = Literal["nearest", "bilinear", "bicubic", "lanczos", "box", "hamming"]

PIL_FILTERS: dict[str, Image.Resampling] = {
    "nearest": Image.Resampling.NEAREST,
    "lanczos": Image.Resampling.LANCZOS,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
}
FILTER_NAMES: dict[int, Filter] = {int(value): name for name, value in PIL_FILTERS.items()}  # type: ignore[misc]
"""Name of a filter by the number that PIL and preprocessor_config.json give it."""
_BY_TORCH = ("bilinear", "bicubic", "nearest")


class Pixels:
    """RGB pixels, as a PIL image or a tensor; each form is made from the other when it is first asked for."""

    __slots__ = ("_image", "_tensor")

    def __init__(self, *, image: Image.Image | None = None, tensor: torch.Tensor | None = None) -> None:
        """Takes an image of mode RGB, or uint8[3, H, W] in any memory order, which are not changed."""
        self._image, self._tensor = image, tensor

    @property
    def image(self) -> Image.Image:
        """As a PIL image."""
        if self._image is None:
            assert self._tensor is not None
            self._image = Image.fromarray(self._tensor.permute(1, 2, 0).contiguous().cpu().numpy())
        return self._image

    @property
    def tensor(self) -> torch.Tensor:
        """uint8[3, H, W]; from a PIL image a view of memory [H, W, 3]."""
        if self._tensor is None:
            import torch

            assert self._image is not None
            self._tensor = torch.from_numpy(np.array(self._image)).permute(2, 0, 1)
        return self._tensor

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)."""
        if self._tensor is not None:
            return self._tensor.shape[1], self._tensor.shape[2]
        assert self._image is not None
        return self._image.height, self._image.width

    def planes(self) -> torch.Tensor:
        """Returns uint8[3, H, W], contiguous."""
        if self._tensor is None:
            import torch

            assert self._image is not None
            # PIL splits the channels in less time than a transposition takes.
            joined = bytearray().join([plane.tobytes() for plane in self._image.split()])
            return torch.frombuffer(joined, dtype=torch.uint8).view(3, *self.size)
        return self._tensor.contiguous()

    def cropped(self, box: tuple[int, int, int, int]) -> Pixels:
        """Returns a box (left, top, right, bottom) of the pixels; it may share their memory."""
        left, top, right, bottom = box
        if self._tensor is not None:
            return Pixels(tensor=self._tensor[:, top:bottom, left:right])
        assert self._image is not None
        return Pixels(image=self._image.crop(box))

    def resized(self, height: int, width: int, filter: Filter, by: Resampling) -> Pixels:
        """Returns the pixels at another size; `self` if they have it already. An image without pixels becomes black.

        Args:
            height: Pixels of the result.
            width: Likewise.
            filter: Widened when the image shrinks, except "nearest".
            by: Who resamples. Filters that torch does not have are PIL's in any case.
        """
        if (height, width) == self.size:
            return self
        if 0 in self.size:
            return Pixels(tensor=self.tensor.new_zeros((3, height, width)))
        on_gpu = self._tensor is not None and self._tensor.is_cuda
        if filter in _BY_TORCH and (by == "torch" or on_gpu):
            return Pixels(tensor=_resized_by_torch(self.tensor, height, width, filter))
        resized = Pixels(image=self.image.resize((width, height), PIL_FILTERS[filter]))
        return Pixels(tensor=resized.planes().to(self.tensor.device)) if on_gpu else resized


def _resized_by_torch(pixels: torch.Tensor, height: int, width: int, filter: str) -> torch.Tensor:
    import torch
    from torch.nn.functional import interpolate

    batch = pixels[None]
    if filter == "nearest":
        return interpolate(batch, size=(height, width), mode="nearest")[0]
    if not pixels.is_cuda:
        return interpolate(batch, size=(height, width), mode=filter, antialias=True, align_corners=False)[0]
    # CUDA resamples floats alone. torchvision rounds and clamps likewise.
    values = interpolate(batch.float(), size=(height, width), mode=filter, antialias=True, align_corners=False)[0]
    return values.round_().clamp_(0, 255).to(torch.uint8)
