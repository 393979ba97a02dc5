"""Energon's `MergeTransform`: several geometric transforms of torchvision as one warp.

The transforms are recognised by the names of their classes, so that this module needs no torchvision; the objects that
a program gives to it come from there.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL.Image
import torch

from energon_dali.errors import ConfigError

Matrix = npt.NDArray[np.float64]
"""float64 [3, 3]: where a point (x, y, 1) of the image is after the transforms."""
Size = npt.NDArray[np.int64]
"""int64 [2]: height and width."""


_CORNER_DECIMALS = 6
"""A corner that is less than a millionth of a pixel beyond a pixel needs no further pixel."""


class Sampling(Enum):
    """How pixels between pixels are computed."""

    BILINEAR = PIL.Image.Resampling.BILINEAR
    NEAREST = PIL.Image.Resampling.NEAREST


class TransformMapper(ABC):
    """A geometric transform as a matrix.

    Args:
        transform: The transform of torchvision.
    """

    of_image = False
    """Whether the transform is applied to a PIL image, and not to a tensor."""

    def __init__(self, transform: Any = None) -> None:
        self.transform = transform

    def __call__(self, sample: Any) -> Any:
        return self.transform(sample)

    @abstractmethod
    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        """Returns (matrix, size, what was drawn) after this transform.

        Args:
            matrix: That of the transforms before.
            dst_size: Size of their result.
        """

    def fill(self) -> Any:
        """Returns the value of pixels outside the image, None if there are none."""
        return getattr(self.transform, "fill", None)

    def interpolation(self) -> Any:
        """Returns how pixels are computed, None if it does not matter."""
        return getattr(self.transform, "interpolation", None)

    @staticmethod
    def translate(x: float, y: float) -> Matrix:
        """Returns the matrix that moves by (x, y) pixels."""
        return np.array([[1, 0, x], [0, 1, y], [0, 0, 1]], np.float64)

    @staticmethod
    def scale(x: float, y: float) -> Matrix:
        """Returns the matrix that scales."""
        return np.diag([x, y, 1.0]).astype(np.float64)

    @staticmethod
    def rotate(angle: float) -> Matrix:
        """Returns the matrix that rotates counter-clockwise.

        Args:
            angle: In radians.
        """
        c, s = math.cos(angle), math.sin(angle)
        return np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def shear(x: float, y: float) -> Matrix:
        """Returns the matrix that shears."""
        return np.array([[1, x, 0], [y, 1, 0], [0, 0, 1]], np.float64)

    @staticmethod
    def hflip() -> Matrix:
        """Returns the matrix that mirrors left and right, about x = 0."""
        return np.diag([-1.0, 1.0, 1.0]).astype(np.float64)

    @staticmethod
    def vflip() -> Matrix:
        """Returns the matrix that mirrors top and bottom, about y = 0."""
        return np.diag([1.0, -1.0, 1.0]).astype(np.float64)


class CustomTransform(TransformMapper):
    """Base class of transforms of the program; override `apply_transform`. It need not call `super().__init__()`."""

    transform: Any = None

    def __init__(self) -> None:
        super().__init__(None)


def _size_of(size: Any) -> Size:
    pair = (size, size) if isinstance(size, int) else tuple(size)
    return np.array(pair if len(pair) == 2 else (pair[0], pair[0]), np.int64)


class ResizeMapper(TransformMapper):
    """torchvision's Resize."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        size = self.transform.size
        if isinstance(size, int) or len(size) == 1:
            new = self._by_short_edge(dst_size, size if isinstance(size, int) else size[0])
        else:
            new = _size_of(size)
        return self.scale(new[1] / dst_size[1], new[0] / dst_size[0]) @ matrix, new, (int(new[0]), int(new[1]))

    def _by_short_edge(self, old: Size, short: int) -> Size:
        limit = self.transform.max_size
        long = int(short * int(old.max()) / int(old.min()))
        if limit is not None:
            if limit <= short:
                raise ConfigError(f"Resize has max_size={limit}, which must be more than size={short}.")
            if long > limit:
                short, long = int(limit * short / long), limit
        return np.array((short, long) if old[0] <= old[1] else (long, short), np.int64)


class RandomResizedCropMapper(TransformMapper):
    """torchvision's RandomResizedCrop."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        shape = torch.empty(1).expand(int(dst_size[0]), int(dst_size[1]))
        top, left, height, width = self.transform.get_params(shape, self.transform.scale, self.transform.ratio)
        new = _size_of(self.transform.size)
        crop = self.scale(new[1] / width, new[0] / height) @ self.translate(-left, -top)
        return crop @ matrix, new, (top, left, height, width)


class CenterCropMapper(TransformMapper):
    """torchvision's CenterCrop."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        new = _size_of(self.transform.size)
        top, left = (round(float(old - wanted) / 2.0) for old, wanted in zip(dst_size, new, strict=True))
        return self.translate(-left, -top) @ matrix, new, (top, left)


