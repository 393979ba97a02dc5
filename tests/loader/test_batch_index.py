"""`current_batch_index` counts what was delivered: one definition for all hooks, the same wherever they run."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    CaptioningSample,
    DaliDecoder,
    SampleDecoder,
    SkipSample,
    TaskEncoder,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

STREAMS = 2
DECODERS: dict[str, Any] = {
    "pil": SampleDecoder(image_decode="torchrgb8"),
    "dali": DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu"),
}


class Telling(TaskEncoder[Any, Any, Any, Any]):
    """Its samples and batches carry (hook, current_batch_index, current_sample_index) of each hook they saw."""

    def __init__(self, decoder: Any) -> None:
        self.decoder = decoder
        self.chosen: list[int] = []
        """What the hooks that only select samples have read, in this process."""

    def told(self, hook: str) -> str:
        return f" {hook}:{self.current_batch_index}:{self.current_sample_index}"

    def tell(self, sample: Any, hook: str) -> Any:
        return CaptioningSample.derive_from(sample, image=sample.image, caption=sample.caption + self.told(hook))

    @stateless
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {"__restore_key__": (), "samples": [sample.caption for sample in samples], "told": self.told("batch")}

    @stateless
    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "told": batch["told"] + self.told("encode_batch")}


class Encoding(Telling):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return self.tell(sample, "encode")


class Splitting(Telling):
    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return self.tell(sample, "preencode")

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        return self.tell(sample, "postencode")


class Generating(Telling):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        for _ in range(int(sample.__key__.removeprefix("k")) % 4):
            yield self.tell(sample, "encode")


class Skipping(Encoding):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if int(sample.__key__.removeprefix("k")) % 5 == 1:
            raise SkipSample
        return self.tell(sample, "encode")

    @stateless
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        if int(samples[0].__key__.removeprefix("k")) % 3 == 0:
            raise SkipSample
        return super().batch(samples)


class Grouping(Encoding):
    def batch_group_criterion(self, sample: Any) -> Any:
        self.chosen.append(self.current_batch_index)
        return int(sample.__key__.removeprefix("k")) % 3, None


class Doubling(Encoding):
    @stateless
    def batch(self, samples: list[Any]) -> Any:
        for part in range(2):
            yield {"__restore_key__": (), "samples": [sample.caption for sample in samples], "told": "", "part": part}


class Packing(Splitting):
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        self.chosen.append(self.current_batch_index)
        ordered = sorted(samples, key=lambda sample: sample.__key__[-1] + sample.__key__)
        return [ordered[start : start + 3] for start in range(0, len(ordered), 3)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        caption = "+".join(sample.caption for sample in samples) + self.told("pack")
        return CaptioningSample.derive_from(samples[0], image=samples[0].image, caption=caption)


CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "samples": (Encoding, {"batch_size": None}),
    "batches": (Encoding, {"batch_size": 3}),
    "split": (Splitting, {"batch_size": 3}),
    "split, samples": (Splitting, {"batch_size": None}),
    "generator": (Generating, {"batch_size": 3}),
    "skipped samples and batches": (Skipping, {"batch_size": 2}),
    "groups": (Grouping, {"batch_size": 3}),
    "several batches of one list": (Doubling, {"batch_size": 3}),
    "packs": (Packing, {"batch_size": None, "packing_buffer_size": 7}),
    "batches of packs": (Packing, {"batch_size": 2, "packing_buffer_size": 7}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=48)


def make_loader(folder: Path, name: str, decoder: str, workers: int = 0, **options: Any) -> Any:
    encoder, arguments = CASES[name]
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=workers, num_streams=STREAMS, seed_offset=7, global_error_handler=quiet
    )
    dataset = get_train_dataset(
        folder, worker_config=config, task_encoder=encoder(DECODERS[decoder]), shuffle_buffer_size=10, **arguments
    )
    return get_savable_loader(dataset, start_method="fork", **options)


def view(element: Any) -> Any:
    return element if isinstance(element, dict) else {"samples": [element.caption], "told": "", "key": element.__key__}


def numbers(text: str, hook: str) -> list[int]:
    """Returns what the calls of a hook read as current_batch_index."""
    return [int(word.split(":")[1]) for part in text.split("+") for word in part.split() if word.startswith(hook + ":")]


def samples_of(text: str, hook: str) -> list[int]:
    """Returns what the calls of a hook read as current_sample_index."""
    return [int(word.split(":")[2]) for part in text.split("+") for word in part.split() if word.startswith(hook + ":")]


@pytest.mark.parametrize("name", CASES)
def test_what_hooks_read_does_not_depend_on_where_they_run(name: str, folder: Path) -> None:
    with make_loader(folder, name, "pil") as loader:
        expected = [view(element) for element in islice(loader, 24)]
    for decoder, workers, options in (
        ("dali", 0, {}),
        ("pil", 2, {}),
        ("dali", 1, {}),
        ("dali", 2, {"prefetch_factor": 4}),
    ):
        with make_loader(folder, name, decoder, workers, **options) as loader:
            assert [view(element) for element in islice(loader, 24)] == expected, f"{decoder}, {workers} workers"


def test_nor_on_a_decode_process(folder: Path) -> None:
    with make_loader(folder, "batches of packs", "pil") as loader:
        expected = list(islice(loader, 6))
    with make_loader(folder, "batches of packs", "dali", decode_process=True) as loader:
        assert list(islice(loader, 6)) == expected


@pytest.mark.parametrize("name", CASES)
def test_hooks_read_how_many_batches_came_before(name: str, folder: Path) -> None:
    with make_loader(folder, name, "dali") as loader:
        elements = [view(element) for element in islice(loader, 24)]
    # The streams take turns, so batch number k of the job is the k-th one delivered.
    for number, element in enumerate(elements):
        for hook in ("batch", "encode_batch"):
            assert set(numbers(element["told"], hook)) <= {number}
        told = "+".join(element["samples"])
        for hook in ("postencode", "pack"):
            assert set(numbers(told, hook)) <= {number}
        if name in ("samples", "batches", "skipped samples and batches"):
            assert set(numbers(told, "encode")) == {number}
        if name in ("split", "split, samples"):  # nothing is dropped: each sample sees its own batch
            assert set(numbers(told, "preencode")) == {number}
        if name == "groups":  # each sample waits for others: it sees the batch that it would be in without groups
            size = CASES[name][1]["batch_size"]
            for own, stream in (divmod(sample, STREAMS) for sample in samples_of(told, "encode")):
                assert own // size * STREAMS + stream in numbers(told, "encode")
        else:
            assert max(numbers(told, "encode"), default=0) <= number  # read when it was requested


@pytest.mark.parametrize("name", ["groups", "packs", "batches of packs"])
def test_hooks_that_choose_read_it_too(name: str, folder: Path) -> None:
    encoder, arguments = CASES[name]
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=STREAMS)
    telling = encoder(DECODERS["pil"])
    dataset = get_train_dataset(folder, worker_config=config, task_encoder=telling, **arguments)
    for number, _ in enumerate(islice(dataset, 24)):
        assert telling.chosen == sorted(telling.chosen)
        assert set(telling.chosen[-1:]) <= set(range(number + 1))
    assert len(set(telling.chosen)) > 5


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", CASES)
def test_a_restore_goes_on_counting(name: str, decoder: str, folder: Path) -> None:
    loader = make_loader(folder, name, decoder)
    states, elements = [], []
    for element in islice(iter(loader), 14):
        elements.append(view(element))
        states.append(json.loads(json.dumps(loader.save_state_rank())))
    loader.close()
    other = "pil" if decoder == "dali" else "dali"
    for place in (0, 3, 8):
        with make_loader(folder, name, other) as restored:
            restored.restore_state_rank(states[place])
            found = [view(element) for element in islice(restored, 13 - place)]
            assert found == elements[place + 1 :]


RESTORABLE = [name for name in CASES if name != "generator"]


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("name", CASES)
def test_a_sample_that_is_made_again_is_what_it_was(name: str, decoder: str, folder: Path) -> None:
    with make_loader(folder, name, decoder) as loader:
        for element in islice(loader, 12):
            key = element["__restore_key__"] if isinstance(element, dict) else element.__restore_key__
            again = view(loader.restore_sample(json.loads(json.dumps(key))))
            if name in RESTORABLE:
                assert again == view(element)
            else:  # samples that an earlier batch requested, and that waited for this one
                assert again["told"] == view(element)["told"]
