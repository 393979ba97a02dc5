"""ImageGPT: each pixel becomes the index of the nearest of its colours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from energon_dali.decode.front_ends.fixed_size import HALF
from energon_dali.decode.front_ends.front_end import FrontEnd, VisionInput
from energon_dali.decode.front_ends.layout import ImageLayout, View
from energon_dali.decode.front_ends.processor_config import CROP_AND_PAD, ProcessorConfig, finite_number
from energon_dali.decode.front_ends.resampling import Pixels

if TYPE_CHECKING:
    import torch


_CLUSTERS = "a list of colours of three numbers, as do_color_quantize is set"


@dataclass(frozen=True, kw_only=True)
class ImageGPT(FrontEnd):
    """Resizes an image, normalises it, and replaces each pixel by the index of the nearest colour.

    Values: int64[1, height * width], row by row, whatever the dtype; without `clusters` dtype[1, 3, height, width].
    """

    size: tuple[int, int] | None = (256, 256)
    """(height, width) of the resized image; None does not resize."""
    clusters: tuple[tuple[float, ...], ...] | None = None
    """The colours, as normalised values; None keeps the pixels."""

    family: ClassVar[str] = "imagegpt"
    processors: ClassVar[tuple[str, ...]] = ("ImageGPTImageProcessor",)
    model_keys: ClassVar[tuple[str, ...]] = ("input_ids", "pixel_values")
    unused_keys: ClassVar[frozenset[str]] = CROP_AND_PAD

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Self:
        pair = config.take_pair(256, square=True)
        colours = config.take("clusters")
        clusters: tuple[tuple[float, ...], ...] | None = None
        if config.take_flag("do_color_quantize", True):
            if not isinstance(colours, Iterable) or isinstance(colours, (str, bytes, Mapping)):
                raise config.invalid("clusters", colours, _CLUSTERS)
            clusters = tuple(_colour(config, colour) for colour in colours)
            if not clusters:
                raise config.invalid("clusters", colours, _CLUSTERS)
        return cls(
            **config.take_conversion(HALF, HALF, "bilinear", rgb=False),
            size=pair,
            clusters=clusters,
        )

    def layout(self, width: int, height: int) -> ImageLayout:
        view = View(*(self.size or (height, width)))
        return ImageLayout(height, width, (view,), view.height * view.width, (view.height, view.width))

    def patches_of(self, height: int, width: int) -> int:
        """Returns the pixels of a rectangle: each is a token."""
        return height * width

    def arrange(self, pixels: Pixels, layout: ImageLayout) -> torch.Tensor:
        if self.clusters is None:
            return super().arrange(pixels, layout)
        import torch

        (view,) = layout.views
        resized = pixels.resized(view.height, view.width, self.filter, self.resampling).tensor
        levels = resized.permute(1, 2, 0).reshape(-1, 3).cpu().numpy()  # uint8[pixels, 3]
        table = self.values.table()
        values = np.stack([table[channel][levels[:, channel]] for channel in range(3)], 1)  # float32[pixels, 3]
        nearest = _nearest_by_torch if self.values.arithmetic == "torch" else _nearest
        return torch.from_numpy(nearest(values, _colours(self.clusters)))[None].to(resized.device)

    def arrange_alike(self, pixels: torch.Tensor, layout: ImageLayout) -> torch.Tensor:
        import torch

        return torch.stack([self.arrange(Pixels(tensor=image), layout) for image in pixels])

    def values_shape(self, pixels: torch.Tensor, layout: ImageLayout) -> tuple[int, ...]:
        return super().values_shape(pixels, layout) if self.clusters is None else tuple(pixels.shape)

    def finish(self, pixels: torch.Tensor, layout: ImageLayout, out: torch.Tensor | None = None) -> torch.Tensor:
        return super().finish(pixels, layout, out) if self.clusters is None else pixels

    def collate(self, samples: Sequence[Sequence[VisionInput]]) -> dict[str, Any]:
        import torch

        name = "pixel_values" if self.clusters is None else "input_ids"
        return {name: torch.cat([image.values for sample in samples for image in sample])}


def _colour(config: ProcessorConfig, colour: Any) -> tuple[float, ...]:
    """Returns an entry of clusters.

    Raises:
        ConfigError: It is not three numbers.
    """
    several = isinstance(colour, Iterable) and not isinstance(colour, (str, bytes, Mapping))
    numbers = tuple(finite_number(value) for value in colour) if several else ()
    if len(numbers) != 3 or None in numbers:
        raise config.invalid("clusters", colour, f"{_CLUSTERS}; this is one of them")
    return tuple(number for number in numbers if number is not None)


def _nearest(values: NDArray[np.float32], colours: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the index of the nearest of float64[colours, 3] for each of float32[pixels, 3].

    Distances of colours that are equally near differ by rounding alone, which then decides. So the terms, their types
    and their order are those of the processor: |a|^2 in float32, 2ab and |b|^2 in float64.
    """
    products = np.matmul(values, colours.T)
    distances = np.sum(np.square(values), axis=1)[:, None] - 2 * products + np.sum(np.square(colours.T), axis=0)[None]
    nearest: NDArray[np.int64] = np.argmin(distances, axis=1)
    return nearest


def _nearest_by_torch(values: NDArray[np.float32], colours: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the same by the torchvision backend's arithmetic, which is float32 throughout."""
    import torch

    pixels, columns = torch.from_numpy(values), torch.from_numpy(colours.astype(np.float32)).t()
    squares = (pixels**2).sum(1)[:, None]
    distances = squares - 2 * torch.matmul(pixels, columns) + (columns**2).sum(0)[None]
    return distances.argmin(1).numpy()


@lru_cache(maxsize=8)
def _colours(clusters: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
    return np.array(clusters, np.float64)
