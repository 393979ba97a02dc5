"""Planned packs are the same on any number of ranks, whatever fails, and after restores."""

from __future__ import annotations

import inspect
import json
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import energon_dali as ed
from energon_dali.cli.main import main
from energon_dali.diagnosis.seen_samples import find_seen
from energon_dali.diagnosis.step_plan import plan_steps
from energon_dali.errors import ConfigError, FatalSampleError, SkipSample
from energon_dali.loader.loader_state import merge_states, split_state
from energon_dali.plan.packs import PackedUnits
from energon_dali.task_encoder.planned_packs import PlannedPacks
from tests.loader.dataset_folder import prepare, write_shards
from tests.loader.test_global_batches import Job as GlobalJob
from tests.loader.test_global_batches import take
from tests.part import sampled

Packs = dict[int, list[str]]
"""By step, the packs of all ranks, each the sorted texts of its samples."""
MAX_LENGTH = 100
BALANCES = (
    ed.Balance(ed.ColumnCost("tokens")),
    ed.Balance(ed.ColumnCost("tokens"), per="micro_batch", order="pipeline"),
)


class Values:
    """Measured lengths of a dataset, in memory."""

    def __init__(self, tokens: list[int], identity: str = "test") -> None:
        self.tokens = np.array(tokens, np.int64)
        self.identity = f"{identity} {sum(tokens)}"
        self.names = ("text_tokens", "vision_tokens")
        self.num_samples = len(tokens)

    def take(self, name: str, numbers: Any) -> Any:
        assert name in ("tokens", "text_tokens")
        return self.tokens[numbers]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def length_of(name: str, number: int) -> int:
    """Returns the length of a sample: most are short; some of dataset a are longer than a pack."""
    draw = random.Random(f"{name} {number}")
    if name == "a" and number % 40 == 7:
        return MAX_LENGTH + 20
    return draw.choice((draw.randint(1, 20), draw.randint(20, 90)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packs")
    for name, count, shards in (("a", 160, 3), ("b", 70, 2)):
        samples = {f"{name}{number:03d}": {"txt": f"{length_of(name, number)}".encode()} for number in range(count)}
        prepare(write_shards(root / name, samples, shards), {"text": "txt"}, "TextSample")
    entries = [{"weight": 0.7, "path": "a"}, {"weight": 0.3, "path": "b"}]
    blend = {"__module__": "megatron.energon", "__class__": "MetadatasetV2"}
    (root / "blend.yaml").write_text(json.dumps({**blend, "splits": {"train": {"blend": entries}}}))
    return root


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every dataset has measures."""

    def open_measures(source: Any, *_: Any, **__: Any) -> Values:
        name = Path(source.name).name
        count = {"a": 160, "b": 70}[name]
        return Values([length_of(name, number) for number in range(count)], name)

    monkeypatch.setattr("energon_dali.assembly.measured_plan.open_measures", open_measures)


class Encoder(ed.DefaultTaskEncoder[Any, Any, Any, Any]):
    """Makes a pack of texts; fails on some samples, and draws a random number for each."""

    def __init__(self, bad: frozenset[str] = frozenset(), bad_packs: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.bad, self.bad_packs = bad, bad_packs

    @ed.stateless(restore_seeds=True, failure_tolerance=0)
    def encode_sample(self, sample: Any) -> Any:
        if sample.__key__ in self.bad:
            raise SkipSample if sample.__key__.endswith("3") else ValueError("a bad sample")
        length = int(sample.text)
        text = f"{sample.__key__} {length} {random.random():.6f} {self.current_batch_index}"
        return {**sample.__dict__, "__key__": sample.__key__, "length": length, "text": text} | {
            "__restore_key__": sample.__restore_key__,
            "__subflavors__": None,
        }

    @ed.stateless(restore_seeds=True, failure_tolerance=0)
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        if any(sample["__key__"] in self.bad_packs for sample in samples):
            raise ValueError("a bad pack")
        assert sum(sample["length"] for sample in samples) <= MAX_LENGTH
        return {"__key__": samples[0]["__key__"], "texts": [sample["text"] for sample in samples]} | {
            "drawn": random.random(),
        }

    @ed.stateless
    def batch(self, samples: list[Any]) -> Any:
        return Batch([sample.get("texts") or [sample["text"]] for sample in samples])


@dataclass
class Batch:
    packs: list[list[str]]
    __restore_key__: Any = ()


@dataclass
class Job(GlobalJob):
    """A job whose steps are made of packs. Each of its ranks runs in this process."""

    def __post_init__(self) -> None:
        self.options = {"packs": PlannedPacks(MAX_LENGTH, window=50), **(self.options or {})}

    def default_encoder(self) -> Any:
        return Encoder()

    def texts_of(self, batch: Any) -> list[str]:
        return [" | ".join(sorted(pack)) for pack in batch.packs]


REFERENCE = 12
"""Steps of the job that others are compared with."""


@pytest.fixture
def reference(folder: Path, measured: None) -> Packs:
    """The steps of a job of one rank without workers: 12 steps of 12 packs."""
    return Job(folder / "blend.yaml", 1, 12, 12).run(REFERENCE)[0]


LAYOUTS = ((1, 3, 0), (2, 2, 0), (3, 1, 2), (4, 3, 0), (2, 3, 1))


@pytest.mark.parametrize(
    ("world_size", "batch_size", "num_workers", "balance"),
    sampled([(*layout, balance) for layout in LAYOUTS for balance in (None, *BALANCES)], every=2),
)
def test_steps_hold_the_same_packs(
    folder: Path, reference: Packs, world_size: int, batch_size: int, num_workers: int, balance: Any
) -> None:
    per_step = 12 // (world_size * batch_size)
    job = Job(folder / "blend.yaml", world_size, 12, batch_size, num_workers, options={"balance": balance})
    assert job.run(5 * per_step)[0] == {number: reference[number] for number in range(5)}


def test_packs_are_full_and_hold_each_sample_once(reference: Packs) -> None:
    packs = [pack.split(" | ") for step in reference.values() for pack in step]
    lengths = [sum(int(text.split()[1]) for text in pack) for pack in packs]
    assert max(lengths) <= MAX_LENGTH
    assert sum(lengths) / len(lengths) > 0.9 * MAX_LENGTH
    assert len(packs) == 12 * REFERENCE


BAD = frozenset({"a003", "a017", "b002", "b033", "a080"})


@pytest.mark.parametrize(
    ("bad", "on_missing"),
    sampled([(BAD, "spare"), (frozenset(), "spare"), (BAD, "shrink"), (frozenset(), "shrink")], every=2),
)
def test_a_job_continues_exactly_at_every_position(folder: Path, bad: frozenset[str], on_missing: str) -> None:
    def job(world_size: int, batch_size: int, workers: int = 0) -> Job:
        return Job(folder / "blend.yaml", world_size, 12, batch_size, workers, Encoder(bad), {"on_missing": on_missing})

    expected = job(1, 12).run(8)[0]
    for micro_batches in range(1, 9):
        first, states = job(2, 3).run(micro_batches)
        rest, _ = job(2, 3).run(16 - micro_batches, [json.loads(json.dumps(state)) for state in states])
        both = {number: sorted(first.get(number, []) + rest.get(number, [])) for number in range(8)}
        assert both == expected
    _, states = job(2, 3).run(6)
    for world_size, batch_size, workers in ((1, 4, 0), (3, 2, 0), (4, 1, 2)):
        per_step = 12 // world_size // batch_size
        split = split_state(merge_states(states), world_size)
        rest, _ = job(world_size, batch_size, workers).run(4 * per_step, split)
        assert rest == {number: expected[number] for number in range(3, 7)}


def test_a_step_begins_again_where_it_is_dealt_in_another_way(folder: Path, reference: Packs) -> None:
    def job(balance: Any) -> Job:
        return Job(folder / "blend.yaml", 2, 12, 2, options={"balance": balance})

    first, states = job(BALANCES[0]).run(7)
    same, _ = job(BALANCES[0]).run(5, states)
    assert sorted(first[2] + same[2]) == reference[2]
    for balance in (None, BALANCES[1]):
        other, _ = job(balance).run(6, states)
        assert {number: other[number] for number in (2, 3)} == {number: reference[number] for number in (2, 3)}


@pytest.mark.parametrize("packs", [None, PlannedPacks(MAX_LENGTH, window=500)])
def test_ranks_have_equal_costs(folder: Path, packs: Any) -> None:
    def lengths(balance: Any) -> list[list[int]]:
        """Returns the tokens of each rank in each step."""
        found: list[list[int]] = []
        for rank in range(4):
            tokens = [0] * 6
            options = {"balance": balance, "packs": packs}
            with Job(folder / "blend.yaml", 4, 32, 2, options=options, encoder=Encoder()).loader(rank) as loader:
                for batch in take(loader, 24):
                    tokens[batch.step] += sum(int(text.split()[1]) for pack in batch.packs for text in pack)
            found.append(tokens)
        return found

    def waiting(found: list[list[int]]) -> float:
        return sum(1 - sum(step) / len(step) / max(step) for step in zip(*found, strict=True)) / 6

    balanced, plain = waiting(lengths(BALANCES[0])), waiting(lengths(None))
    # The last pack of a window is partly empty, and no dealing makes up for it.
    assert balanced < (0.02 if packs is None else 0.05)
    assert balanced < plain


def test_a_missing_sample_moves_no_other(folder: Path, reference: Packs) -> None:
    bad = frozenset({"a003", "a017", "b002", "b033", "a080"})
    packs = Job(folder / "blend.yaml", 2, 12, 2, encoder=Encoder(bad), options={"on_missing": "shrink"}).run(36)[0]

    def without(step: list[str]) -> list[str]:
        kept = [[text for text in pack.split(" | ") if text.split()[0] not in bad] for pack in step]
        return sorted(" | ".join(pack) for pack in kept if pack)

    assert packs == {number: without(step) for number, step in reference.items()}


def test_a_pack_that_fails_takes_one_spare(folder: Path, reference: Packs) -> None:
    bad = frozenset({"b002"})
    job = Job(folder / "blend.yaml", 2, 12, 2, encoder=Encoder(bad_packs=bad))
    packs = job.run(36)[0]
    for number, step in reference.items():
        whole = [pack for pack in step if "b002" not in pack]
        left = list(packs[number])
        for pack in whole:
            left.remove(pack)
        assert len(left) == len(step) - len(whole)
        assert all(len(pack.split(" | ")) == 1 for pack in left)


def test_a_spare_fits_into_a_pack(folder: Path) -> None:
    """Also where real lengths are not compared: those of the spares that the plan would pack."""

    class Single(Encoder):
        @ed.stateless(restore_seeds=True, failure_tolerance=0)
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            if len(samples) > 1:
                raise ValueError("a bad pack")
            return super().pack_selected_samples(samples)  # asserts the length

    packs = PlannedPacks(MAX_LENGTH, window=50, real_length=None)
    job = Job(folder / "blend.yaml", 1, 12, 12, encoder=Single(), options={"packs": packs})
    with job.loader(0) as loader:
        assert len(list(take(loader, 20))) == 20
        assert not any(kind.startswith("spare") for kind in loader.stats().failure_kinds if "Assertion" in kind)


def test_samples_that_are_too_long_are_in_no_pack_or_cut(folder: Path, reference: Packs) -> None:
    assert not any("a007" in pack for step in reference.values() for pack in step)

    class Cutting(Encoder):
        def cut_sample(self, sample: Any, length: int) -> Any:
            return {**sample, "length": length}

    packs = Job(folder / "blend.yaml", 1, 12, 12, encoder=Cutting()).run(REFERENCE)[0]
    assert any("a007" in pack for step in packs.values() for pack in step)


def test_a_sample_above_its_measure_is_dropped_with_the_reason(folder: Path) -> None:
    class Longer(Encoder):
        def encode_sample(self, sample: Any) -> Any:
            sample = super().encode_sample(sample)
            return {**sample, "length": sample["length"] + 1} if sample["__key__"] == "b003" else sample

    with Job(folder / "b", 1, 4, 2, encoder=Longer()).loader(0) as loader:
        texts = [text for batch in take(loader, 40) for pack in batch.packs for text in pack]
        failures = loader.stats().failures
    assert not any(text.startswith("b003") for text in texts)
    assert "were measured" in str(failures)
    assert "b003" in str(failures)


def test_samples_above_their_measures_end_the_job_only_if_many_follow_each_other(folder: Path) -> None:
    class Longer(Encoder):
        def __init__(self, ending: str) -> None:
            super().__init__()
            self.ending = ending

        def encode_sample(self, sample: Any) -> Any:
            sample = super().encode_sample(sample)
            return {**sample, "length": sample["length"] + sample["__key__"].endswith(self.ending)}

        @ed.stateless(failure_tolerance=5)
        def pack_selected_samples(self, samples: list[Any]) -> Any:
            return super().pack_selected_samples(samples)

    with Job(folder / "b", 1, 4, 2, encoder=Longer("3")).loader(0) as loader:
        for _ in take(loader, 40):
            pass
        failures = loader.stats().failures
    assert len(failures) > 5
    with (
        Job(folder / "b", 1, 4, 2, encoder=Longer("")).loader(0) as loader,
        pytest.raises(FatalSampleError, match="failed 5 times in a row"),
    ):
        next(iter(loader))


def test_a_job_may_begin_with_windows_without_packs(folder: Path) -> None:
    job = Job(folder / "a", 2, 2, 1, options={"packs": PlannedPacks(4, window=8)})
    with job.loader(1) as loader:
        states, packs = [loader.save_state_rank()], []
        for batch in take(loader, 5):
            packs.append(batch.packs)
            states.append(loader.save_state_rank())
    assert [states[0]["cursor"][name] for name in ("unit", "step", "packs")] == [8, 0, 0]
    for delivered, state in enumerate(states[:-1]):
        with job.loader(1) as loader:
            loader.restore_state_rank(state)
            assert [batch.packs for batch in take(loader, 1)] == [packs[delivered]]


def test_validation_packs_each_sample_once(folder: Path) -> None:
    for world_size in (1, 3, 5):
        keys = []
        counts = set()
        for rank in range(world_size):
            dataset = ed.get_val_dataset(
                folder / "blend.yaml",
                split_part="train",
                worker_config=ed.WorkerConfig(rank=rank, world_size=world_size, num_workers=0),
                batch_size=2,
                global_batch_size=10,
                task_encoder=Encoder(),
                packs=PlannedPacks(MAX_LENGTH, window=64),
            )
            with ed.get_savable_loader(dataset) as loader:
                batches = list(loader)
                counts.add(len(batches))
                assert len(loader) == len(batches)
            keys += [text.split()[0] for batch in batches if batch.num_units for pack in batch.packs for text in pack]
        assert len(counts) == 1
        long = {f"a{number:03d}" for number in range(7, 160, 40)}
        assert sorted(keys) == sorted(
            {f"a{number:03d}" for number in range(160)} - long | {f"b{number:03d}" for number in range(70)}
        )


def validation_loader(folder: Path) -> Any:
    """Returns a loader of planned packs that ends with the data."""
    dataset = ed.get_val_dataset(
        folder / "blend.yaml",
        split_part="train",
        worker_config=ed.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=2,
        global_batch_size=10,
        task_encoder=Encoder(),
        packs=PlannedPacks(MAX_LENGTH, window=64),
    )
    return ed.get_savable_loader(dataset)


def test_every_validation_has_the_same_batches(folder: Path) -> None:
    def keys(batch: Any) -> list[list[str]]:
        return [[text.split()[0] for text in pack] for pack in batch.packs]

    with validation_loader(folder) as loader:
        assert [keys(batch) for batch in loader] == [keys(batch) for batch in loader]


def test_later_validations_plan_no_earlier_one_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = [0]
    make = PackedUnits.make_window

    def make_window(self: PackedUnits, *arguments: Any, **options: Any) -> Any:
        windows[-1] += 1
        return make(self, *arguments, **options)

    monkeypatch.setattr(PackedUnits, "make_window", make_window)
    with validation_loader(folder) as loader:
        consumed = []
        for _ in range(8):
            for _ in loader:
                pass
            consumed.append(loader.consumed_samples)
            windows.append(0)
    assert windows[1:-1] == [4] * 7  # 230 samples in windows of 64
    assert consumed == [consumed[0] * number for number in range(1, 9)]


@pytest.mark.parametrize("weights", [None, [0.2, 0.8]])
@pytest.mark.parametrize("balance", [None, BALANCES[1]])
def test_a_checkpoint_says_which_samples_it_has_seen(
    folder: Path, weights: list[float] | None, balance: ed.Balance | None
) -> None:
    bad = frozenset({"b002", *(f"a{number:03d}" for number in range(2, 160, 3))})
    job = Job(folder / "blend.yaml", 2, 12, 2, encoder=Encoder(bad), options={"balance": balance})
    seen: Counter[str] = Counter()
    states = []
    for rank in range(2):
        with job.loader(rank) as loader:
            if weights is not None:
                loader.set_weights(weights, from_step=3)
            for batch in take(loader, 20):
                if batch.num_units:
                    seen.update(text.split()[0] for pack in batch.packs for text in pack)
            states.append(loader.save_state_rank())
            dataset = loader.dataset
    found = find_seen(dataset, states)
    assert not found.incomplete
    keys = {found.sources[one.source].reader.indexed(one.shard, one.index).key: one.seen for one in found if one.seen}
    assert keys == dict(seen)
    assert found.num_failed > 0


def test_a_job_starts_at_a_number_of_packs(folder: Path, reference: Packs) -> None:
    for size, number in ((12, 7), (6, 3)):
        with Job(folder / "blend.yaml", 1, size, size).loader(0) as loader:
            loader.start_at(number * size, step=number if size == 12 else None)
            batch = next(iter(loader))
            assert batch.step == number
            assert loader.consumed_samples == number * size + size
        if size == 12:
            assert sorted(" | ".join(sorted(pack)) for pack in batch.packs) == reference[number]
    with Job(folder / "blend.yaml", 1, 12, 12).loader(0) as loader, pytest.raises(ConfigError, match="36 or 48"):
        loader.start_at(40)


def test_steps_that_are_left_out_move_no_other(folder: Path, reference: Packs) -> None:
    with Job(folder / "blend.yaml", 1, 12, 12).loader(0) as loader:
        loader.skip_steps(2, 5)
        loader.skip_steps(7, 8)
        for number in (0, 1, 5, 6, 8, 9):
            batch = next(iter(loader)) if number == 0 else next(loader)
            assert batch.step == number
            assert sorted(" | ".join(sorted(pack)) for pack in batch.packs) == reference[number]


def test_losses_are_counted_by_dataset(folder: Path) -> None:
    with Job(folder / "blend.yaml", 1, 12, 3, encoder=Encoder(frozenset({"a003", "b002"}))).loader(0) as loader:
        batches = take(loader, 20)
        sums: Counter[str] = Counter()
        weights: Counter[str] = Counter()
        middle = loader.stats()
        for number, batch in enumerate(batches):
            texts = [text for pack in batch.packs for text in pack]
            lengths = [int(text.split()[1]) for text in texts]
            losses = torch.tensor(
                [1.0 if text[0] == "a" else length / 100 for text, length in zip(texts, lengths, strict=True)]
            )
            loader.report_losses(batch, losses, lengths)
            if number == 9:
                middle = loader.stats()
                sums.clear()
                weights.clear()
            else:
                for text, length, loss in zip(texts, lengths, losses.tolist(), strict=True):
                    sums[text[0]] += loss * length
                    weights[text[0]] += length
        found = loader.stats().since(middle).losses
        assert {name: row["loss"] for name, row in found.items()} == pytest.approx(
            {name: sums[name] / weights[name] for name in ("a", "b")}
        )
        assert found["a"]["loss"] == pytest.approx(1.0)
        assert found["b"]["weight"] == weights["b"]
        with pytest.raises(ConfigError, match=r"given 1 losses and 1 weights for a batch of \d+ samples"):
            loader.report_losses(batch, [1.0])
        with pytest.raises(ConfigError, match="without a __restore_key__"):
            loader.report_losses(object(), [1.0])


def test_a_plan_says_how_many_windows_it_counts(folder: Path) -> None:
    with Job(folder / "blend.yaml", 1, 12, 12).loader(0) as loader:
        dataset = loader.dataset
    plan = plan_steps(dataset, range(20, 21))
    counted = int(next(note for note in plan.notes if "windows of 50 samples" in note).split()[0])
    assert 10 < counted < 20  # with 17 or so packs each, for 252 packs


def test_shares_of_tokens_hold(folder: Path) -> None:
    empty = {"weight": 0, "path": str(folder / "a"), "subset": {"range": [0, 0]}}
    blend = {"blend": [{"weight": 1, "path": str(folder / "a")}, empty, {"weight": 1, "path": str(folder / "b")}]}
    data: Any = {"__class__": "MetadatasetV2", "splits": {"train": blend}}
    job = Job(data, 1, 12, 12, options={"blend_by": "tokens", "packs": PlannedPacks(MAX_LENGTH, window=500)})
    packs = job.run(120)[0]
    tokens: Counter[str] = Counter()
    for step in packs.values():
        for text in (text for pack in step for text in pack.split(" | ")):
            tokens[text[0]] += int(text.split()[1])
    assert 0.97 < tokens["a"] / tokens["b"] < 1.03


@pytest.mark.parametrize("options", [{"multiple": 50}, {"length": "text_tokens"}, {}])
def test_shares_of_tokens_are_those_of_packed_samples_without_padding(folder: Path, options: Any) -> None:
    data = folder / "blend.yaml"
    packs = PlannedPacks(MAX_LENGTH, window=50, **options)
    with Job(data, 1, 12, 12, options={"blend_by": "tokens", "packs": packs}).loader(0) as loader:
        sizes = loader.dataset.global_batches.units.sizes
    expected = []
    for name, count in (("a", 160), ("b", 70)):
        lengths = [length_of(name, number) for number in range(count)]
        expected.append(sum(length for length in lengths if length <= MAX_LENGTH) / count)
    assert sizes == pytest.approx(expected)


def test_weights_over_tokens_change_at_their_token(folder: Path) -> None:
    blend = [
        {"weight": {"step": {0: 1, 20_000: 0}, "over": "tokens"}, "path": str(folder / "a")},
        {"weight": {"step": {0: 0, 20_000: 1}, "over": "tokens"}, "path": str(folder / "b")},
    ]
    data: Any = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": blend}}}
    packs = Job(data, 1, 12, 12).run(40)[0]
    of_a = sum(
        int(text.split()[1]) for step in packs.values() for pack in step for text in pack.split(" | ") if text[0] == "a"
    )
    assert 19_000 < of_a < 21_000


def test_an_element_is_made_again_by_its_key(folder: Path) -> None:
    bad = frozenset({"a003", "b002"})
    with Job(folder / "blend.yaml", 2, 12, 2, encoder=Encoder(bad)).loader(1) as loader:
        dataset = loader.dataset
        for batch in take(loader, 12):
            again = dataset.restore_sample(json.loads(json.dumps(batch.__restore_key__)))
            assert again.packs == batch.packs


@pytest.mark.parametrize("packs", [None, PlannedPacks(MAX_LENGTH, window=50)])
def test_an_element_is_made_again_after_other_steps_and_weights(folder: Path, packs: Any) -> None:
    job = Job(folder / "blend.yaml", 1, 12, 3, options={"packs": packs})
    with job.loader(0) as loader:
        first = list(take(loader, 8))
        state = loader.save_state_rank()
    with Job(folder / "blend.yaml", 1, 6, 3, options={"packs": packs}).loader(0) as loader:
        loader.restore_state_rank(state)
        loader.set_weights([0.1, 0.9], from_step=3)
        later = list(take(loader, 12))
        for batch in (*first, *later):
            again = loader.restore_sample(batch.__restore_key__)
            assert again.packs == batch.packs


def test_the_command_line_shows_states(folder: Path, tmp_path: Path) -> None:
    _, states = Job(folder / "blend.yaml", 2, 12, 2, options={"balance": BALANCES[0]}).run(7)
    (tmp_path / "state.json").write_text(json.dumps(states[0]))
    done = CliRunner().invoke(main, ["checkpoint", "info", str(tmp_path / "state.json")])
    assert done.exit_code == 0, done.output
    assert "2 delivered, and 1 of 3 micro-batches of it" in done.output
    assert "12 packs per step, micro-batches of 2" in done.output
    assert "24 delivered, of up to 100 tokens, from windows of 50 samples" in done.output
    assert f"Balance:   {BALANCES[0]!r}" in done.output


def test_a_warning_says_that_many_samples_are_in_no_pack(folder: Path) -> None:
    def open_job(rank: int, encoder: Any = None) -> None:
        job = Job(folder / "a", 2, 12, 2, encoder=encoder, options={"packs": PlannedPacks(50, window=160)})
        job.loader(rank).close()

    count = sum(length_of("a", number) > 50 for number in range(160))
    message = rf"first 160 samples, {count} are in no pack.*: {count} are longer than max_length=50, and 0 could"
    with pytest.warns(UserWarning, match=message) as found:
        open_job(0)
    assert found[0].filename == inspect.getfile(GlobalJob)  # where get_train_dataset is called
    open_job(1)  # one rank says it

    class Cutting(Encoder):
        def cut_sample(self, sample: Any, length: int) -> Any:
            return {**sample, "length": length}

    open_job(0, Cutting())


def test_shares_of_tokens_need_samples_that_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"a": Values([MAX_LENGTH + 1] * 160, "a"), "b": Values([1] * 70, "b")}
    monkeypatch.setattr(
        "energon_dali.assembly.measured_plan.open_measures", lambda source, *_, **__: values[Path(source.name).name]
    )
    job = Job(folder / "blend.yaml", 1, 12, 12, options={"blend_by": "tokens"})
    with pytest.raises(ConfigError, match="a are longer than max_length=100, so that none is in a pack"):
        job.loader(0)


def test_options_that_cannot_work(folder: Path) -> None:
    class Selecting(Encoder):
        def select_samples_to_pack(self, samples: list[Any]) -> Any:
            return [samples]

    for options, encoder, message in (
        ({"packs": PlannedPacks(10), "packing_buffer_size": 10}, None, "packing_buffer_size"),
        ({"packs": 10}, None, "give energon_dali.PlannedPacks"),
        ({}, Selecting(), "select_samples_to_pack of Selecting"),
        ({}, ed.DefaultTaskEncoder(), "does not override"),
    ):
        with pytest.raises(ConfigError, match=message):
            Job(folder / "blend.yaml", 2, 12, 2, encoder=encoder, options=options).loader(0)
    with pytest.raises(ConfigError, match="global_batch_size"):
        ed.get_train_dataset(folder / "b", batch_size=2, task_encoder=Encoder(), packs=PlannedPacks(10))
    for options in ({"max_length": 0}, {"max_length": 10, "window": 0}, {"max_length": 10, "multiple": 20}):
        with pytest.raises(ConfigError, match=r"invalid|larger"):
            PlannedPacks(**options)


class Unchecked(Encoder):
    """Packs samples whatever their lengths are."""

    @ed.stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return {"__key__": samples[0]["__key__"], "texts": [sample["text"] for sample in samples]}


def test_weights_may_be_set_again_for_a_step_that_begins_with_a_window(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "energon_dali.assembly.measured_plan.open_measures",
        lambda source, *_, **__: Values([50] * {"a": 160, "b": 70}[Path(source.name).name], source.name),
    )
    options = {"packs": PlannedPacks(MAX_LENGTH, window=24, real_length=None)}
    job = Job(folder / "blend.yaml", 1, 12, 3, encoder=Unchecked(), options=options)

    def steps(loader: Any, count: int) -> list[str]:
        return [text.split()[0] for batch in take(loader, 4 * count) for pack in batch.packs for text in pack]

    with job.loader(0) as loader:
        found = steps(loader, 2)
        for step, weights in ((2, [0.1, 0.9]), (3, [0.9, 0.1]), (4, [0.5, 0.5])):
            loader.set_weights(weights, from_step=step)
            found += steps(loader, 1)
        found += steps(loader, 3)
        state = loader.save_state_rank()
        rest = steps(loader, 1)
    counts = Counter(found)
    for name, size in (("a", 160), ("b", 70)):  # each pass has every sample once
        of_one = [counts[f"{name}{number:03d}"] for number in range(size)]
        assert max(of_one) - min(of_one) <= 1
    with job.loader(0) as loader:
        loader.restore_state_rank(state)
        assert steps(loader, 1) == rest
