"""One bad image never takes its neighbours, its pipeline or its process along."""

from __future__ import annotations

import subprocess
from typing import Any

import numpy as np
import pytest

from energon_dali.decode import DaliDecoder, Decoded, DecodeFailure, MediaHandle
from energon_dali.decode.dali.dispatch import DaliHandle
from energon_dali.decode.dali.images.graph import ImageBatch
from energon_dali.decode.dali.images.recovery import decode_suspects
from energon_dali.decode.dali.runtime.device import Device
from energon_dali.decode.interface import Outcome
from energon_dali.errors import DeviceFailedError
from tests.decode.sample_images import broken_images, sample_images

DECODER = DaliDecoder(image_decode="rgb8", image_decode_device="cpu")
GOOD = [sample_images()[name] for name in ("jpeg-420", "jpeg-444", "png-rgb", "tiff-raw")]
NAMED = (
    "Error in CPU operator `nvidia.dali.fn.decoders.image`,\n\nencountered:\n\nFailed to decode sample #{} : \nCurrent"
)


def block_with(bad: dict[int, MediaHandle], count: int = 64) -> list[MediaHandle]:
    return [bad.get(i) or DECODER.stage("jpg", GOOD[i % len(GOOD)]) for i in range(count)]


def unscreened(data: bytes) -> DaliHandle:
    """Returns a handle that claims to be fit for DALI, as of a file whose damage no look at its markers shows."""
    return DaliHandle("jpg", data, "jpeg", 157, 118, DECODER.spec)


def check_neighbours(outcomes: list[Outcome], bad: dict[int, Any]) -> None:
    expected = [outcome.value for outcome in DECODER.decode_block(block_with({}, len(GOOD)))]  # type: ignore[union-attr]
    for i, outcome in enumerate(outcomes):
        if i not in bad:
            assert isinstance(outcome, Decoded), i
            assert outcome.route == "dali-cpu", i
            np.testing.assert_array_equal(outcome.value, expected[i % len(GOOD)])


@pytest.mark.parametrize("places", [[0], [63], [5, 6, 40], list(range(0, 64, 3))])
def test_truncated_files_in_a_block_of_64(places: list[int]) -> None:
    bad: dict[int, MediaHandle] = {place: unscreened(broken_images()["jpeg-half"]) for place in places}
    outcomes = DECODER.decode_block(block_with(bad))
    check_neighbours(outcomes, bad)
    for place in places:
        failure = outcomes[place]
        assert isinstance(failure, DecodeFailure)
        assert (failure.format, failure.route) == ("jpeg", "pil")
        assert "truncated" in failure.reason


def test_two_bad_blocks_in_a_row_and_a_good_one_after_them() -> None:
    bad: dict[int, MediaHandle] = {7: unscreened(broken_images()["jpeg-half"])}
    futures = [
        DECODER.submit_block(block_with(bad)),
        DECODER.submit_block(block_with(bad)),
        DECODER.submit_block(block_with({})),
    ]
    for future, places in zip(futures, (bad, bad, {}), strict=True):
        check_neighbours(future.result(60), places)


def test_what_pil_accepts_is_not_a_failure() -> None:
    """DALI's JPEG decoder is stricter than PIL about the end of a file: route "fallback", as DALI gave it up."""
    data = sample_images()["jpeg-420"][:-1]  # half of the end marker
    handle = unscreened(data)
    (outcome,) = DECODER.decode_block([handle])
    if isinstance(outcome, Decoded):
        assert outcome.route in ("fallback", "dali-cpu")
        np.testing.assert_array_equal(outcome.value, handle.decode())
    else:
        assert outcome.route == "pil"


