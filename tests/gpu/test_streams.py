"""Order on CUDA streams and lifetime of tensors: no reader sees a buffer before it is written or after its reuse."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from PIL import Image

from energon_dali.decode import DaliDecoder, MediaHandle
from tests.gpu.observations import Observations
from tests.gpu.where import Where, values_of


def flat(level: int, size: tuple[int, int] = (64, 48)) -> bytes:
    """Returns a JPEG of one gray level: every pixel shows which image was decoded."""
    stream = io.BytesIO()
    Image.new("RGB", size, (level, level, level)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def block(decoder: DaliDecoder, level: int, ragged: bool, count: int = 8) -> list[MediaHandle]:
    return [decoder.stage("jpg", flat(level, (64 + 8 * (i % 3) * ragged, 48))) for i in range(count)]


def assert_level(values: list[torch.Tensor], level: int) -> None:
    for value in values:
        low, high = value.min().item(), value.max().item()
        assert level - 1 <= low <= high <= level + 1, (low, high, level)


@pytest.mark.parametrize("ragged", [False, True], ids=["uniform", "ragged"])
def test_a_consumer_on_another_stream_and_a_producer_that_races_ahead(where: Where, ragged: bool) -> None:
    """The consumer reads late, and drops tensors before their reads ran; the producer is always blocks ahead."""
    decoder = where.decoder(image_decode="torchrgb8")
    levels = [10 + 5 * turn for turn in range(40)]
    copies: list[tuple[int, list[torch.Tensor]]] = []
    with where.other_stream():
        waiting = [decoder.submit_block(block(decoder, level, ragged)) for level in levels[:4]]
        for turn, level in enumerate(levels):
            values = [outcome.value for outcome in waiting.pop(0).result(60)]  # type: ignore[union-attr]
            where.stay_busy()
            copies.append((level, [value.clone() for value in values]))
            del values
            if turn + 4 < len(levels):
                waiting.append(decoder.submit_block(block(decoder, levels[turn + 4], ragged)))
    where.finish()
    for level, values in copies:
        assert_level(values, level)


@pytest.mark.parametrize("ragged", [False, True], ids=["uniform", "ragged"])
def test_tensors_are_kept_over_100_batches(where: Where, ragged: bool) -> None:
    decoder = where.decoder(image_decode="torchrgb8")
    held = values_of(decoder, block(decoder, 77, ragged))
    for turn in range(100):
        values = values_of(decoder, block(decoder, 100 + turn, ragged, 4))
        del values
    where.finish()
    assert_level(held, 77)
    for value in held:
        value.zero_()
    assert_level(values_of(decoder, block(decoder, 90, ragged)), 90)


def test_a_tensor_that_one_stream_made_and_another_reads_late(where: Where, observe: Observations) -> None:
    """Dropped before the other CUDA stream has read it. DALI waits for the device before it reuses the memory."""
    decoder = where.decoder(image_decode="torchrgb8")
    sums: list[Any] = []
    for turn in range(30):
        values = values_of(decoder, block(decoder, 20 + turn, False))
        made = torch.cuda.current_stream().record_event() if where.kind == "gpu" else None
        with where.other_stream():
            if made is not None:
                torch.cuda.current_stream().wait_event(made)
            where.stay_busy()
            sums.append(torch.stack(values).float().mean())
        del values
    where.finish()
    means = [round(float(value), 2) for value in sums]
    observe(means=means)
    assert means == pytest.approx([20 + turn for turn in range(30)], abs=1)
