"""From bytes to the values that a model takes: rescaling and normalisation, with a processor's own rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Arithmetic = Literal["pil", "torch", "bfloat16"]
_CHUNK_VALUES = 1 << 17
"""Values that are converted at a time: their float32 stay in a core's cache."""
_CHUNK_PAIRS = 1 << 17
"""Pairs of values that are looked up at a time: torch takes 10 us for each call."""
_FEW_VALUES = 1 << 16
"""Values below which making a table of all pairs does not pay."""


@dataclass(frozen=True, slots=True)
class PixelValues:
    """What a byte becomes: value = (byte * rescale - offset - mean) / std / divisor, each step only where it is given.

    A byte has 256 values, so `table` is the whole definition, and each way of computing must agree with it bit for bit.
    """

    rescale: float | None = 1 / 255
    """Factor of each byte; None leaves 0 to 255."""
    mean: tuple[float, ...] | None = None
    """Per channel, after rescaling; None does not normalise."""
    std: tuple[float, ...] | None = None
    """Likewise."""
    arithmetic: Arithmetic = "pil"
    """Order of the steps: "pil" as transformers' PIL backend (rescale in float64, round to float32, subtract, divide),
    "torch" as its torchvision backend (mean and std are multiplied by 1 / rescale, one subtraction, one division),
    "bfloat16" as Llama 4's processor (rescale, subtract, divide, each rounded to bfloat16)."""
    offset: float = 0.0
    """Subtracted after rescaling, where bytes become -1 to 1 (EfficientNet, ViViT). With one, "torch" has separate
    steps."""
    divisor: tuple[float, ...] | None = None
    """Per channel, after normalisation (EfficientNet divides by its std once more); None does not divide."""

    @property
    def converts(self) -> bool:
        """Whether the values are other than the bytes."""
        return self.rescale is not None or self.mean is not None or self.divisor is not None

    def table(self, channels: int = 3) -> NDArray[np.float32]:
        """Returns the value of each byte: float32[channels, 256]. Shared: do not change it."""
        return _table(self, channels)

    def table_on(self, device: torch.device, dtype: torch.dtype, channels: int = 3) -> torch.Tensor:
        """Returns the value of each byte on a device: dtype[channels, 256]. Shared: do not change it.

        The first call for a device waits for the copy; later ones neither copy nor wait.

        Args:
            device: The device.
            dtype: Narrower types are rounded from float32.
            channels: Number of channels.
        """
        return _table_on(self, device, dtype, channels)

    def largest(self) -> float:
        """Returns the largest absolute value of any byte; infinite if one is not a finite number."""
        return _largest(self)

    def convert(
        self,
        pixels: torch.Tensor,
        dtype: torch.dtype,
        *,
        channel_axis: int,
        repeat: int = 1,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the values of bytes as a new tensor, or writes them into one.

        Args:
            pixels: uint8[items, a, b], on any device.
            dtype: Of the result. Narrower types are rounded from float32; torch.uint8 leaves the bytes as they are.
            channel_axis: Which of the axes, 1 or 2, is the channel.
            repeat: How often each item is repeated after its axis 1, as the frames of a temporal patch are.
            out: Where to write them, of the shape and dtype of the result and in any memory order; None for a new
                tensor.

        Returns:
            dtype[items, a, b], or dtype[items, a, repeat, b] if `repeat` is more than 1.
        """
        import torch

        items, first, second = pixels.shape
        if out is None:
            shape = (items, first, second) if repeat == 1 else (items, first, repeat, second)
            out = torch.empty(shape, dtype=dtype, device=pixels.device)
        if dtype == torch.uint8:
            out.copy_(pixels if repeat == 1 else pixels[:, :, None, :])
            return out
        if pixels.is_cuda:
            table = self.table_on(pixels.device, dtype, pixels.shape[channel_axis])
            if channel_axis == 1 and out.is_contiguous():
                _look_up(pixels, table, channel_axis, repeat, out)
                return out
            values = _look_up(pixels, table, channel_axis, 1).view(pixels.shape)
            return out.copy_(values if repeat == 1 else values[:, :, None, :])
        if channel_axis == 1 and items * first * second >= _FEW_VALUES and _in_pairs(pixels, out):
            _look_up_pairs(pixels, _pair_table(self, dtype, first), repeat, out)
            return out
        steps = _steps(self, pixels.shape[channel_axis])
        rows, columns = items, max(1, second)  # of a chunk
        if channel_axis == 1 and repeat == 1 and first * second > _CHUNK_VALUES:
            rows, columns = 1, _CHUNK_VALUES // first  # large tiles
        else:
            rows = max(1, _CHUNK_VALUES // max(1, first * second))
        scratch = torch.empty(min(rows, items) * first * columns, dtype=torch.float32)
        for row in range(0, items, max(1, rows)):
            for column in range(0, second, columns):
                place = (slice(row, row + rows), slice(None), slice(column, column + columns))
                chunk = pixels[place]
                values = scratch[: chunk.numel()].view(chunk.shape)
                steps.compute(chunk, values, channel_axis)
                if repeat == 1:
                    out[place] = values
                else:
                    out[place[0]] = values[:, :, None, :]
        return out


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Steps in float32 that give the table bit for bit, or the table itself."""

    divisor: float | None = None
    mean: torch.Tensor | None = None
    std: torch.Tensor | None = None
    table: torch.Tensor | None = None

    def compute(self, pixels: torch.Tensor, values: torch.Tensor, channel_axis: int) -> None:
        """Writes the values of uint8[n, a, b] into float32[n, a, b]; its axis 1 or 2 is the channel."""
        import torch

        if self.table is not None:
            for channel, levels in enumerate(self.table):
                chosen = pixels.select(channel_axis, channel)
                values.select(channel_axis, channel).copy_(levels[chosen.int()])
            return
        if self.divisor is None:
            values.copy_(pixels)
        else:
            torch.div(pixels, self.divisor, out=values)
        if self.mean is not None and self.std is not None:
            shape = (-1, 1) if channel_axis == 1 else (-1,)
            values.sub_(self.mean.view(shape))
            values.div_(self.std.view(shape))


def _look_up(
    pixels: torch.Tensor, table: torch.Tensor, channel_axis: int, repeat: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Returns the values of bytes on a GPU; nothing is computed, so every device gives the same bits.

    Args:
        pixels: uint8[items, a, b].
        table: dtype[channels, 256].
        channel_axis: Which of the axes, 1 or 2, is the channel.
        repeat: How often each item is repeated after its axis 1, if that is the channel.
        out: Where to write them, contiguous; None for a new tensor.
    """
    from energon_dali.kernels.merge_patches import merge_patches

    last = channel_axis == 2
    planes = pixels.transpose(1, 2) if last else pixels
    # Each item is an image of one row, which is one patch.
    row = planes[:, None, :, None, :]
    values: torch.Tensor = merge_patches(
        row, (1, row.shape[4]), frames_per_patch=repeat, values=table, channels_last=last, out=out
    )
    return values


def _in_pairs(pixels: torch.Tensor, out: torch.Tensor) -> bool:
    """Returns whether bytes and values can be read and written two at a time: uint8[items, channels, even number]."""
    return (
        pixels.is_contiguous()
        and out.is_contiguous()
        and not (pixels.shape[2] % 2 or pixels.storage_offset() % 2 or out.storage_offset() % 2)
    )


def _look_up_pairs(pixels: torch.Tensor, table: torch.Tensor, repeat: int, out: torch.Tensor) -> None:
    """Writes the values of bytes on the CPU, two at a time: half as many look-ups, each of a wider item.

    Args:
        pixels: uint8[items, channels, n], n even; contiguous.
        table: `_pair_table` of the dtype of `out`.
        repeat: How often each item is repeated after its axis 1.
        out: dtype[items, channels, n], or dtype[items, channels, repeat, n]; contiguous.
    """
    import torch

    items, channels, length = pixels.shape[0], pixels.shape[1], pixels.shape[2] // 2
    pairs, found = pixels.view(torch.uint16), out.view(table.dtype)
    levels = table.view(-1)
    numbers = torch.empty(min(_CHUNK_PAIRS, pairs.numel()), dtype=torch.int32)
    if channels * length > _CHUNK_PAIRS:  # large tiles: part of one channel at a time
        for item in range(items):
            for channel in range(channels):
                for start in range(0, length, _CHUNK_PAIRS):
                    place = (item, channel, slice(start, start + _CHUNK_PAIRS))
                    chunk = numbers[: min(_CHUNK_PAIRS, length - start)].copy_(pairs[place])
                    if repeat == 1:
                        torch.index_select(table[channel], 0, chunk, out=found[place])
                    else:
                        found[item, channel, :, place[2]] = torch.index_select(table[channel], 0, chunk)
        return
    rows = _CHUNK_PAIRS // (channels * length)
    first_levels = (torch.arange(channels, dtype=torch.int32) * table.shape[1])[:, None]
    scratch = torch.empty(len(numbers) if repeat > 1 else 0, dtype=table.dtype)
    for row in range(0, items, rows):
        chunk = pairs[row : row + rows]
        chosen = numbers[: chunk.numel()]
        chosen.view(chunk.shape).copy_(chunk).add_(first_levels)
        if repeat == 1:
            torch.index_select(levels, 0, chosen, out=found[row : row + rows].view(-1))
        else:
            values = torch.index_select(levels, 0, chosen, out=scratch[: len(chosen)])
            found[row : row + rows] = values.view(chunk.shape)[:, :, None]


def _channels(values: tuple[float, ...], channels: int) -> NDArray[np.float32]:
    return np.array(values * channels if len(values) == 1 else values, np.float32)


@lru_cache(maxsize=64)
def _largest(values: PixelValues) -> float:
    with np.errstate(all="ignore"):
        table = np.abs(_table(values, 3))
    return float(table.max()) if np.isfinite(table).all() else math.inf


@lru_cache(maxsize=64)
def _table(values: PixelValues, channels: int) -> NDArray[np.float32]:
    if values.arithmetic == "bfloat16":
        return _bfloat16_table(values, channels)
    levels = np.arange(256)[None].repeat(channels, 0)
    result = _before_division(values, levels, channels)
    if values.divisor is not None:
        result = result / _channels(values.divisor, channels)[:, None]
    result.setflags(write=False)
    return np.asarray(result, np.float32)


def _before_division(values: PixelValues, levels: NDArray[np.int64], channels: int) -> NDArray[np.float32]:
    result: NDArray[np.float32]
    if values.offset:
        result = _rescaled(values, levels) - np.float32(values.offset)
        if values.mean is not None and values.std is not None:
            mean, std = (_channels(given, channels)[:, None] for given in (values.mean, values.std))
            result = (result - mean) / std
        return result
    if values.mean is None or values.std is None:
        return _rescaled(values, levels)
    mean, std = _channels(values.mean, channels)[:, None], _channels(values.std, channels)[:, None]
    if values.arithmetic == "pil":
        result = (_rescaled(values, levels) - mean) / std
        return result
    if values.rescale is not None:
        scale = np.float32(1.0 / values.rescale)
        mean, std = mean * scale, std * scale
    result = (levels.astype(np.float32) - mean) / std
    return result


def _rescaled(values: PixelValues, levels: NDArray[np.int64]) -> NDArray[np.float32]:
    if values.rescale is None:
        return levels.astype(np.float32)
    if values.arithmetic == "torch":
        result: NDArray[np.float32] = levels.astype(np.float32) * np.float32(values.rescale)
        return result
    return (levels.astype(np.float64) * values.rescale).astype(np.float32)


def _bfloat16_table(values: PixelValues, channels: int) -> NDArray[np.float32]:
    import torch

    def column(numbers: tuple[float, ...]) -> torch.Tensor:
        return torch.from_numpy(_channels(numbers, channels)).to(torch.bfloat16)[:, None]

    levels = torch.arange(256).repeat(channels, 1).to(torch.bfloat16)
    if values.rescale is not None:
        levels = levels * values.rescale
    if values.mean is not None and values.std is not None:
        levels = (levels - column(values.mean)) / column(values.std)
    result = levels.float().numpy()
    result.setflags(write=False)
    return np.asarray(result, np.float32)


@lru_cache(maxsize=256)
def _table_on(values: PixelValues, device: torch.device, dtype: torch.dtype, channels: int) -> torch.Tensor:
    import torch

    # Without non_blocking: the table is then there for whichever CUDA stream uses it next.
    return torch.from_numpy(np.array(_table(values, channels))).to(dtype).to(device)


@lru_cache(maxsize=16)
def _pair_table(values: PixelValues, dtype: torch.dtype, channels: int) -> torch.Tensor:
    """Returns the values of each pair of bytes that follow each other in memory, as one item: [channels, 65536]."""
    import torch

    pairs = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.uint8).astype(np.int64))
    levels = torch.from_numpy(np.array(_table(values, channels))).to(dtype)
    item = torch.int64 if dtype.itemsize == 4 else torch.int32
    return levels[:, pairs].view(item)


@lru_cache(maxsize=64)
def _steps(values: PixelValues, channels: int) -> _Steps:
    """Returns the fastest steps whose results equal the table for all bytes, on the CPU."""
    import torch

    table = torch.from_numpy(np.array(_table(values, channels)))
    divisor = None if values.rescale is None else 1.0 / values.rescale
    candidates = [_Steps(divisor)]
    if values.mean is not None and values.std is not None:
        mean, std = (torch.from_numpy(_channels(given, channels)) for given in (values.mean, values.std))
        candidates = [_Steps(divisor, mean, std)]
        if divisor is not None:
            candidates.append(_Steps(None, mean * np.float32(divisor), std * np.float32(divisor)))
    levels = torch.arange(256, dtype=torch.uint8).repeat(channels, 1)[None]  # uint8[1, channels, 256]
    for candidate in candidates:
        found = torch.empty(levels.shape, dtype=torch.float32)
        candidate.compute(levels, found, 1)
        if np.array_equal(found[0].numpy(), table.numpy()):
            return candidate
    return _Steps(table=table)
