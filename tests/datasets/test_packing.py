from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.errors import ConfigError, DecodeError, FatalSampleError, SkipSample
from energon_dali.task_encoder.packing import PackingBuffer, PackSelection, SequencePacker
from tests.datasets.oracle import Counting, check_resume, config, silent, take


def length_of(sample: dict[str, Any]) -> int:
    """Lengths between 1 and 90, drawn from the number of the sample."""
    return random.Random(sample["number"]).randint(1, 90)


def numbers(samples: list[dict[str, Any]]) -> dict[str, Any]:
    return {"__restore_key__": (), "numbers": [sample["number"] for sample in samples]}


def in_two(samples: list[dict[str, Any]]) -> Any:
    yield {"__restore_key__": (), "numbers": [sample["number"] for sample in samples]}
    yield {"__restore_key__": (), "numbers": []}


def twice(sample: dict[str, Any]) -> Any:
    yield sample
    yield sample


def keep_odd(samples: list[dict[str, Any]]) -> PackSelection[dict[str, Any]]:
    """Packs the even numbers together, and the odd ones that waited once."""
    assert isinstance(samples, PackingBuffer)
    odd = [(sample, waited) for sample, waited in zip(samples, samples.rounds, strict=True) if sample["number"] % 2]
    return PackSelection(
        packs=[
            [sample for sample in samples if sample["number"] % 2 == 0],
            *([sample] for sample, waited in odd if waited),
        ],
        keep=[sample for sample, waited in odd if not waited],
    )


@pytest.mark.parametrize("final", [numbers, in_two])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("pre_packer", [keep_odd, SequencePacker(100, length=length_of, max_padding=0.02)])
@pytest.mark.parametrize("repeat", [False, True])
def test_kept_samples_resume_exactly(final: Any, streams: int, pre_packer: Any, repeat: bool) -> None:
    check_resume(
        lambda: PackingDataset(Counting(41, config(streams), repeat=repeat), 8, pre_packer, final, first=2),
        count=24,
        epochs=1 if repeat else 2,
    )


@pytest.mark.parametrize("max_padding", [0.02, 0.2])
def test_a_sample_that_a_hook_yields_twice_resumes_exactly(max_padding: float) -> None:
    def make() -> PackingDataset:
        samples = MapDataset(Counting(41, config(2), repeat=True), twice, stateless_map_fn=True)
        return PackingDataset(samples, 8, SequencePacker(100, length=length_of, max_padding=max_padding), numbers)

    check_resume(make, count=100)


@pytest.mark.parametrize("strategy", ["best_fit", "first_fit_decreasing"])
def test_every_sample_is_packed_once_per_epoch(strategy: Any) -> None:
    packer = SequencePacker(100, length=length_of, strategy=strategy, max_padding=0.0)
    tree = PackingDataset(Counting(103, config(2), repeat=False), 16, packer, numbers)
    for _ in range(2):  # the second epoch begins with an empty buffer
        packed = [number for pack in tree for number in pack["numbers"]]
        assert sorted(packed) == list(range(103))


@given(
    lengths=st.lists(st.integers(0, 60), max_size=60),
    strategy=st.sampled_from(["best_fit", "first_fit_decreasing"]),
    max_padding=st.floats(0, 1),
    max_samples=st.none() | st.integers(1, 5),
)
@settings(max_examples=150, deadline=None)
def test_packs_fit_and_lose_nothing(lengths: list[int], strategy: Any, max_padding: float, max_samples: Any) -> None:
    samples = list(enumerate(lengths))
    packer = SequencePacker(
        50, length=lambda sample: sample[1], strategy=strategy, max_padding=max_padding, max_samples=max_samples
    )
    chosen = packer(samples)
    seen = [sample for group in [*chosen.packs, *chosen.keep] for sample in group]
    refused = [sample for sample, _ in chosen.refused]
    assert sorted([*seen, *refused]) == samples
    assert refused == [sample for sample in samples if sample[1] > 50]
    for group in [*chosen.packs, *chosen.keep]:
        assert sum(length for _, length in group) <= 50
        assert max_samples is None or len(group) <= max_samples
    assert sum(map(len, chosen.keep)) <= len(samples) // 2


def test_first_fit_takes_the_first_pack_that_has_room() -> None:
    """By hand: 6 and 5 open packs, 4 joins 6, 3 joins 5, 2 joins 5 and 3; 9 is longer than a pack."""
    lengths = [2, 3, 4, 5, 6, 9 + 2]
    packer = SequencePacker(10, length=int, strategy="first_fit_decreasing", max_padding=0)
    chosen = packer(lengths)
    assert sorted(map(sorted, chosen.packs)) == [[2, 3, 5], [4, 6]]
    assert [sample for sample, _ in chosen.refused] == [11]
    assert SequencePacker(10, length=int, too_long="alone")(lengths).packs[-1] == [11]


