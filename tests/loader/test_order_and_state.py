"""There is one order of samples, and a state continues it: for every decoder, worker count and interruption."""

from __future__ import annotations

import io
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    CaptioningSample,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    SkipSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.decode import RandomResizedCrop
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

OPERATIONS = (RandomResizedCrop(24),)
WINDOW = 100_000
BATCH = 5


class PilEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = SampleDecoder(image_decode="torchrgb8", operations=OPERATIONS)

    def encode_sample(self, sample: CaptioningSample) -> Any:
        number = int(sample.__key__.removeprefix("k"))
        if number % 11 == 3:
            raise SkipSample
        if number % 13 == 5:
            raise ValueError("a hook that fails now and then")
        yield sample
        if number % 7 == 0:
            yield CaptioningSample.derive_from(sample, image=sample.image, caption="again: " + sample.caption)


class DaliEncoder(PilEncoder):
    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu")


class RawEncoder(PilEncoder):
    decoder = None


class SplitEncoder(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Preencode in the workers, packing on handles, postencode on pixels."""

    decoder = DaliDecoder(image_decode="torchrgb8", operations=OPERATIONS, image_decode_device="cpu")

    @stateless
    def preencode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        if int(sample.__key__.removeprefix("k")) % 11 == 3:
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[CaptioningSample]) -> list[list[CaptioningSample]]:
        assert not isinstance(samples[0].image, torch.Tensor)
        ordered = sorted(samples, key=lambda sample: sample.caption)
        return [ordered[start : start + 3] for start in range(0, len(ordered), 3)]

    @stateless
    def postencode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        assert sample.image.dtype == torch.uint8
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[CaptioningSample]) -> CaptioningSample:
        return CaptioningSample.derive_from(
            samples[0],
            image=torch.stack([sample.image for sample in samples]).sum(0),
            caption="|".join(s.caption for s in samples),
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=60)


def make_loader(folder: Path, encoder: type[Any], num_workers: int, streams: int = 4, **kwargs: Any) -> Any:
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=num_workers, num_streams=streams, seed_offset=7, global_error_handler=quiet
    )
    options = {"batch_size": BATCH, "shuffle_buffer_size": WINDOW, "max_samples_per_sequence": 10, **kwargs}
    return get_savable_loader(get_train_dataset(folder, worker_config=config, task_encoder=encoder(), **options))


def take(loader: Any, count: int) -> list[tuple[list[str], list[str], int]]:
    """Returns (keys, captions, sum of pixels) of the next batches."""
    return [view(batch) for batch in islice(iter(loader), count)]


def view(batch: Any) -> tuple[list[str], list[str], int]:
    image = batch.image
    pixels = image.sum().item() if isinstance(image, torch.Tensor) else sum(map(len, image))
    return list(batch.__key__), list(batch.caption), int(pixels)


def test_the_order_is_the_same_for_all_decoders_and_workers(folder: Path) -> None:
    keys = {}
    # Workers that make tensors import torch first; one worker count is enough, as the DALI cases cover four.
    for encoder, workers in ((PilEncoder, (0, 2)), (DaliEncoder, (0, 1, 2, 4))):
        for num_workers in workers:
            loader = make_loader(folder, encoder, num_workers)
            keys[encoder.__name__, num_workers] = [batch[:2] for batch in take(loader, 30)]
            loader.close()
    expected = keys["PilEncoder", 0]
    assert len(expected) == 30
    assert all(order == expected for order in keys.values()), "the order depends on the decoder or on the workers"


@pytest.mark.parametrize("encoder", [PilEncoder, DaliEncoder, SplitEncoder])
def test_a_restore_after_every_batch_continues_exactly(folder: Path, encoder: type[Any]) -> None:
    options = {"packing_buffer_size": 12} if encoder is SplitEncoder else {}
    count = 14
    loader = make_loader(folder, encoder, 0, streams=2, **options)
    states, batches = [], []
    for batch in islice(iter(loader), count):
        batches.append(view(batch))
        states.append(loader.save_state_rank())
    loader.close()
    for place, state in enumerate(states):
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
        assert json.loads(json.dumps(state)) == state
        if encoder is not SplitEncoder:  # a packing buffer's keys are part of the state
            assert len(json.dumps(state)) < 8 * 1024
        restored = make_loader(folder, encoder, 0, streams=2, **options)
        restored.restore_state_rank(state)
        assert take(restored, count - place - 1) == batches[place + 1 :], f"after a restore after batch {place}"
        restored.close()


@pytest.mark.parametrize("encoder", [PilEncoder, DaliEncoder])
def test_a_state_moves_between_numbers_of_workers(folder: Path, encoder: type[Any]) -> None:
    loader = make_loader(folder, encoder, 2)
    take_first = take(loader, 7)
    state = loader.state_dict()
    rest = take(loader, 10)
    loader.close()
    assert take_first != rest
    for num_workers in (0, 1, 4) if encoder is DaliEncoder else (0,):
        restored = make_loader(folder, encoder, num_workers)
        restored.load_state_dict(json.loads(json.dumps(state)))
        assert take(restored, 10) == rest, f"restored with num_workers={num_workers}"
        restored.close()


def test_random_crops_are_a_function_of_the_sample_and_the_epoch(folder: Path) -> None:
    by_epoch: list[dict[str, torch.Tensor]] = []
    loader = make_loader(folder, PilEncoder, 0, streams=1, batch_size=None, repeat=True, shuffle_buffer_size=None)
    it = iter(loader)
    for _ in range(2):
        images: dict[str, torch.Tensor] = {}
        while len(images) < 49:  # 60 minus those that the hook drops
            sample = next(it)
            images.setdefault(sample.__key__, sample.image)
        by_epoch.append(images)
    same = [key for key in by_epoch[0] if torch.equal(by_epoch[0][key], by_epoch[1].get(key, torch.zeros(0)))]
    assert len(same) < 10, "two epochs crop alike"


def test_raw_bytes_come_without_a_decoder(folder: Path) -> None:
    loader = make_loader(folder, RawEncoder, 0, batch_size=None)
    sample = next(iter(loader))
    assert isinstance(sample.image, bytes)
    assert sample.image[:2] in (b"\xff\xd8", b"\x89P", b"RI")
    assert isinstance(sample.caption, bytes)


def test_every_delivered_batch_can_be_made_again(folder: Path) -> None:
    loader = make_loader(folder, SplitEncoder, 0, batch_size=None, packing_buffer_size=9)
    for pack in islice(iter(loader), 5):
        again = loader.restore_sample(pack.__restore_key__)
        assert again.caption == pack.caption
        assert torch.equal(again.image, pack.image)