class RandomCropMapper(TransformMapper):
    """torchvision's RandomCrop."""

    def fill(self) -> Any:
        padded = self.transform.padding is not None or self.transform.pad_if_needed
        return self.transform.fill if padded else None

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        if self.transform.padding_mode != "constant":
            raise ConfigError(
                f"RandomCrop(padding_mode={self.transform.padding_mode!r}) is not a warp: use 'constant'."
            )
        height, width = (int(length) for length in dst_size)
        pad_left = pad_top = 0
        if self.transform.padding is not None:
            padding = self.transform.padding
            given = [padding] if isinstance(padding, int) else list(padding)
            left, top, right, bottom = given * 4 if len(given) == 1 else given * 2 if len(given) == 2 else given
            pad_left, pad_top, width, height = left, top, width + left + right, height + top + bottom
        new = _size_of(self.transform.size)
        if self.transform.pad_if_needed:
            extra_height, extra_width = max(0, int(new[0]) - height), max(0, int(new[1]) - width)
            pad_left, pad_top = pad_left + extra_width, pad_top + extra_height
            height, width = height + 2 * extra_height, width + 2 * extra_width
        if height < new[0] or width < new[1]:
            raise ConfigError(f"RandomCrop cannot take {tuple(map(int, new))} of an image of {height} x {width}.")
        top = int(torch.randint(0, height - int(new[0]) + 1, ()))
        left = int(torch.randint(0, width - int(new[1]) + 1, ()))
        return self.translate(pad_left - left, pad_top - top) @ matrix, new, (top, left)


class _FlipMapper(TransformMapper):
    @abstractmethod
    def _flip(self, size: Size) -> Matrix:
        """Returns the matrix that mirrors an image of a size."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        flipped = bool(torch.rand(1) < self.transform.p)
        return (self._flip(dst_size) @ matrix if flipped else matrix), dst_size, flipped


class RandomHorizontalFlipMapper(_FlipMapper):
    """torchvision's RandomHorizontalFlip."""

    def _flip(self, size: Size) -> Matrix:
        return self.translate(float(size[1]), 0) @ self.hflip()


class RandomVerticalFlipMapper(_FlipMapper):
    """torchvision's RandomVerticalFlip."""

    def _flip(self, size: Size) -> Matrix:
        return self.translate(0, float(size[0])) @ self.vflip()


class RandomRotationMapper(TransformMapper):
    """torchvision's RandomRotation."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        degrees = float(self.transform.get_params(self.transform.degrees))
        height, width = (float(length) for length in dst_size)
        center = self.transform.center or (width / 2, height / 2)
        rotation = self.translate(*center) @ self.rotate(math.radians(degrees)) @ self.translate(-center[0], -center[1])
        size = dst_size
        if self.transform.expand:
            # As PIL does: whole pixels on each side, and the centre of the image stays in the middle.
            corners = np.array([[0, width, width, 0], [0, 0, height, height], [1, 1, 1, 1]], np.float64)
            found = np.round(np.linalg.inv(rotation) @ corners, _CORNER_DECIMALS)[:2]
            high, low = found.max(axis=1), found.min(axis=1)
            if not (self.of_image and degrees % 90 == 0):  # PIL transposes then, and needs no further pixel
                high, low = np.ceil(high), np.floor(low)
            size = (high - low)[::-1].astype(np.int64)
            rotation = self.translate((size[1] - width) / 2, (size[0] - height) / 2) @ rotation
        return rotation @ matrix, size, degrees


class RandomPerspectiveMapper(TransformMapper):
    """torchvision's RandomPerspective."""

    def apply_transform(self, matrix: Matrix, dst_size: Size) -> tuple[Matrix, Size, Any]:
        if torch.rand(1) >= self.transform.p:
            return matrix, dst_size, None
        height, width = (int(length) for length in dst_size)
        starts, ends = self.transform.get_params(width, height, self.transform.distortion_scale)
        return _homography(starts, ends) @ matrix, dst_size, (starts, ends)