def test_padding_stays_within_its_bound_if_the_data_allow_it() -> None:
    packer = SequencePacker(1000, length=lambda n: random.Random(n["number"]).randint(5, 400), max_padding=0.02)
    tree = PackingDataset(Counting(10_000, config(1), repeat=True), 200, packer, list)
    shares = [
        1 - sum(random.Random(sample["number"]).randint(5, 400) for sample in pack) / 1000 for pack in take(tree, 400)
    ]
    assert sum(share > 0.02 for share in shares) <= 4
    assert sum(shares) / len(shares) < 0.01


def test_a_sample_that_fits_nowhere_does_not_wait_indefinitely() -> None:
    """One sample of 60 among samples of 50: it never finds a partner, but leaves after max_rounds."""
    packer = SequencePacker(100, length=lambda s: 60 if s["number"] == 0 else 50, max_padding=0.0, max_rounds=3)
    tree = PackingDataset(Counting(1000, config(1), repeat=True), 10, packer, numbers)
    packs = take(tree, 40)
    assert [0] in [pack["numbers"] for pack in packs]


def test_a_sample_that_cannot_be_packed_is_counted_and_named() -> None:
    named: list[tuple[str, int]] = []

    def handler(error: Exception, sample: Any, sources: Any) -> None:
        named.append((str(error), sample["number"]))

    lengths = {1: 11, 5: -3, 9: "five", 10: None}
    packer = SequencePacker(10, length=lambda sample: lengths.get(sample["number"], 5))
    tree = PackingDataset(Counting(12, config(1, global_error_handler=handler)), 4, packer, numbers)
    assert sorted(number for pack in tree for number in pack["numbers"]) == [0, 2, 3, 4, 6, 7, 8, 11]
    assert [number for _, number in named] == [1, 5, 9, 10]
    assert "A sample of length 11 does not fit into a pack of 10" in named[0][0]
    assert "-3" in named[1][0]


def test_a_sample_of_unknown_length_does_not_drop_its_neighbours() -> None:
    errors = {2: DecodeError("no header"), 5: SkipSample(), 6: RuntimeError("six"), 7: FatalSampleError("seven")}

    def length(sample: dict[str, Any]) -> int:
        if sample["number"] in errors:
            raise errors[sample["number"]]
        return 5

    named: list[Exception] = []
    options = config(1, global_error_handler=lambda error, sample, sources: named.append(error))
    live = RankIterator(PackingDataset(Counting(12, options), 7, SequencePacker(10, length=length), numbers))
    assert [next(live)["numbers"] for _ in range(2)] == [[0, 1], [3, 4]]
    assert named == [errors[2], errors[6]]
    assert live.metrics.snapshot()["counts"]["samples.skipped"] == 1
    with pytest.raises(FatalSampleError, match="seven"):
        next(live)


def test_the_first_pack_needs_only_the_first_buffer() -> None:
    read: list[int] = []

    def count(samples: list[Any]) -> list[list[Any]]:
        read.append(len(samples))
        return [samples]

    take(PackingDataset(Counting(500, config(1), repeat=True), 64, count, numbers, first=4), 7)
    assert read == [4, 8, 16, 32, 64, 64, 64]


def test_a_packer_that_keeps_everything_is_an_error() -> None:
    tree = PackingDataset(Counting(50, config(1), repeat=True), 5, lambda s: PackSelection([], keep=list(s)), numbers)
    with pytest.raises(ConfigError, match="keeps all 5 samples"):
        take(tree, 1)


def test_a_packer_that_packs_nothing_ends_the_run() -> None:
    tree = PackingDataset(Counting(50, config(1), repeat=True), 5, lambda s: PackSelection([], keep=s[:1]), numbers)
    with pytest.raises(FatalSampleError, match="chose nothing in 100 rounds"):
        take(tree, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_length": 0}, "max_length=0"),
        ({"length": None}, "length=None"),
        ({"strategy": "worst"}, "best_fit, first_fit_decreasing"),
        ({"max_padding": 1.5}, "0 to 1"),
        ({"max_samples": 0}, "max_samples=0"),
        ({"too_long": "cut"}, "refuse"),
    ],
)
def test_invalid_arguments_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        SequencePacker(**{"max_length": 10, "length": len, **options})


def test_the_encoder_of_a_pack_returns_one_sample() -> None:
    with pytest.raises(ConfigError, match=r"sample_encoder=.* is a generator function"):
        PackingDataset(Counting(5, config(1)), 4, keep_odd, numbers, sample_encoder=twice)


def fail(samples: Any) -> Any:
    raise ValueError("cannot")


@pytest.mark.parametrize("place", ["pre_packer", "sample_encoder", "final_packer"])
def test_each_hook_has_its_own_failure_tolerance(place: str) -> None:
    hooks: dict[str, Any] = {"pre_packer": lambda samples: [samples], "sample_encoder": None, "final_packer": numbers}
    tolerances: dict[str, Any] = {f"{name}_failure_tolerance": 3 if name == place else 1 for name in hooks}
    source = Counting(100, config(1, global_error_handler=silent), repeat=True)
    tree = PackingDataset(source, 2, **{**hooks, place: fail}, **tolerances)
    with pytest.raises(FatalSampleError, match="failed 3 times in a row"):
        take(tree, 1)
