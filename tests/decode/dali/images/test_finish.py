"""Results of images that DALI decodes on the CPU: PIL's pixels, or torch's resampling of them, in memory that lasts."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import (
    CenterCrop,
    DaliDecoder,
    Decoded,
    HorizontalFlip,
    Normalize,
    RandomCrop,
    RandomResizedCrop,
    Resize,
    SampleDecoder,
)
from energon_dali.decode.dali import release_memory
from energon_dali.decode.dali.images import engine
from energon_dali.decode.dali.images.engine import finish_images
from energon_dali.decode.dali.images.graph import can_finish
from energon_dali.decode.dali.runtime.blocks import RESULTS
from energon_dali.decode.dali.runtime.host_decoding import host_threads, num_host_threads
from energon_dali.decode.geometry import draw_geometry
from energon_dali.decode.spec import ImageSpec
from energon_dali.shards.storage.local import ReusedBuffers
from tests.decode.sample_images import encode, photograph, sample_images
from tests.decode.tolerance import CPU_BY_TORCH, explain_difference

IMAGENET = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
RESAMPLED: dict[str, list[Any]] = {
    "crop": [RandomResizedCrop(64), HorizontalFlip()],
    "bicubic crop": [RandomResizedCrop(64, interpolation="bicubic")],
    "shorter side": [Resize(60), HorizontalFlip()],
    "enlarged": [Resize((333, 401))],
    "one side": [Resize((301, 64))],
    "crop, then size": [RandomCrop(100), Resize((37, 51), "bicubic")],
}
KEPT: dict[str, list[Any]] = {
    "all": [],
    "crop": [RandomCrop((40, 70)), HorizontalFlip()],
    "flip": [HorizontalFlip(1.0)],
}
FILES = [
    encode(photograph(name, (301, 253)), "JPEG", quality=95) for name in ("china", "coffee", "astronaut", "flower")
]


def decode(name: str, operations: list[Any], files: list[bytes] = FILES, **options: Any) -> list[Any]:
    decoder = DaliDecoder(image_decode=name, operations=operations, image_decode_device="cpu", **options)  # type: ignore[arg-type]
    outcomes = decoder.decode_block([decoder.stage("jpg", data, seed=seed) for seed, data in enumerate(files)])
    assert all(isinstance(outcome, Decoded) and outcome.route == "dali-cpu" for outcome in outcomes)
    return [outcome.value for outcome in outcomes if isinstance(outcome, Decoded)]


def decode_by_pil(name: str, operations: list[Any], files: list[bytes] = FILES, **options: Any) -> list[Any]:
    decoder = SampleDecoder(image_decode=name, operations=operations, **options)  # type: ignore[arg-type]
    return [decoder.stage("jpg", data, seed=seed) for seed, data in enumerate(files)]


@pytest.mark.parametrize("name", ["torchrgb8", "rgb8", "pilrgb"])
@pytest.mark.parametrize("case", RESAMPLED)
def test_torch_resamples_as_pil_does(case: str, name: str) -> None:
    for got, wanted in zip(decode(name, RESAMPLED[case]), decode_by_pil(name, RESAMPLED[case]), strict=True):
        axes = (1, 2, 0) if name == "torchrgb8" else (0, 1, 2)
        got, wanted = (np.asarray(image).transpose(axes) for image in (got, wanted))
        assert explain_difference(got, wanted, CPU_BY_TORCH) is None


@pytest.mark.parametrize("options", [{}, {"image_dtype": "float16"}, {"image_dtype": "bfloat16"}], ids=str)
@pytest.mark.parametrize("normalize", [[], [IMAGENET]], ids=["plain", "normalised"])
@pytest.mark.parametrize("case", KEPT)
def test_without_resampling_values_are_those_of_pil(case: str, normalize: list[Any], options: dict[str, Any]) -> None:
    operations = [*KEPT[case], *normalize]
    for got, wanted in zip(
        decode("torchrgb", operations, **options), decode_by_pil("torchrgb", operations, **options), strict=True
    ):
        assert torch.equal(got, wanted)


def test_normalised_results_are_those_of_the_resampled_bytes() -> None:
    crop = [RandomResizedCrop(64), HorizontalFlip()]
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET.mean, IMAGENET.std))
    for got, pixels in zip(decode("torchrgb", [*crop, IMAGENET]), decode("torchrgb8", crop), strict=True):
        assert torch.equal(got, (pixels.float() / 255 - mean) / std)


def test_what_torch_does_not_resample_as_pil_does_is_left_to_dali() -> None:
    def finishes(name: str, *operations: Any) -> bool:
        return can_finish(ImageSpec(name, operations))  # type: ignore[arg-type]

    assert finishes("rgb")
    assert finishes("torchrgb8", RandomResizedCrop(64), HorizontalFlip())
    assert finishes("pilrgb", CenterCrop(64), Resize(32, "bicubic"))
    assert not finishes("torchrgb8", Resize(64, "nearest"))
    assert not finishes("torchrgb8", Resize(64, antialias=False))
    assert not finishes("torchrgb8", Resize(64), CenterCrop(32))
    assert not finishes("torchl8")
    assert not finishes("torchrgba")


@pytest.mark.parametrize("name", ["torchrgb8", "rgb8"])
def test_images_that_have_the_size_already_are_next_to_others(name: str) -> None:
    files = [FILES[0], encode(photograph("china", (64, 48)), "JPEG", quality=95), FILES[1]]
    operations = [Resize((48, 64))]
    for got, wanted in zip(decode(name, operations, files), decode_by_pil(name, operations, files), strict=True):
        assert np.abs(np.asarray(got).astype(int) - np.asarray(wanted).astype(int)).max() <= 2


@pytest.mark.parametrize("name", ["torchrgb8", "rgb8", "torchrgb"])
@pytest.mark.parametrize("case", KEPT)
def test_large_runs_give_the_same_without_memory_that_is_used_again(
    case: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [np.asarray(image).copy() for image in decode(name, KEPT[case])]
    monkeypatch.setattr(engine, "_MOST_BYTES", 1000)
    monkeypatch.setattr(engine, "_MOST_BYTES_OF_ONE", 1000)
    for got, image in zip(decode(name, KEPT[case]), wanted, strict=True):
        assert np.array_equal(np.asarray(got), image)


def test_the_number_of_threads_changes_nothing() -> None:
    images = [np.ascontiguousarray(photograph("china", (90, 70))) for _ in range(19)]
    spec = ImageSpec("torchrgb", (RandomResizedCrop(32), HorizontalFlip()))
    geometries = [draw_geometry(spec.geometric, 90, 70, seed) for seed in range(19)]
    windows = []
    for image, geometry in zip(images, geometries, strict=True):
        assert geometry is not None
        top, left, height, width = geometry.window
        windows.append(np.ascontiguousarray(image[top : top + height, left : left + width]))
    alone, together = (finish_images(windows, geometries, spec, threads) for threads in (1, 3))
    assert all(map(torch.equal, alone, together))


def test_results_of_one_size_are_consecutive_and_nothing_overwrites_what_is_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine, "RESULTS", ReusedBuffers())
    operations = [RandomResizedCrop(48)]
    batch = decode("torchrgb", operations)
    size = batch[0].numel() * 4
    assert [image.data_ptr() - batch[0].data_ptr() for image in batch] == [n * size for n in range(len(batch))]
    held = batch[2]
    copy, place = held.clone(), batch[0].untyped_storage().data_ptr()
    del batch
    others = [decode("torchrgb", operations, FILES[::-1]) for _ in range(6)]
    assert torch.equal(held, copy)
    assert all(other[0].untyped_storage().data_ptr() != place for other in others)
    del held, others
    gc.collect()
    again = [decode("torchrgb", operations) for _ in range(8)]
    assert place in {images[0].untyped_storage().data_ptr() for images in again}, "and it is used again"


def test_pixels_of_another_size_than_the_index_says_are_finished_too() -> None:
    """DALI's own reader decodes a file that was replaced by one of another size."""
    image = np.ascontiguousarray(photograph("china", (50, 40)))
    flipped = draw_geometry((HorizontalFlip(1.0),), 64, 64)
    (result,) = finish_images([image.copy()], [flipped], ImageSpec("rgb8", (HorizontalFlip(1.0),)), 1)
    assert np.array_equal(result, image[:, ::-1])
    resized = draw_geometry((Resize((8, 9)),), 64, 64)
    (small,) = finish_images([image.copy()], [resized], ImageSpec("rgb8", (Resize((8, 9)),)), 1)
    assert small.shape == (8, 9, 3)


