"""Steps of a job are the same samples on any number of ranks and workers, whatever fails, and after every restore."""

from __future__ import annotations

import itertools
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import energon_dali as ed
from energon_dali.cli.main import main
from energon_dali.errors import ConfigError, FatalSampleError, SkipSample, StateError
from energon_dali.host_cores import cores_per_rank
from energon_dali.loader.loader_state import merge_states, split_state
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.part import sampled

Steps = dict[int, list[str]]
"""By step, the sorted keys of its samples."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_blend(tmp_path_factory.mktemp("texts"))


def write_blend(root: Path) -> Path:
    """Writes a blend of two datasets of texts: 60 samples in 3 shards, and 25 in 2."""
    for name, count, shards in (("a", 60, 3), ("b", 25, 2)):
        samples = {f"{name}{number:03d}": {"txt": f"{name} {number}".encode()} for number in range(count)}
        prepare(write_shards(root / name, samples, shards), {"text": "txt"}, "TextSample")
    entries = [{"weight": 0.7, "path": "a"}, {"weight": 0.3, "path": "b"}]
    blend = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (root / "blend.yaml").write_text(json.dumps({**blend, "splits": {"train": {"blend": entries}}}))
    return root


class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Fails on some samples, and draws a random number for each."""

    def __init__(self, bad: frozenset[str] = frozenset(), skipped: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.bad, self.skipped = bad, skipped

    @ed.stateless(restore_seeds=True, failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in self.bad:
            raise ValueError("a bad sample")
        if sample.__key__ in self.skipped:
            raise SkipSample
        sample.text = f"{sample.__key__} {random.random():.6f} {self.current_batch_index}"
        return sample


@dataclass
class Job:
    """A job of several ranks, which run one after the other in this process."""

    path: Path
    world_size: int
    global_batch_size: int
    batch_size: int
    num_workers: int = 0
    encoder: Any = None
    options: Any = None

    def loader(self, rank: int) -> Any:
        dataset = ed.get_train_dataset(
            self.path,
            worker_config=ed.WorkerConfig(rank=rank, world_size=self.world_size, num_workers=self.num_workers),
            batch_size=self.batch_size,
            global_batch_size=self.global_batch_size,
            shuffle_buffer_size=20,
            max_samples_per_sequence=10,
            task_encoder=self.encoder or self.default_encoder(),
            **(self.options or {}),
        )
        return ed.get_savable_loader(dataset)

    def default_encoder(self) -> Any:
        return Encoder()

    def texts_of(self, batch: Any) -> list[str]:
        """Returns a text for each unit of a batch, which ends with the number of its step."""
        texts: list[str] = batch.text
        return texts

    def run(self, micro_batches: int, states: list[Any] | None = None) -> tuple[Steps, list[Any]]:
        """Returns (the samples of each step, the state of each rank) after some micro-batches of each rank."""
        steps: dict[int, list[str]] = defaultdict(list)
        saved = []
        for rank in range(self.world_size):
            with self.loader(rank) as loader:
                if states is not None:
                    loader.restore_state_rank(states[rank % len(states)])
                for batch in take(loader, micro_batches):
                    texts = self.texts_of(batch) if batch.num_units else []
                    assert all(int(text.split()[-1]) == batch.step for text in texts)
                    steps[batch.step] += texts
                saved.append(loader.save_state_rank())
        return {number: sorted(texts) for number, texts in steps.items()}, saved


def take(loader: Any, count: int) -> Iterator[Any]:
    batches = iter(loader)
    for _ in range(count):
        yield next(batches)


REFERENCE = 12
"""Steps of the job that others are compared with."""


@pytest.fixture(scope="module")
def reference(folder: Path) -> Steps:
    """The steps of a job of one rank without workers: 12 steps of 24 samples."""
    return Job(folder / "blend.yaml", 1, 24, 24).run(REFERENCE)[0]


@pytest.mark.parametrize(
    ("world_size", "batch_size", "num_workers"),
    [
        (1, 4, 0),
        (2, 12, 0),
        (3, 4, 0),
        (4, 3, 0),
        pytest.param(2, 3, 1, marks=pytest.mark.sweep),
        (1, 4, 3),
    ],
)
def test_steps_do_not_depend_on_the_layout(
    folder: Path, reference: Steps, world_size: int, batch_size: int, num_workers: int
) -> None:
    job = Job(folder / "blend.yaml", world_size, 24, batch_size, num_workers)
    steps, _ = job.run(4 * 24 // world_size // batch_size)
    assert steps == {number: reference[number] for number in range(4)}


def test_a_step_holds_as_many_samples_as_asked_for(reference: Steps) -> None:
    assert [len(reference[number]) for number in range(REFERENCE)] == [24] * REFERENCE
    assert {text[0] for texts in reference.values() for text in texts} == {"a", "b"}


@pytest.mark.parametrize("seed", sampled(range(12), 3))
def test_random_jobs_continue_on_other_layouts(folder: Path, reference: Steps, seed: int) -> None:
    draw = random.Random(seed)
    first, second = (
        Job(
            folder / "blend.yaml",
            world_size,
            24,
            draw.choice([n for n in (1, 2, 3, 4, 6) if 24 // world_size % n == 0]),
        )
        for world_size in (draw.choice([1, 2, 3, 4, 6, 8, 12]) for _ in range(2))
    )
    per_step = [24 // job.world_size // job.batch_size for job in (first, second)]
    done = draw.randrange(1, 4 * per_step[0])
    before, states = first.run(done)
    after, _ = second.run(2 * per_step[1], states[:1])
    whole = done // per_step[0]
    begins = whole if (first.world_size, first.batch_size) != (second.world_size, second.batch_size) else None
    for number in range(whole):
        assert before[number] == reference[number]
    if begins is not None:  # the step that was begun begins again
        assert after == {number: reference[number] for number in (begins, begins + 1)}
    else:
        together = sorted(before.get(whole, []) + after[whole])
        assert together == reference[whole]


def test_another_batch_size_continues_at_the_next_unit(folder: Path, reference: Steps) -> None:
    """A ramp of the batch size: 24, then 36 samples per step."""
    _, states = Job(folder / "blend.yaml", 2, 24, 6).run(4)
    after, _ = Job(folder / "blend.yaml", 3, 36, 6).run(4, states[:1])
    samples = sorted(text.rsplit(" ", 1)[0] for number in (2, 3) for text in after[number])
    assert samples == sorted(text.rsplit(" ", 1)[0] for number in (2, 3, 4) for text in reference[number])


def test_a_missing_sample_moves_no_other(folder: Path, reference: Steps) -> None:
    bad, skipped = frozenset({"a003", "a017", "b011"}), frozenset({"a042", "b002"})
    lost = {}
    for world_size, batch_size, workers in ((1, 24, 0), (2, 3, 0), (4, 6, 0), (2, 4, 2)):
        job = Job(folder / "blend.yaml", world_size, 24, batch_size, workers, Encoder(bad, skipped))
        steps, _ = job.run(3 * 24 // world_size // batch_size)
        for number in range(3):
            good = [text for text in reference[number] if text.split()[0] not in bad | skipped]
            assert set(good) <= set(steps[number])
            assert len(steps[number]) == 24
        lost[world_size, batch_size] = steps
    assert len({json.dumps(steps) for steps in lost.values()}) == 1
    assert any(set(lost[1, 24][number]) - set(reference[number]) for number in range(3))


def test_places_stay_empty_with_shrink(folder: Path, reference: Steps) -> None:
    bad = frozenset({"a003", "a017", "b011"})
    job = Job(folder / "blend.yaml", 2, 24, 3, encoder=Encoder(bad), options={"on_missing": "shrink"})
    steps, _ = job.run(12)
    assert steps == {number: [text for text in reference[number] if text.split()[0] not in bad] for number in range(3)}


def test_an_empty_micro_batch_is_filled_and_counts_nothing(folder: Path) -> None:
    """All samples but one fail: every rank still delivers its micro-batches."""
    bad = frozenset({f"a{n:03d}" for n in range(1, 60)} | {f"b{n:03d}" for n in range(1, 25)})
    job = Job(folder / "blend.yaml", 2, 8, 2, encoder=Encoder(bad), options={"on_missing": "shrink"})
    with pytest.raises(FatalSampleError, match="has no sample"):
        job.run(40)
    bad = frozenset({f"a{n:03d}" for n in range(8, 60)} | {f"b{n:03d}" for n in range(8, 25)})
    for rank in range(2):
        job.encoder = Encoder(bad)
        with job.loader(rank) as loader:
            batches = list(take(loader, 40))
            assert {len(batch.text) for batch in batches if not batch.num_units} == {1}
            assert any(batch.num_units == 0 for batch in batches)
            assert [(batch.step, batch.micro_batch) for batch in batches] == [divmod(n, 2) for n in range(40)]
            assert [batch.is_last_of_step for batch in batches] == [n % 2 == 1 for n in range(40)]


def test_sizes_that_do_not_fit_are_explained(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"not a multiple of world_size x batch_size = 3 x 4 = 12: give 12 or 24"):
        Job(folder / "a", 3, 20, 4).loader(0)
    steps, _ = Job(folder / "a", 3, 20, 4, options={"uneven": "round_down"}).run(2)
    assert [len(texts) for texts in steps.values()] == [12, 12]
    ragged = Job(folder / "a", 3, 20, 4, options={"uneven": "ragged"})
    steps, _ = ragged.run(4)
    assert [len(texts) for texts in steps.values()] == [20, 20]
    with ragged.loader(2) as loader:
        assert [batch.num_units for batch in take(loader, 4)] == [3, 3, 3, 3]


def test_epochs_end_with_a_smaller_step(folder: Path) -> None:
    options = {"repeat": False}
    for world_size, batch_size in ((1, 8), (2, 4), (4, 1), (5, 2)):
        whole = defaultdict(list)
        counts = set()
        for rank in range(world_size):
            job = Job(folder / "a", world_size, 40, batch_size, options={**options, "uneven": "ragged"})
            with job.loader(rank) as loader:
                for epoch in range(2):
                    batches = list(loader)
                    counts.add((epoch, len(batches)))
                    for batch in batches:
                        if batch.num_units:
                            whole[batch.step] += [text.split()[0] for text in batch.text]
        assert len(counts) == 2
        assert {number: len(keys) for number, keys in whole.items()} == {0: 40, 1: 20, 2: 40, 3: 20}
        for first in (0, 2):
            assert sorted(whole[first] + whole[first + 1]) == [f"a{n:03d}" for n in range(60)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 7])
def test_a_validation_takes_each_sample_once_on_any_number_of_ranks(folder: Path, world_size: int) -> None:
    keys, counts = [], set()
    for rank in range(world_size):
        dataset = ed.get_val_dataset(
            folder / "b",
            worker_config=ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=0),
            batch_size=2,
            global_batch_size=14,
            task_encoder=Encoder(),
        )
        with ed.get_savable_loader(dataset) as loader:
            batches = list(loader)
        counts.add(len(batches))
        keys += [text.split()[0] for batch in batches if batch.num_units for text in batch.text]
    assert len(counts) == 1
    assert sorted(keys) == [f"b{n:03d}" for n in range(25)]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_limited_validation_begins_again_after_a_restore(folder: Path, workers: int) -> None:
    def validation() -> Any:
        dataset = ed.get_val_dataset(
            folder / "a",
            split_part="train",
            worker_config=ed.WorkerConfig(rank=1, world_size=2, num_workers=workers),
            batch_size=4,
            global_batch_size=16,
            limit=3,
            task_encoder=Encoder(),
        )
        return ed.get_savable_loader(dataset)

    def batches_of(loader: Any) -> list[Any]:
        return [(batch.step, batch.micro_batch, batch.text) for batch in loader]

    with validation() as loader:
        whole = batches_of(loader)
        assert [(step, number) for step, number, _ in whole] == [divmod(n, 2) for n in range(6)]
        assert batches_of(loader) == whole
    for delivered in (1, 2, 5, 6):
        with validation() as loader:
            list(take(loader, delivered))
            state = loader.save_state_rank()
        with validation() as loader:
            loader.restore_state_rank(state)
            assert [batches_of(loader) for _ in range(3)] == [whole[delivered:], whole, whole]
            list(take(loader, 1))
            loader.change_workers(1)
            assert [batches_of(loader) for _ in range(2)] == [whole[1:], whole]


UNCHANGED: dict[str, Any] = {
    "weights": [],
    "weights_over": "steps",
    "packs": 0,
    "base": {"step": 0, "unit": 0, "drawn_from": 0, "counts": []},
}
"""What a state says of weights that nobody changed."""
BASE: dict[str, Any] = {"step": 2, "unit": 48, "drawn_from": 48, "counts": [24, 24]}


def test_a_state_is_small_and_the_same_on_all_ranks(folder: Path) -> None:
    _, states = Job(folder / "blend.yaml", 4, 24, 3).run(5)
    cursors = [state["cursor"] for state in states]
    assert cursors == [{"unit": 48, "step": 2, "micro_batch": 1, "skipped": [], **UNCHANGED}] * 4
    assert len(json.dumps(states[0])) < 2048
    streams = ed.get_savable_loader(ed.get_train_dataset(folder / "a", batch_size=4))
    with pytest.raises(StateError, match="global"):
        streams.restore_state_rank(states[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": None}, "needs batch_size"),
        ({"packing_buffer_size": 10}, r"packing_buffer_size.*packs=PlannedPacks"),
        ({"blend_by": len}, r"blend_by=<built-in function len>.*energon-dali measure"),
        ({"blend_by": "tokens"}, "blend_by"),
        ({"uneven": "down"}, "uneven='down' is unknown"),
        ({"on_missing": "drop"}, "on_missing='drop' is unknown"),
        ({"global_batch_size": None, "uneven": "ragged"}, "uneven='ragged' says how .* and there are none"),
        ({"global_batch_size": None, "on_missing": "shrink"}, "on_missing='shrink' says how .* Give global_batch_size"),
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": 1 << 25}, "a step has at most 16,777,216 samples"),
        (
            {"global_batch_size": 64, "repeat": False, "batch_drop_last": True},
            "with fewer than 64 .* whole epoch has 60",
        ),
        ({"worker_config": ed.WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=4)}, "num_streams=4"),
        (
            {"worker_config": ed.WorkerConfig(rank=0, world_size=1, num_workers="auto", num_streams=4)},
            "num_streams=4",
        ),
    ],
)
def test_what_decides_at_run_time_is_refused(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ed.get_train_dataset(folder / "a", **{"batch_size": 4, "global_batch_size": 8, **options})


class Grouping(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    def batch_group_criterion(self, sample: Any) -> Any:
        return len(sample.text), 4


class Several(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_sample(self, sample: Any) -> Any:
        yield sample


class Cooking(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    def cook_crude_sample(self, sample: Any, **stores: Any) -> Any:
        yield sample


class BatchesBatches(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    def encode_batch(self, batch: Any) -> Any:
        yield batch


class Building(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Puts a dataset that drops samples below the batches, as encoders of Energon may."""

    def build_encode_sample(self, dataset: Any, *, worker_config: Any) -> Any:
        encoded = super().build_encode_sample(dataset, worker_config=worker_config)
        return ed.FilterDataset(encoded, filter_fn=lambda sample: True)

    def build_batch(self, dataset: Any, **options: Any) -> Any:
        return ed.BatchDataset(dataset, 4, list)


class Native(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = ed.DaliDecoder(feed="native")


@pytest.mark.parametrize(
    ("encoder", "what", "instead"),
    [
        (Grouping, "batch_group_criterion", "make each kind a dataset of its own"),
        (Several, "a generator function as encode_sample", "Let encode_sample return one sample"),
        (Cooking, "a generator function as cook_crude_sample", "Let cook_crude_sample return one sample"),
        (BatchesBatches, "a generator function as encode_batch", "Let encode_batch return one batch"),
        (Building, "build_encode_sample and build_batch of Building", "SkipSample takes the place of a FilterDataset"),
        (Native, 'feed="native"', 'Use feed="block"'),
    ],
)
def test_encoders_that_decide_at_run_time_are_refused(folder: Path, encoder: Any, what: str, instead: str) -> None:
    for get_dataset in (ed.get_train_dataset, ed.get_val_dataset):
        with pytest.raises(ConfigError, match=f"cannot be combined with {what}.*{instead}, or leave global_batch_size"):
            get_dataset(folder / "a", split_part="train", batch_size=4, global_batch_size=8, task_encoder=encoder())


def test_cookers_that_make_several_samples_are_refused(tmp_path: Path) -> None:
    write_shards(tmp_path / "crude", {f"{number:03d}": {"txt": b"x"} for number in range(8)}, 1)
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--num-workers", "1", "--sample-type", "CrudeWebdataset"]
    assert CliRunner().invoke(main, ["prepare", str(tmp_path / "crude"), *options]).exit_code == 0

    def cook_twice(sample: Any) -> Any:
        yield sample
        yield sample

    encoder = Encoder()
    encoder.cookers = [ed.Cooker(cook_twice)]
    with pytest.raises(ConfigError, match=r"cooker .*cook_twice, a generator function.*Let it return one sample"):
        ed.get_train_dataset(tmp_path / "crude", batch_size=4, global_batch_size=8, task_encoder=encoder)


def steps_of(loader: Any, micro_batches: int) -> Steps:
    steps: dict[int, list[str]] = defaultdict(list)
    for batch in take(loader, micro_batches):
        steps[batch.step] += batch.text
    return {number: sorted(texts) for number, texts in steps.items()}


def test_other_workers_change_no_batch(folder: Path, reference: Steps) -> None:
    with Job(folder / "blend.yaml", 1, 24, 4).loader(0) as loader:
        found = steps_of(loader, 6)
        for number, workers in enumerate((2, 0, 3), start=1):
            loader.change_workers(workers)
            found |= steps_of(loader, 6)
            assert loader.save_state_rank()["cursor"]["step"] == number + 1
    assert found == {number: reference[number] for number in range(4)}


def test_a_running_job_is_resized_between_steps(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 4, 24, 3)
    with job.loader(0) as first, job.loader(1) as second:
        for loader in (first, second):
            list(take(loader, 3))
        with pytest.raises(StateError, match="within step 1, of which 1"):
            first.resize(0, 2)
        for rank, loader in enumerate((first, second)):
            next(loader)
            loader.resize(rank, 2)
        found = [steps_of(loader, 8) for loader in (first, second)]
        assert {n: sorted(found[0][n] + found[1][n]) for n in found[0]} == {n: reference[n] for n in (2, 3)}
        with pytest.raises(ConfigError, match="not a multiple of world_size x batch_size = 5 x 3"):
            first.resize(0, 5)
        assert steps_of(first, 1).keys() == {4}
    streams = ed.get_savable_loader(ed.get_train_dataset(folder / "a", batch_size=4))
    with pytest.raises(ConfigError, match="global_batch_size"):
        streams.resize(0, 2)


def test_steps_are_left_out_without_moving_others(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 6)
    loaders = [job.loader(rank) for rank in range(2)]
    found: dict[int, list[str]] = defaultdict(list)
    states = []
    for loader in loaders:
        with loader:
            for number, texts in steps_of(loader, 3).items():  # one and a half steps
                found[number] += texts
            loader.skip_steps(2, 4)
            loader.skip_steps(6, 7)
            states.append(loader.save_state_rank())
            assert states[-1]["cursor"]["skipped"] == [[2, 4], [6, 7]]
            for number, texts in steps_of(loader, 5).items():
                found[number] += texts
    assert {n: sorted(texts) for n, texts in found.items()} == {n: reference[n] for n in (0, 1, 4, 5)}
    after, saved = Job(folder / "blend.yaml", 3, 24, 4).run(10, states[:1])  # the begun step begins again
    assert after == {n: reference[n] for n in (1, 4, 5, 7, 8)}
    assert saved[0]["cursor"] == {"unit": 9 * 24, "step": 9, "micro_batch": 0, "skipped": [], **UNCHANGED}


RESTORING: dict[str, Callable[[Any, Any], object]] = {
    "restore_state_rank": lambda loader, state: loader.restore_state_rank(state),
    "restore_state_global": lambda loader, state: loader.restore_state_global(state),
    "restore_state_global of a list": lambda loader, state: loader.restore_state_global([state]),
    "restore_state": lambda loader, state: loader.restore_state(state),
    "load_state_dict": lambda loader, state: loader.load_state_dict(state),
    "the iterator": lambda loader, state: iter(loader).restore_state_rank(state),
    "the iterator's load_state_dict": lambda loader, state: iter(loader).load_state_dict(state),
}


@pytest.mark.filterwarnings("ignore:restore_state is deprecated")
@pytest.mark.parametrize("way", RESTORING)
def test_what_is_asked_before_a_restore_holds_after_it(folder: Path, reference: Steps, way: str) -> None:
    _, (state,) = Job(folder / "blend.yaml", 1, 24, 12).run(5)
    with Job(folder / "blend.yaml", 1, 24, 12).loader(0) as loader:
        loader.skip_steps(0, 1)
        loader.skip_steps(3, 5)
        loader.set_weights([0.0, 1.0], from_step=6)
        for _ in range(2):  # twice changes nothing
            RESTORING[way](loader, state)
        cursor = loader.save_state_rank()["cursor"]
        assert cursor["skipped"] == [[3, 5]]
        assert cursor["weights"] == [[6, [0.0, 1.0]]]
        found = steps_of(loader, 7)
    assert found.keys() == {2, 5, 6, 7}
    assert found[5] == reference[5]
    assert share_of_a({6: found[6], 7: found[7]}) == {6: 0, 7: 0}


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_it_does_not_matter_whether_a_state_is_restored_before_or_after_what_is_asked(
    folder: Path, workers: int
) -> None:
    _, states = Job(folder / "blend.yaml", 2, 24, 4, encoder=Encoder(skipped=frozenset({"a001", "a007"}))).run(4)

    def ask(loader: Any) -> None:
        loader.set_weights([0.1, 0.9], from_step=4)
        loader.skip_steps(1, 3)  # the step that was begun is left out as well
        loader.set_weights([0.9, 0.1], from_step=5, until_step=7)

    found = []
    for order in ("restore first", "ask first"):
        with Job(folder / "blend.yaml", 2, 24, 4, workers).loader(1) as loader:
            if order == "ask first":
                ask(loader)
            loader.restore_state_rank(states[1])
            if order == "restore first":
                ask(loader)
            saved = json.loads(json.dumps(loader.save_state_rank()))
            found.append((saved, steps_of(loader, 6), loader.save_state_rank()))
    assert found[0] == found[1]
    assert found[0][1].keys() == {3, 4}


def test_weights_that_a_restored_job_has_set_already_may_be_set_again(folder: Path) -> None:
    """A script that sets its phases and then restores, if there is a state, does the same every time it starts."""
    job = Job(folder / "blend.yaml", 1, 24, 12)

    def begin(state: Any = None) -> Any:
        loader = job.loader(0)
        loader.set_weights([1.0, 0.0], from_step=0)
        loader.set_weights([0.0, 1.0], from_step=2)
        loader.set_weights([0.5, 0.5], from_step=4, until_step=6)
        loader.restore_state_rank(state)
        return loader

    with begin() as loader:
        whole = steps_of(loader, 18)
    for delivered in range(18):
        with begin() as loader:
            list(take(loader, delivered))
            state = loader.save_state_rank()
        with begin(state) as loader:
            assert loader.save_state_rank() == state
            found = steps_of(loader, 18 - delivered)
        rest = {number: texts for number, texts in whole.items() if number > delivered // 2}
        assert {number: texts for number, texts in found.items() if number > delivered // 2} == rest


def test_weights_for_steps_that_a_restored_job_has_begun_are_refused(folder: Path, reference: Steps) -> None:
    _, (state,) = Job(folder / "blend.yaml", 1, 24, 12).run(5)
    with Job(folder / "blend.yaml", 1, 24, 12).loader(0) as loader:
        loader.set_weights([0.0, 1.0], from_step=2)
        with pytest.raises(
            ConfigError, match=r"set_weights was called before.*from_step=2 has begun: give 3 or a later"
        ):
            loader.restore_state_rank(state)
        assert loader.save_state_rank()["cursor"]["step"] == 0  # nothing was restored


def test_lengths_count_steps_of_the_job(folder: Path) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 4, options={"virtual_epoch_length": 2})
    with job.loader(1) as loader:
        assert len(loader) == 6
        assert [{batch.step for batch in loader} for _ in range(3)] == [{0, 1}, {2, 3}, {4, 5}]
        next(loader)
        state = loader.save_state_rank()
    with Job(folder / "blend.yaml", 4, 24, 3, options={"virtual_epoch_length": 2}).loader(3) as loader:
        loader.restore_state_rank(state)
        assert [batch.step for batch in loader] == [6, 6, 7, 7]


@pytest.mark.parametrize("steps_per_epoch", [1, 3])
def test_states_of_epochs_that_divide_a_pass_name_the_steps_of_the_job(folder: Path, steps_per_epoch: int) -> None:
    """Also after the first pass over the data, which ends with an epoch."""
    finite = Job(folder / "a", 2, 20, 5, options={"repeat": False})
    divided = Job(folder / "a", 2, 20, 5, options={"repeat": False, "virtual_epoch_length": steps_per_epoch})
    expected: list[tuple[Any, Any, Any]] = []
    with finite.loader(1) as loader, divided.loader(1) as other:
        while len(expected) < 18:
            expected += [(b.step, b.text, loader.save_state_rank()["cursor"]) for b in loader]
        found, states = [], []
        while len(found) < 18:
            for batch in other:
                states.append(other.save_state_rank())
                found.append((batch.step, batch.text, states[-1]["cursor"]))
    assert found == expected
    for delivered in (7, 13, 15):
        with divided.loader(1) as loader:
            loader.restore_state_rank(states[delivered - 1])
            assert [batch.text for batch in take(loader, 1)] == [expected[delivered][1]]


@pytest.mark.parametrize(
    ("get_dataset", "option", "expected"),
    [
        (ed.get_train_dataset, "virtual_epoch_length", [[3, 3], [4, 4, 5, 5]]),
        (ed.get_val_dataset, "limit", [[1, 1], [0, 0, 1, 1]]),
    ],
)
def test_lengths_count_steps_of_the_job_after_a_resize(
    folder: Path, get_dataset: Any, option: str, expected: list[list[int]]
) -> None:
    def loader_of(rank: int, world_size: int) -> Any:
        config = ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=0)
        options: dict[str, Any] = {"batch_size": 4, "global_batch_size": 24, "task_encoder": Encoder(), option: 2}
        return ed.get_savable_loader(get_dataset(folder / "a", split_part="train", worker_config=config, **options))

    with loader_of(0, 2) as loader, loader_of(2, 3) as joined:
        assert len(list(loader)) == len(loader) == 6
        list(take(loader, 3))
        loader.resize(1, 3)
        assert len(loader) == len(joined) == 4
        joined.restore_state_rank(loader.save_state_rank())
        for one in (loader, joined):
            assert [[batch.step for batch in one] for _ in range(2)] == expected


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize(("decoder", "workers"), [("sample", 0), ("sample", 2), ("dali", 0), ("dali", 2)])
def test_decoders_and_a_decode_process_change_no_step(tmp_path: Path, decoder: str, workers: int) -> None:
    path = captioning_dataset(tmp_path / "images", 24)
    decoding = ed.SampleDecoder() if decoder == "sample" else ed.DaliDecoder(image_decode_device="cpu")
    bad = {"k0003", "k0010"}

    class Images(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
        decoder = decoding

        def encode_sample(self, sample: Any) -> Any:
            if sample.__key__ in bad:
                raise SkipSample
            sample.image = sample.image.float().mean(dim=(1, 2))
            return sample

    def run(decode_process: bool) -> list[Any]:
        dataset = ed.get_train_dataset(
            path,
            worker_config=ed.WorkerConfig(rank=1, world_size=2, num_workers=workers),
            batch_size=4,
            global_batch_size=16,
            shuffle_buffer_size=10,
            max_samples_per_sequence=None,
            task_encoder=Images(),
        )
        with ed.get_savable_loader(dataset, decode_process=decode_process) as loader:
            batches = [(b.step, b.micro_batch, b.num_units, b.__key__, b.image.tolist()) for b in take(loader, 5)]
            state = loader.save_state_rank()
        with ed.get_savable_loader(dataset, decode_process=decode_process) as loader:
            loader.restore_state_rank(state)
            return batches + [
                (b.step, b.micro_batch, b.num_units, b.__key__, b.image.tolist()) for b in take(loader, 5)
            ]

    expected = run(False)
    assert [batch[:3] for batch in expected] == [(n // 2, n % 2, 4) for n in range(10)]
    if workers:
        assert run(True) == expected


def test_the_plan_says_what_each_step_holds(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 4, 24, 3)
    with job.loader(2) as loader:
        dataset = loader.dataset
        list(take(loader, 3))
        loader.skip_steps(3, 5)
        state = loader.save_state_rank()
        rest = [(batch.step, batch.__key__) for batch in take(loader, 5)]
    plan = ed.plan_steps(dataset, range(2))
    found: dict[int, list[str]] = defaultdict(list)
    for batch in plan:
        found[batch.step] += [sample.key for sample in batch.samples]
    assert [(batch.step, batch.rank) for batch in plan] == [(step, n // 2) for step in range(2) for n in range(8)]
    for number, keys in found.items():
        assert sorted(keys) == sorted(text.split()[0] for text in reference[number])
    later = ed.plan_steps(dataset, range(1, 6), ranks=[2], state=state)
    assert [(batch.step, [sample.key for sample in batch.samples]) for batch in later][1:] == rest
    assert [batch.step for batch in ed.plan_steps(dataset, range(10_000_000, 10_000_001), ranks=[0])] == [
        10_000_000
    ] * 2
    with pytest.raises(StateError, match="after step 0"):
        ed.plan_steps(dataset, range(2), state=state)


@pytest.mark.parametrize("limit", [2, 3])
def test_the_plan_ends_with_the_limit_of_a_validation(folder: Path, limit: int) -> None:
    def batches(rank: int) -> Any:  # limited by the option, or by a dataset that ends within a step
        dataset = ed.get_val_dataset(
            folder / "a",
            split_part="train",
            worker_config=ed.WorkerConfig(rank=rank, world_size=2, num_workers=0),
            global_batch_size=24,
            batch_size=4,
            limit=limit if limit == 2 else None,
            task_encoder=Encoder(),
        )
        return ed.LimitDataset(dataset, 5) if limit == 3 else dataset

    plan = ed.plan_steps(batches(0), range(10))
    for rank in range(2):
        with ed.get_savable_loader(batches(rank)) as loader:
            delivered = [(batch.step, batch.__key__) for batch in loader]
        found = [(batch.step, [sample.key for sample in batch.samples]) for batch in plan if batch.rank == rank]
        assert found == delivered
        assert len(delivered) == (6 if limit == 2 else 5)
    assert plan.notes[1:] == ["The data ends after step 1."]
    assert not list(ed.plan_steps(batches(0), range(5, 8)))


def scheduled(folder: Path, **weights: Any) -> dict[str, Any]:
    """Returns a metadataset; weights over time are over steps where they do not say it."""
    entries = [
        {"weight": {"over": "steps", **weight} if isinstance(weight, dict) else weight, "path": str(folder / name)}
        for name, weight in weights.items()
    ]
    return {"__class__": "MetadatasetV2", "splits": {"train": {"blend": entries}}}


def share_of_a(steps: Steps) -> dict[int, float]:
    return {number: sum(text[0] == "a" for text in texts) / len(texts) for number, texts in steps.items()}


def test_weights_of_a_metadataset_change_over_the_steps(folder: Path) -> None:
    path: Any = scheduled(folder, a={"step": {0: 1, 2: 0, 4: 1}}, b={"step": {0: 0, 2: 1}})
    whole, _ = Job(path, 1, 24, 24).run(6)
    shares = share_of_a(whole)
    assert [shares[number] for number in range(4)] == [1, 1, 0, 0]
    assert 0.2 < (shares[4] + shares[5]) / 2 < 0.8
    before, states = Job(path, 2, 24, 4).run(8)
    after, _ = Job(path, 3, 24, 8).run(4, states[:1])
    assert before == {number: whole[number] for number in (0, 1)} | {2: before[2]}
    assert after == {number: whole[number] for number in (2, 3, 4, 5)}


def test_a_metadataset_moves_its_weights_linearly(folder: Path) -> None:
    path: Any = scheduled(folder, a={"linear": {0: 1, 40: 0}}, b={"linear": {0: 0, 40: 1}})
    shares = share_of_a(Job(path, 1, 64, 64).run(60)[0])
    halves = [sum(shares[number] for number in range(first, first + 20)) / 20 for first in (0, 20)]
    assert halves == pytest.approx([0.75, 0.25], abs=0.06)  # shares move from group to group of 1,024 samples
    assert sum(halves) == pytest.approx(1, abs=0.01)
    assert not any(shares[number] for number in range(40, 60))


def test_a_ramp_of_the_batch_keeps_the_steps_of_the_schedule(folder: Path) -> None:
    path: Any = scheduled(folder, a={"step": {0: 1, 5: 0}}, b={"step": {0: 0, 5: 1}})
    first, states = Job(path, 1, 24, 24).run(3)
    later, states = Job(path, 2, 36, 18).run(4, states[:1])
    assert states[0]["cursor"]["base"] == {"step": 3, "unit": 72, "drawn_from": 0, "counts": []}
    last, _ = Job(path, 1, 36, 36).run(1, states[:1])
    shares = share_of_a(first | later | last)
    assert [shares[number] for number in range(8)] == [1, 1, 1, 1, 1, 0, 0, 0]
    keys = [text.split()[0] for number in range(5) for text in (first | later)[number]]
    counts = [keys.count(key) for key in set(keys)]
    assert len(counts) == 60
    assert max(counts) - min(counts) <= 1


def test_weights_are_set_while_the_job_runs(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 6)
    found: dict[int, list[str]] = defaultdict(list)
    states = []
    for rank in range(2):
        with job.loader(rank) as loader:
            for batch in take(loader, 3):
                found[batch.step] += batch.text
            with pytest.raises(ConfigError, match="give 2 or a later one"):
                loader.set_weights([0.0, 1.0], from_step=1)
            loader.set_weights({"a": 0.0, "b": 1.0} if rank else [0.0, 1.0], from_step=4)
            for batch in take(loader, 9):
                found[batch.step] += batch.text
            states.append(loader.save_state_rank())
    steps = {number: sorted(texts) for number, texts in found.items()}
    assert {number: steps[number] for number in range(4)} == {number: reference[number] for number in range(4)}
    assert share_of_a(steps)[4] == share_of_a(steps)[5] == 0
    assert states[0]["cursor"]["weights"] == [[4, [0.0, 1.0]]]
    after, _ = Job(folder / "blend.yaml", 1, 24, 24).run(2, states[:1])
    assert share_of_a(after) == {6: 0, 7: 0}
    with job.loader(0) as loader, pytest.raises(ConfigError, match="3 weights were given for 2 datasets"):
        loader.set_weights([1, 2, 3], from_step=4)
    with Job(folder / "a", 1, 24, 6).loader(0) as loader, pytest.raises(ConfigError, match="a blend by weight"):
        loader.set_weights([1.0], from_step=4)


def test_weights_over_samples_change_at_the_sample_whatever_the_size_of_steps(folder: Path) -> None:
    path: Any = scheduled(
        folder, a={"linear": {0: 1, 100: 0, 200: 1}, "over": "samples"}, b={"step": {0: 1, 130: 0}, "over": "samples"}
    )
    whole, _ = Job(path, 1, 20, 20).run(12)
    first, states = Job(path, 1, 20, 20).run(3)
    second, states = Job(path, 2, 36, 18).run(4, states[:1])
    third, states = Job(path, 1, 18, 9).run(2, states[:1])
    ramped = first | second | third
    assert states[0]["cursor"]["unit"] == 60 + 4 * 36 + 18 == 222

    def keys(steps: Steps, stop: int) -> list[str]:
        return sorted(text.split()[0] for number in sorted(steps) for text in steps[number])[:stop]

    plan = ed.get_train_dataset(
        path, batch_size=222, global_batch_size=222, shuffle_buffer_size=20, max_samples_per_sequence=10
    )
    (step,) = ed.plan_steps(plan, range(1))
    assert keys(ramped, 222) == sorted(sample.key for sample in step.samples)
    assert whole[0] == first[0]
    assert all(sample.key[0] == "a" for sample in step.samples[130:])
    assert {sample.key[0] for sample in step.samples[:130]} == {"a", "b"}


def test_phases_and_ramps_are_set_in_python(folder: Path) -> None:
    """Steps, pieces that move linearly, and phases, over steps and over samples."""
    job = Job(folder / "blend.yaml", 1, 24, 24)
    with job.loader(0) as loader:
        loader.set_weights([1.0, 0.0], from_step=0)
        loader.set_weights([0.0, 1.0], from_step=2)
        loader.set_weights([1.0, 0.0], from_step=4, until_step=84)
        set_before = loader.save_state_rank()["cursor"]["weights"]
        shares = share_of_a(steps_of(loader, 100))
        state = loader.save_state_rank()
    assert [shares[number] for number in (0, 1, 2, 3)] == [1, 1, 0, 0]
    assert sum(shares[number] for number in range(4, 84)) / 80 == pytest.approx(0.5, abs=0.01)
    assert sum(shares[number] for number in range(4, 44)) < sum(shares[number] for number in range(44, 84))
    assert {shares[number] for number in range(84, 100)} == {1}
    phases = [[0, [1.0, 0.0]], [2, [0.0, 1.0]], [4, [1.0, 0.0], 84]]
    assert set_before == phases
    assert state["cursor"]["weights"] == [[84, [1.0, 0.0]]]  # those that hold
    assert state["log"]["weights"] == phases  # those that are over
    with job.loader(0) as loader:
        loader.restore_state_rank(state)
        with pytest.raises(ConfigError, match="change over steps, and from_sample was given"):
            loader.set_weights([1.0, 0.0], from_sample=10_000)
        assert set(share_of_a(steps_of(loader, 2)).values()) == {1}
    with job.loader(0) as loader:
        loader.set_weights({"a": 0.0, "b": 1.0}, from_sample=30)
        loader.set_weights({"a": 1.0, "b": 0.0}, from_step=2)  # sample 48
        found = loader.save_state_rank()["cursor"]
        batches = [batch.__key__ for batch in take(loader, 3)]
        folded = loader.save_state_rank()["cursor"]
    assert [key[0] for key in sorted(batches[1])] == ["a"] * sum(key[0] == "a" for key in batches[1]) + ["b"] * sum(
        key[0] == "b" for key in batches[1]
    )
    assert sum(key[0] == "b" for key in batches[1]) >= 18
    assert {key[0] for key in batches[2]} == {"a"}
    assert (found["weights"], found["weights_over"]) == ([[30, [0.0, 1.0]], [48, [1.0, 0.0]]], "samples")
    assert (folded["weights"], folded["weights_over"]) == ([[48, [1.0, 0.0]]], "samples")
    assert (folded["base"]["unit"], folded["base"]["drawn_from"], sum(folded["base"]["counts"])) == (48, 48, 48)


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_statistics_have_the_shares_that_are_wanted_and_those_of_the_plan(folder: Path, workers: int) -> None:
    path: Any = scheduled(folder, a={"linear": {0: 1, 40: 0}}, b={"linear": {0: 0, 40: 1}})
    keys: list[str] = []
    with Job(path, 2, 64, 32, workers).loader(0) as loader, Job(path, 2, 64, 32).loader(1) as other:
        assert loader.stats()["planned_blend"] == {}

        def deliver(count: int) -> Any:
            for one in (loader, other):
                keys.extend(key for batch in take(one, count) for key in batch.__key__)
            assert other.stats().planned_blend == loader.stats().planned_blend
            return loader.stats()

        early = deliver(10)
        row = early.planned_blend["a"]
        assert row["planned"] == sum(key[0] == "a" for key in keys)
        assert row["wanted"] == pytest.approx(64 * 10 * (1 - 10 / 80))
        assert row["wanted_share"] == pytest.approx(0.875)
        assert row["planned_share"] == row["planned"] / 640
        loader.set_weights([0.5, 0.5], from_step=20)
        other.set_weights([0.5, 0.5], from_step=20)
        late = deliver(50)
        row = late.planned_blend["a"]
        assert row["planned"] == sum(key[0] == "a" for key in keys)
        assert row["wanted"] == pytest.approx(64 * (20 * 0.75 + 40 * 0.5))
        between = late.since(early).planned_blend["a"]
        assert between["planned"] == late.planned_blend["a"]["planned"] - early.planned_blend["a"]["planned"]
        assert between["wanted_share"] == pytest.approx((10 * 0.625 + 40 * 0.5) / 50)
        assert "wanted 58.33%" in str(late)
        state = loader.save_state_rank()
    with Job(path, 1, 100, 100).loader(0) as ramped:  # counted since steps have this size
        ramped.restore_state_rank(state)
        found = [key for batch in take(ramped, 4) for key in batch.__key__]
        row = ramped.stats().planned_blend["a"]
    assert (row["planned"], row["wanted"]) == (sum(key[0] == "a" for key in found), pytest.approx(200))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give from_step, or from_step and until_step, or the same with samples"),
        ({"from_step": 4, "from_sample": 96}, "give from_step, or from_step and until_step"),
        ({"until_step": 4}, "give from_step, or from_step and until_step"),
        ({"from_step": 4, "until_sample": 96}, "give from_step, or from_step and until_step"),
        ({"from_step": 4.0}, "from_step=4.0 is invalid: it must be a whole number"),
        ({"from_sample": -1}, "from_sample=-1 is invalid: it must be a whole number"),
        ({"from_step": 1 << 60}, "must be a whole number from 0 to"),
        ({"from_step": 4, "until_step": True}, "until_step=True is invalid"),
        ({"from_step": 1}, "from_step=1 has begun: give 2 or a later one"),
        ({"from_sample": 47}, "from_sample=47 has begun: give 48 or a later one"),
        ({"from_step": 4, "until_step": 4}, "until_step=4 is not after from_step=4"),
        ({"from_step": 4, "weights": [-1, 2]}, r"The weights \[-1.0, 2.0\] from step 4 on are invalid"),
        ({"from_sample": 48, "weights": [0, 0]}, "at least one of them positive"),
        ({"from_step": 4, "weights": [1]}, "1 weights were given for 2 datasets"),
        ({"from_step": 4, "weights": {"a": 1, "c": 1}}, "give one for each of"),
        ({"from_step": 4, "weights": ["a", "b"]}, "are not numbers"),
        ({"from_step": 4, "weights": 0.5}, "are not numbers"),
        ({"from_step": 4, "weights": [10**400, 1]}, "are not numbers of at most 64 bits"),
        ({"from_step": 4, "weights": {"a": 1, 3: 1}}, "give one for each of"),
    ],
)
def test_wrong_changes_of_weights_are_explained(folder: Path, given: dict[str, Any], message: str) -> None:
    with Job(folder / "blend.yaml", 1, 24, 12).loader(0) as loader:
        list(take(loader, 3))
        with pytest.raises(ConfigError, match=message):
            loader.set_weights(**{"weights": [1, 1], **given})


def test_the_weights_of_energon_are_taken_as_steps_of_the_job_with_a_warning(folder: Path) -> None:
    """Pull request 208 of Energon counts batches of a rank, and has no `over`."""
    path: Any = scheduled(folder, a={"step": {0: 1, 2: 0}}, b={"step": {0: 0, 2: 1}})
    expected, _ = Job(path, 1, 24, 24).run(4)
    for entry in path["splits"]["train"]["blend"]:
        del entry["weight"]["over"]
    with pytest.warns(UserWarning, match="taken as steps of the whole job.*Write `over: steps`") as found:
        loader = Job(path, 1, 24, 12).loader(0)
    assert len(found) == 1
    assert "blend[0].weight" in str(found[0].message)
    with loader:
        assert {n: sorted(texts) for n, texts in steps_of(loader, 8).items()} == expected


def test_the_command_line_says_that_weights_change(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "moving.yaml"
    whole = scheduled(folder, a={"linear": {"0": 3, "500": 1}, "over": "samples"}, b=1)
    path.write_text(json.dumps({"__module__": "megatron.energon", **whole}))
    shown = CliRunner().invoke(main, ["info", str(path)]).output
    assert "These are the parts at the beginning. They change over samples, until 500." in shown
    assert "75.00%" in shown


def test_weights_over_different_things_are_refused(folder: Path) -> None:
    path: Any = scheduled(folder, a={"step": {0: 1}}, b={"step": {0: 1}, "over": "samples"})
    with pytest.raises(ed.EnergonDaliError, match=r"over samples, and another one over steps\. Write the same"):
        Job(path, 1, 24, 24).loader(0)


def test_schedules_need_global_batches(folder: Path) -> None:
    path: Any = scheduled(folder, a={"step": {0: 1, 2: 0}}, b=1)
    with pytest.raises(ConfigError, match="Give global_batch_size"):
        ed.get_train_dataset(path, batch_size=4)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ({"step": {1: 1}}, "begins at step 0"),
        ({"step": {}}, "either step or linear"),
        ({"step": {0: 1}, "linear": {0: 1}}, "either step or linear"),
        ({"linear": {0: -1}}, "weight"),
        ({"step": {"one": 1}}, "is not a step of the job"),
        ({"cubic": {0: 1}}, "cubic"),
        ({"step": {"one": 1}, "over": "samples"}, "is not a sample of the job"),
        ({"step": {0: 1}, "over": "epochs"}, "'epochs' cannot be counted here: write steps, samples or tokens"),
        ({"step": {0: 1}, "over": 3}, "over"),
        ({"step": {0: 1}, "over": "tokens"}, "has no measures of its samples by Encoder"),
        ({"over": "steps"}, "either step or linear"),
    ],
)
def test_wrong_weights_are_explained(folder: Path, weight: Any, message: str) -> None:
    with pytest.raises(ed.EnergonDaliError, match=message):
        Job(scheduled(folder, a=weight, b=1), 1, 24, 24).loader(0)  # type: ignore[arg-type]


@pytest.mark.usefixtures("warm_workers")
def test_the_number_of_workers_may_be_found_while_the_job_runs(folder: Path, reference: Steps) -> None:
    job = Job(folder / "blend.yaml", 1, 24, 4, num_workers="auto")  # type: ignore[arg-type]
    with job.loader(0) as loader:
        assert loader.worker_config.num_streams is None
        cores = cores_per_rank()  # any number up to that, and multiples of it
        assert loader._auto.counts[: cores + 1] == [*range(1, cores + 1), 2 * cores]
        found = steps_of(loader, 6)
        loader.change_workers(3)
        found |= steps_of(loader, 6)
    assert found == {number: reference[number] for number in range(2)}


def test_datasets_around_global_batches_keep_their_steps(folder: Path, reference: Steps) -> None:
    dataset = Job(folder / "blend.yaml", 1, 24, 4).loader(0).dataset
    for outer in (
        ed.FilterDataset(dataset, filter_fn=lambda batch: True),
        ed.RepeatDataset(dataset),
        ed.ShuffleBufferDataset(dataset, size=4),
    ):
        with pytest.raises(ConfigError, match=f"{type(outer).__name__}.*was put around a dataset with global batches"):
            ed.get_savable_loader(outer)
    with pytest.raises(ConfigError, match="mixes datasets with global batches"):
        ed.get_savable_loader(ed.BlendDataset((dataset, 1), (dataset, 1)))
    with ed.get_savable_loader(ed.EpochizeDataset(ed.GcDataset(dataset, every_n_iter=2), 6)) as loader:
        assert steps_of(loader, 6) == {0: reference[0]}


def test_epochs_end_in_the_outermost_dataset(folder: Path) -> None:
    """Inside another one, they would end by the batches of streams, and states would hold no position."""
    dataset = Job(folder / "blend.yaml", 2, 24, 4).loader(1).dataset
    virtual = Job(folder / "blend.yaml", 2, 24, 4, options={"virtual_epoch_length": 2}).loader(1).dataset
    for inner, length in ((ed.EpochizeDataset(dataset, 5), 5), (ed.LimitDataset(dataset, 5), 5), (virtual, 6)):
        for outer in (ed.GcDataset(inner, every_n_iter=2), ed.LimitDataset(inner, 3)):
            kind = type(inner).__name__
            with pytest.raises(
                ConfigError, match=rf"{kind}.* is inside .*, and put {kind}\(dataset, {length}\) around"
            ):
                ed.get_savable_loader(outer)
    with ed.get_savable_loader(ed.EpochizeDataset(ed.GcDataset(dataset, every_n_iter=2), 5)) as loader:
        assert [len(list(loader)) for _ in range(3)] == [5, 5, 5]
        cursor = loader.save_state_rank()["cursor"]
    assert (cursor["step"], cursor["micro_batch"], cursor["unit"]) == (5, 0, 120)


@pytest.mark.usefixtures("warm_workers")
def test_batches_are_made_again_by_their_keys(folder: Path) -> None:
    bad = frozenset({"a003", "b011"})
    for workers in (0, 2):
        job = Job(folder / "blend.yaml", 2, 24, 4, workers, Encoder(bad))
        with job.loader(1) as loader:
            for batch in take(loader, 6):
                again = loader.restore_sample(json.loads(json.dumps(batch.__restore_key__)))
                assert again.text == batch.text


@pytest.mark.parametrize(
    "damage",
    [
        {"cursor": 3},
        {"cursor": {"unit": -1, "step": 0, "micro_batch": 0, "skipped": [], **UNCHANGED}},
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 0, "skipped": [[4, 2]], **UNCHANGED}},
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 0, "skipped": [], **UNCHANGED, "weights": [[1]]}},
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 0, "skipped": [], **UNCHANGED, "base": 1}},
        {
            "cursor": {
                "unit": 0,
                "step": 0,
                "micro_batch": 0,
                "skipped": [],
                **UNCHANGED,
                "weights": [[0, [1, 10**400]]],
            }
        },
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 0, "skipped": [], **UNCHANGED, "weights": [[0, [1.0]]]}},
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 0, "skipped": [], **UNCHANGED, "weights": [[0, [0, 0]]]}},
        {"cursor": {"unit": 0, "step": 0, "micro_batch": 4, "skipped": [], **UNCHANGED}},
        {"cursor": {"unit": 48, "step": 2, "micro_batch": 0, "skipped": [], **UNCHANGED, "base": BASE | {"unit": 72}}},
        {
            "cursor": {
                "unit": 48,
                "step": 2,
                "micro_batch": 0,
                "skipped": [],
                **UNCHANGED,
                "base": BASE | {"counts": [48]},
            }
        },
        {"global_batch": []},
        {"micro_batches": 0},
        {"epoch_length": -1},
    ],
)
def test_damaged_states_are_refused(folder: Path, damage: dict[str, Any]) -> None:
    job = Job(folder / "blend.yaml", 1, 24, 6)
    _, states = job.run(2)
    with job.loader(0) as loader, pytest.raises(StateError):
        loader.restore_state_rank({**states[0], **damage})


def test_states_are_merged_and_written_for_another_number_of_ranks(folder: Path, reference: Steps) -> None:
    _, states = Job(folder / "blend.yaml", 2, 24, 6).run(4)
    merged = merge_states(states)
    with Job(folder / "blend.yaml", 3, 24, 8).loader(2) as loader:
        loader.restore_state_global(merged)
        assert next(iter(loader)).step == 2
    files = split_state(merged, 3)
    assert len(files) == 3
    after, _ = Job(folder / "blend.yaml", 3, 24, 8).run(1, files)
    assert after == {2: reference[2]}


def test_the_command_line_shows_and_writes_states(folder: Path, tmp_path: Path, reference: Steps) -> None:
    _, states = Job(folder / "blend.yaml", 2, 24, 6).run(3)
    saved = tmp_path / "state.json"
    saved.write_text(json.dumps(states[1]))  # that of one rank is enough
    done = CliRunner().invoke(main, ["checkpoint", "info", str(saved)])
    assert done.exit_code == 0, done.output
    assert "1 delivered, and 1 of 2 micro-batches of it; the next sample is number 24 of the job" in done.output
    assert "24 samples per step, micro-batches of 6" in done.output
    done = CliRunner().invoke(
        main, ["checkpoint", "redist", str(saved), str(tmp_path / "out"), "--new-world-size", "3"]
    )
    assert done.exit_code == 0, done.output
    written = [json.loads(file.read_text()) for file in sorted((tmp_path / "out").iterdir())]
    assert len(written) == 3
    after, _ = Job(folder / "blend.yaml", 3, 24, 4).run(2, written)
    assert after == {1: reference[1]}
    options = ["--batch-size", "6", "--global-batch-size", "24", "--world-size", "2", "--shuffle-buffer-size", "20"]
    options += ["--max-samples-per-sequence", "10", "--json"]
    done = CliRunner().invoke(main, ["plan", str(folder / "blend.yaml"), "--step", "1", *options])
    assert done.exit_code == 0, done.output
    batches = json.loads(done.output)["batches"]
    assert [batch["rank"] for batch in batches] == [0, 0, 1, 1]
    keys = sorted(sample["key"] for batch in batches for sample in batch["samples"])
    assert keys == [text.split()[0] for text in reference[1]]


def test_a_rank_without_a_sample_is_filled_from_the_weights_that_hold(folder: Path) -> None:
    """Three samples for two ranks, one at a time: the second rank has none in the second micro-batch of a step."""
    job = Job(folder / "blend.yaml", 2, 3, 1, options={"uneven": "ragged"})
    with job.loader(1) as loader:
        loader.set_weights([0.0, 1.0], from_step=2)
        batches = list(take(loader, 12))
    assert [batch.num_units for batch in batches] == [1, 0] * 6
    assert {batch.text[0][0] for batch in batches if batch.step >= 2} == {"b"}


def test_a_state_that_is_written_for_other_ranks_begins_its_step_again(folder: Path, reference: Steps) -> None:
    """Also where these have as many micro-batches per step as those that saved it."""
    ragged: dict[str, Any] = {"uneven": "ragged", "virtual_epoch_length": 3}
    before, states = Job(folder / "blend.yaml", 2, 24, 6, options=ragged).run(3)
    assert before.keys() == {0, 1}
    for given in (states, states[:1]):  # that of one rank is enough
        files = split_state(merge_states(given), 3)
        assert [file["given"] for file in files] == [{"0": 2}, {"1": 2}, {"2": 2}]
        job = Job(folder / "blend.yaml", 3, 24, 6, options=ragged)
        after, _ = job.run(4, files)
        assert after == {1: reference[1], 2: reference[2]}
        with job.loader(2) as loader:
            loader.restore_state_rank(files[2])
            assert [{batch.step for batch in loader} for _ in range(2)] == [{1, 2}, {3, 4, 5}]


@pytest.mark.usefixtures("warm_workers")
@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_end_where_they_would_have_ended_without_skipped_steps(folder: Path, workers: int) -> None:
    job = Job(folder / "blend.yaml", 2, 24, 6, workers, options={"virtual_epoch_length": 4})

    def epochs(loader: Any, count: int) -> list[list[int]]:
        return [[batch.step for batch in loader if not batch.micro_batch] for _ in range(count)]

    with job.loader(0) as loader:
        loader.skip_steps(0, 1)
        loader.skip_steps(2, 7)
        state = loader.save_state_rank()
        assert epochs(loader, 3) == [[1], [7], [8, 9, 10, 11]]
        list(take(loader, 3))
        loader.skip_steps(13, 15)  # one micro-batch of step 13 was delivered
        assert epochs(loader, 2) == [[15], [16, 17, 18, 19]]
    with job.loader(0) as loader:
        loader.restore_state_rank(state)
        list(take(loader, 2))
        later = loader.save_state_rank()
        assert (later["given"]["0"], later["cursor"]["step"]) == (14, 7)
    for begin, expected in ((state, [[1], [7], [8, 9, 10, 11]]), (later, [[], [7], [8, 9, 10, 11]])):
        for other in (job, Job(folder / "blend.yaml", 3, 24, 8, options={"virtual_epoch_length": 4})):
            with other.loader(1) as loader:
                loader.restore_state_rank(begin)
                assert epochs(loader, 3) == expected


def test_epochs_may_become_shorter_with_a_restore(folder: Path) -> None:
    _, states = Job(folder / "blend.yaml", 2, 24, 6, options={"virtual_epoch_length": 20}).run(19)
    for other in (Job(folder / "blend.yaml", 2, 24, 6), Job(folder / "blend.yaml", 3, 24, 8)):
        other.options = {"virtual_epoch_length": 4}
        with other.loader(1) as loader:
            loader.restore_state_rank(states[1])
            assert [{batch.step for batch in loader} for _ in range(2)] == [{9, 10, 11}, {12, 13, 14, 15}]


def test_a_limited_validation_ends_where_it_would_have_ended_without_skipped_steps(folder: Path) -> None:
    dataset = ed.get_val_dataset(
        folder / "a",
        split_part="train",
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=6,
        global_batch_size=12,
        limit=3,
        task_encoder=Encoder(),
    )
    for skipped, first in (((1, 2), {0, 2}), ((0, 3), set()), ((2, 9), {0, 1})):
        with ed.get_savable_loader(dataset) as loader:
            loader.skip_steps(*skipped)
            assert [{batch.step for batch in loader} for _ in range(2)] == [first, {0, 1, 2}]


def test_passes_over_the_data_that_are_left_out_take_no_time(folder: Path) -> None:
    job = Job(folder / "a", 1, 24, 24, options={"repeat": False})
    with job.loader(0) as loader:
        loader.skip_steps(0, 30_000)  # ten thousand passes
        assert list(loader) == []
        assert loader.save_state_rank()["cursor"]["step"] == 30_000


def sequence(loader: Any, count: int) -> list[str]:
    """Returns the first sample of each batch, with END where an epoch ends."""
    found: list[str] = []
    while len(found) < count:
        for batch in loader:
            found.append(batch.text[0])
            if len(found) == count:
                return found
        found.append("END")
    return found


@pytest.mark.parametrize("options", [{}, {"virtual_epoch_length": 3}, {"virtual_epoch_length": 15}])
@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
def test_an_epoch_ends_after_a_state_as_it_would_have(folder: Path, options: dict[str, int], num_workers: int) -> None:
    job = Job(folder / "a", 1, 16, 4, num_workers, options={"repeat": False, **options})
    with job.loader(0) as loader:
        expected = sequence(loader, 45)
    assert expected.count("END") >= 2
    for done in range(1, 36):
        with job.loader(0) as loader:
            sequence(loader, done)
            state = loader.save_state_rank()
        with job.loader(0) as loader:
            loader.restore_state_rank(state)
            assert loader.save_state_rank() == state
            assert sequence(loader, 10) == expected[done : done + 10], done


def test_an_epoch_that_is_over_ends_on_other_ranks_and_before_steps_that_are_left_out(folder: Path) -> None:
    options = {"repeat": False}
    with Job(folder / "a", 1, 16, 4, options=options).loader(0) as loader:
        batches = iter(loader)
        *_, last = itertools.islice(batches, 15)
        assert (last.step, last.is_last_of_step) == (3, True), "the data ends with this batch"
        loader.skip_steps(4, 5)
        state = loader.save_state_rank()
        assert list(batches) == []
        expected = sorted(text for batch in itertools.islice(loader, 4) for text in batch.text)
    found = []
    for rank, given in enumerate(split_state(state, 2)):
        with Job(folder / "a", 2, 16, 4, options=options).loader(rank) as loader:
            loader.restore_state_rank(given)
            assert sequence(loader, 1) == ["END"]
            found += [text for batch in itertools.islice(loader, 2) for text in batch.text]
    assert sorted(found) == expected
    with Job(folder / "a", 1, 16, 4, options=options).loader(0) as loader:
        loader.restore_state_rank(state)
        loader.start_at(60)  # nothing says that an epoch of this trainer is to end
        assert sequence(loader, 1) != ["END"]
