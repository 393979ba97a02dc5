"""A state belongs to the plan and the hooks: it continues with another decoder, reader, or process."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    BlendDataset,
    CaptioningSample,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    SkipSample,
    StateError,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from tests.loader.dataset_folder import captioning_dataset
from tests.part import sampled
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

DECODERS: dict[str, Any] = {
    "pil": SampleDecoder(image_decode="torchrgb8"),
    "dali": DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu"),
    "none": None,
}
STREAMS = 4


class Encoding(DefaultTaskEncoder[Any, Any, Any, Any]):
    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    @stateless
    def encode_sample(self, sample: CaptioningSample) -> Any:
        number = int(sample.__key__.removeprefix("k"))
        if number % 11 == 3:
            raise SkipSample
        yield sample
        if number % 7 == 0:
            yield sample

    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return [sample.__key__ for sample in samples]


class Grouping(Encoding):
    def batch_group_criterion(self, sample: Any) -> tuple[int, None]:
        return int(sample.__key__.removeprefix("k")) % 3, None


class Packing(TaskEncoder[Any, Any, Any, Any]):
    def __init__(self, decoder: Any) -> None:
        super().__init__()
        self.decoder = decoder

    @stateless
    def preencode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        if int(sample.__key__.removeprefix("k")) % 11 == 3:
            raise SkipSample
        return sample

    def select_samples_to_pack(self, samples: list[CaptioningSample]) -> list[list[CaptioningSample]]:
        ordered = sorted(samples, key=lambda sample: sample.__key__[-1] + sample.__key__)
        return [ordered[start : start + 3] for start in range(0, len(ordered), 3)]

    @stateless
    def postencode_sample(self, sample: CaptioningSample) -> CaptioningSample:
        assert self.decoder is None or isinstance(sample.image, torch.Tensor)
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[CaptioningSample]) -> list[str]:
        return [sample.__key__ for sample in samples]

    @stateless
    def batch(self, packs: list[list[str]]) -> list[list[str]]:
        return packs


def job(num_workers: int) -> WorkerConfig:
    return WorkerConfig(
        rank=0, world_size=1, num_workers=num_workers, num_streams=STREAMS, seed_offset=7, global_error_handler=quiet
    )


def train(folder: Path, encoder: Any, workers: int = 0, **options: Any) -> Any:
    kwargs = {"batch_size": 3, "shuffle_buffer_size": 50, "max_samples_per_sequence": 10, **options}
    return get_train_dataset(folder, worker_config=job(workers), task_encoder=encoder, **kwargs)


Build = Callable[[Path, Any, int], Any]

COMPOSITIONS: dict[str, Build] = {
    "batches": lambda folder, decoder, workers: train(folder, Encoding(decoder), workers),
    "groups": lambda folder, decoder, workers: train(folder, Grouping(decoder), workers),
    "packs": lambda folder, decoder, workers: train(folder, Packing(decoder), workers, packing_buffer_size=7),
    "virtual epochs": lambda folder, decoder, workers: train(
        folder, Encoding(decoder), workers, virtual_epoch_length=3
    ),
    "validation": lambda folder, decoder, workers: get_val_dataset(
        folder, split_part="train", worker_config=job(workers), batch_size=3, limit=7, task_encoder=Encoding(decoder)
    ),
    "a blend": lambda folder, decoder, workers: BlendDataset(
        (train(folder, Encoding(decoder), workers), 1), (train(folder, Grouping(decoder), workers), 2)
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=60)


def take(loader: Any, count: int) -> list[Any]:
    """Returns the next batches, over several epochs."""
    found: list[Any] = []
    while len(found) < count:
        before = len(found)
        found += islice(loader, count - before)
        assert len(found) > before, "an epoch was empty"
    return found


def saved(build: Build, folder: Path, decoder: Any, places: tuple[int, ...], count: int) -> tuple[list[Any], list[Any]]:
    """Returns (states at some positions, after a round trip through JSON; all batches)."""
    with get_savable_loader(build(folder, decoder, 0)) as loader:
        states, batches = [], []
        for place in range(count):
            if place in places:
                states.append(json.loads(json.dumps(loader.save_state_rank())))
            batches += take(loader, 1)
    return states, batches


@pytest.mark.parametrize(("name", "saver"), sampled(product(COMPOSITIONS, DECODERS), 2))
def test_a_state_continues_under_every_decoder(name: str, saver: str, folder: Path) -> None:
    build = COMPOSITIONS[name]
    places = (0, 1, 10)
    states, batches = saved(build, folder, DECODERS[saver], places, 24)
    for other, decoder in DECODERS.items():
        for place, state in zip(places, states, strict=True):
            with get_savable_loader(build(folder, decoder, 0)) as loader:
                loader.restore_state_rank(state)
                assert json.loads(json.dumps(loader.save_state_rank())) == state
                assert take(loader, 24 - place) == batches[place:], f"with the decoder {other} from {place}"


@pytest.mark.parametrize("saver", ["pil", "dali"])
@pytest.mark.parametrize("name", ["packs", "a blend"])
def test_a_state_continues_in_the_workers_of_another_decoder(name: str, saver: str, folder: Path) -> None:
    build = COMPOSITIONS[name]
    (state,), batches = saved(build, folder, DECODERS[saver], (7,), 20)
    other = "dali" if saver == "pil" else "pil"
    with get_savable_loader(build(folder, DECODERS[other], 2), start_method="fork") as loader:
        loader.restore_state_rank(state)
        assert take(loader, 6) == batches[7:13]
        state = json.loads(json.dumps(loader.save_state_rank()))
    with get_savable_loader(build(folder, DECODERS[saver], 0)) as loader:
        loader.restore_state_rank(state)
        assert take(loader, 7) == batches[13:]


def test_a_state_continues_in_a_decode_process(folder: Path) -> None:
    build = COMPOSITIONS["packs"]
    (state,), batches = saved(build, folder, DECODERS["pil"], (5,), 14)
    with get_savable_loader(build(folder, DECODERS["dali"], 0), decode_process=True, start_method="fork") as loader:
        loader.restore_state_rank(state)
        assert take(loader, 4) == batches[5:9]
        state = json.loads(json.dumps(loader.save_state_rank()))
    with get_savable_loader(build(folder, DECODERS["pil"], 0)) as loader:
        loader.restore_state_rank(state)
        assert take(loader, 5) == batches[9:]


def packed(config: Any) -> str:
    return base64.b85encode(zlib.compress(json.dumps(config, sort_keys=True).encode())).decode()


class OnDali(Encoding):
    """The same hooks with another decoder, in a separate class."""


class OtherHook(Encoding):
    @stateless
    def batch(self, samples: list[Any]) -> Any:
        return [sample.__key__ for sample in reversed(samples)]


def test_a_state_knows_the_hooks_and_not_the_class_that_inherits_them(folder: Path) -> None:
    build = COMPOSITIONS["batches"]
    (state,), batches = saved(build, folder, DECODERS["pil"], (3,), 8)
    with get_savable_loader(train(folder, OnDali(DECODERS["dali"]))) as loader:
        loader.restore_state_rank(state)
        assert take(loader, 5) == batches[3:]
    with (
        get_savable_loader(train(folder, OtherHook(DECODERS["pil"]))) as loader,
        pytest.raises(StateError, match=r"Encoding\.batch', is 'OtherHook\.batch'"),
    ):
        loader.restore_state_rank(state)


def states_of_packs(folder: Path, decoder: str, workers: int = 0, **options: Any) -> list[Any]:
    dataset = train(folder, Packing(DECODERS[decoder]), workers, packing_buffer_size=20, batch_size=None)
    states = []
    with get_savable_loader(dataset, start_method="fork", **options) as loader:
        for _ in islice(loader, 40):
            states.append(json.loads(json.dumps(loader.save_state_rank())))
    return states


def test_the_state_after_each_pack_is_the_same_wherever_the_packs_are_made(folder: Path) -> None:
    expected = states_of_packs(folder, "pil")
    assert any(stream["state"]["inner"]["packs"] for stream in expected[-1]["streams"].values())
    assert states_of_packs(folder, "pil", 2) == expected
    assert states_of_packs(folder, "dali", 1) == expected
    assert states_of_packs(folder, "dali", decode_process=True) == expected