def test_all_files_of_every_format_that_dali_decodes() -> None:
    names = ["jpeg-444", "jpeg-420", "png-rgb", "tiff-raw", "jpeg-exif-6", "jpeg-gray"]
    files = [sample_images()[name] for name in names]
    for upright in (False, True):
        got = decode("torchrgb8", [], files, apply_exif_orientation=upright)
        wanted = decode_by_pil("torchrgb8", [], files, apply_exif_orientation=upright)
        assert all(map(torch.equal, got, wanted))


def test_a_part_whose_turn_does_not_come_is_finished_by_the_thread_that_waits() -> None:
    release = threading.Event()
    blockers = [host_threads().submit(release.wait, 60) for _ in range(num_host_threads())]
    try:
        image = np.ascontiguousarray(photograph("china", (50, 40)))
        results = finish_images([image.copy() for _ in range(12)], [None] * 12, ImageSpec("torchrgb8"), 3)
    finally:
        release.set()
    assert all(blocker.result() for blocker in blockers)
    assert all(np.array_equal(result, image.transpose(2, 0, 1)) for result in results)


def test_memory_for_later_runs_is_given_back() -> None:
    decode("torchrgb", [RandomResizedCrop(64)])
    assert RESULTS._queues
    release_memory()
    assert not RESULTS._queues