def test_every_broken_file_goes_through_without_harm(warm_python: str) -> None:
    """In its own process, twenty blocks of 64 with all kinds of broken files as plain handles."""
    code = """
from energon_dali.decode import DaliDecoder, Decoded, MediaHandle
from tests.decode.sample_images import broken_images, sample_images
decoder = DaliDecoder(image_decode="rgb8", image_decode_device="cpu")
good = sample_images()["jpeg-420"]
for start in range(20):
    block = [decoder.stage("jpg", good) for _ in range(64)]
    for step, data in enumerate(broken_images().values()):
        block[(start + 3 * step) % 64] = MediaHandle("jpg", data, "jpeg", 157, 118, decoder.spec)
    outcomes = decoder.decode_block(block)
    assert sum(isinstance(outcome, Decoded) for outcome in outcomes) >= 64 - len(broken_images()), outcomes
    assert all(isinstance(o, Decoded) for o, h in zip(outcomes, block, strict=True) if h.data is good)
print("survived")
"""
    done = subprocess.run([warm_python, "-c", code], capture_output=True, text=True, timeout=110, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "survived"), done.stderr[-2000:]


def test_a_parser_failure_that_slipped_through_costs_nobody_else() -> None:
    """A handle that claims to be screened and is not: below 32 images DALI survives, and a new pipeline follows."""
    bad: dict[int, MediaHandle] = {4: unscreened(broken_images()["text"])}
    outcomes = DECODER.decode_block(block_with(bad, 20))
    check_neighbours(outcomes, bad)
    assert isinstance(outcomes[4], DecodeFailure)
    check_neighbours(DECODER.decode_block(block_with({}, 20)), {})


def fake_batch(count: int) -> ImageBatch:
    return ImageBatch([DECODER.stage("jpg", GOOD[0]) for _ in range(count)], [None] * count)


@pytest.mark.parametrize(
    "text",
    [
        "encountered:\n\nCUDA runtime API error cudaErrorIllegalAddress (700)",
        "encountered:\n\nCan't allocate 1234 bytes: out of memory",
        "nvJPEG error: NVJPEG_STATUS_ALLOCATOR_FAILURE",
    ],
)
def test_a_device_that_fails_is_not_a_bad_sample(text: str) -> None:
    def run(batch: ImageBatch) -> list[Any]:
        raise AssertionError("must not be tried again")

    with pytest.raises(DeviceFailedError, match="No sample caused this"):
        decode_suspects(fake_batch(3), RuntimeError(text), run, lambda: None, lambda value: value, Device("gpu", 0))


def test_unnamed_errors_are_narrowed_down_in_small_batches() -> None:
    batch, sizes, rebuilt = fake_batch(64), [], []
    culprit = batch.handles[37]

    def run(part: ImageBatch) -> list[Outcome]:
        sizes.append(len(part))
        if culprit in part.handles:
            raise RuntimeError("encountered:\n\nnvImageCodec failure: '#4'")
        return [Decoded(1, "dali-cpu")] * len(part)

    error = RuntimeError("encountered:\n\nnvImageCodec failure: '#4'")
    outcomes = decode_suspects(batch, error, run, lambda: rebuilt.append(1), lambda value: value, Device("cpu"))
    assert [i for i, outcome in enumerate(outcomes) if outcome.route == "fallback"] == [37]  # PIL can read it
    assert max(sizes) == 16
    assert len(sizes) <= 12
    assert rebuilt


def test_a_dead_pipeline_still_gives_every_image() -> None:
    def run(batch: ImageBatch) -> list[Any]:
        raise RuntimeError("encountered:\n\nsomething unheard of")

    outcomes = decode_suspects(
        fake_batch(5), RuntimeError("dead"), run, lambda: None, lambda value: value, Device("cpu")
    )
    assert [outcome.route for outcome in outcomes] == ["fallback"] * 5


def test_a_named_sample_outside_of_the_batch_is_not_trusted() -> None:
    def run(batch: ImageBatch) -> list[Any]:
        return [Decoded(1, "dali-cpu")] * len(batch)

    outcomes = decode_suspects(
        fake_batch(3), RuntimeError(NAMED.format(9)), run, lambda: None, lambda value: value, Device("cpu")
    )
    assert [outcome.route for outcome in outcomes] == ["dali-cpu"] * 3