def _homography(starts: Sequence[Sequence[float]], ends: Sequence[Sequence[float]]) -> Matrix:
    """Returns the matrix that moves four points to four others."""
    rows, values = [], []
    for (x, y), (u, v) in zip(starts, ends, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved = np.linalg.lstsq(np.array(rows, np.float64), np.array(values, np.float64), rcond=None)[0]
    return np.append(solved, 1.0).reshape(3, 3)


_MAPPERS: dict[str, type[TransformMapper]] = {
    kind.__name__.removesuffix("Mapper"): kind
    for kind in (
        ResizeMapper,
        RandomResizedCropMapper,
        CenterCropMapper,
        RandomCropMapper,
        RandomHorizontalFlipMapper,
        RandomVerticalFlipMapper,
        RandomRotationMapper,
        RandomPerspectiveMapper,
    )
}
"""By the name of torchvision's class."""


class MergeTransform(torch.nn.Module):
    """Applies several geometric transforms in one warp.

    Args:
        transforms: Transforms of torchvision, or CustomTransforms.

    Raises:
        ConfigError: A transform is of another kind, or two have different fills or interpolations.
    """

    def __init__(self, transforms: Sequence[Any]) -> None:
        super().__init__()
        self.transforms = [_mapper(transform) for transform in transforms]
        self.fill_value = _common("fills", [mapper.fill() for mapper in self.transforms])
        found = _common("interpolations", [mapper.interpolation() for mapper in self.transforms])
        self.interpolation = "bilinear" if found is None else str(getattr(found, "value", found))
        if self.interpolation not in ("nearest", "bilinear", "bicubic"):
            raise ConfigError(f"interpolation={self.interpolation!r} is unknown: use nearest, bilinear or bicubic.")

    def forward(self, x: Any) -> Any:
        """Returns the warped image, of the same kind.

        Args:
            x: A PIL image, or a float tensor [channels, height, width].

        Raises:
            ConfigError: `x` is something else.
        """
        image = isinstance(x, PIL.Image.Image)
        if not image and not isinstance(x, torch.Tensor):
            raise ConfigError(f"MergeTransform was given a {type(x).__name__}: give a PIL image or a tensor.")
        source = np.array((x.height, x.width) if image else x.shape[-2:], np.int64)
        matrix, size = np.eye(3, dtype=np.float64), source
        for mapper in self.transforms:
            mapper.of_image = image
            matrix, size, _ = mapper.apply_transform(matrix, size)
        backward = np.linalg.inv(matrix).astype(np.float64)
        backward /= backward[2, 2]
        return self._warp_image(x, backward, size) if image else self._warp_tensor(x, backward, source, size)

    def _warp_image(self, image: PIL.Image.Image, backward: Matrix, size: Size) -> PIL.Image.Image:
        affine = bool(np.allclose(backward[2, :2], 0))
        fill = self.fill_value
        color = (fill,) * len(image.getbands()) if isinstance(fill, (int, float)) else fill
        return image.transform(
            (int(size[1]), int(size[0])),
            PIL.Image.Transform.AFFINE if affine else PIL.Image.Transform.PERSPECTIVE,
            backward.flatten()[: 6 if affine else 8].tolist(),
            PIL.Image.Resampling[self.interpolation.upper()],
            fillcolor=color if color is None or len(image.getbands()) > 1 else color[0],
        )

    def _warp_tensor(self, image: torch.Tensor, backward: Matrix, source: Size, size: Size) -> torch.Tensor:
        if self.fill_value:
            raise ConfigError(f"fill={self.fill_value} is not available for tensors: use 0, or PIL images.")
        ys = torch.arange(int(size[0]), dtype=torch.float64) + 0.5
        xs = torch.arange(int(size[1]), dtype=torch.float64) + 0.5
        y, x = torch.meshgrid(ys, xs, indexing="ij")
        points = torch.stack((x, y, torch.ones_like(x)), dim=-1) @ torch.from_numpy(backward.T.copy())
        points = points[..., :2] / points[..., 2:]
        grid = points / torch.tensor([source[1], source[0]], dtype=torch.float64) * 2 - 1
        warped = torch.nn.functional.grid_sample(
            image[None], grid[None].to(image.dtype), self.interpolation, padding_mode="zeros", align_corners=False
        )
        return warped[0]


def _mapper(transform: Any) -> TransformMapper:
    if isinstance(transform, TransformMapper):
        return transform
    names = {base.__name__ for base in type(transform).__mro__}
    for name, kind in _MAPPERS.items():
        if name in names:
            return kind(transform)
    raise ConfigError(
        f"MergeTransform was given a {type(transform).__name__}: give torchvision's "
        f"{', '.join(_MAPPERS)}, or a CustomTransform."
    )


def _common(what: str, values: list[Any]) -> Any:
    """Returns the value that all transforms with one share, None if none has one."""
    found = [value for value in values if value is not None]
    if any(value != found[0] for value in found):
        raise ConfigError(f"The transforms have different {what}: {found}. Give all of them the same.")
    return found[0] if found else None
