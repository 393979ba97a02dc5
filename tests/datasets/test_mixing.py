"""Datasets over several others: proportions, orders, states, and batches made of batches."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.mixing.blend import BlendDataset, MixBatchDataset
from energon_dali.datasets.mixing.concatenation import concat_pad, generic_concat, homogeneous_concat_mix
from energon_dali.datasets.mixing.mixture_dataset import ConcatDataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.datasets.wrappers.epochize import EpochizeDataset, LimitDataset
from energon_dali.datasets.wrappers.filter import FilterDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.datasets.wrappers.repeat import RepeatDataset
from energon_dali.datasets.wrappers.shuffle_buffer import ShuffleBufferDataset
from energon_dali.errors import ConfigError, FatalSampleError, StateError
from energon_dali.samples import Batch, SourceInfo, edataclass
from energon_dali.task_encoder.stateless import stateless
from tests.datasets.oracle import Counting, check_resume, config, silent, take
from tests.datasets.test_resume import as_batch, as_many_as_number_mod_3, bordered, by_parity, double, pairs, square
from tests.part import sampled


class Named(Counting):
    """Numbers whose keys begin with a name."""

    def __init__(self, name: str, total: int, streams: int, *, repeat: bool = False) -> None:
        super().__init__(total, config(streams, global_error_handler=silent), repeat=repeat)
        self.name = name

    def make(self, number: int) -> dict[str, Any]:
        return {**super().make(number), "name": self.name}


def a(streams: int, total: int = 17, repeat: bool = False) -> Named:
    return Named("a", total, streams, repeat=repeat)


def b(streams: int, total: int = 9, repeat: bool = False) -> Named:
    return Named("b", total, streams, repeat=repeat)


def c(streams: int, total: int = 2, repeat: bool = False) -> Named:
    return Named("c", total, streams, repeat=repeat)


def in_twos(batch: list[Any]) -> Any:
    for start in range(0, len(batch), 2):
        yield {"__restore_key__": (), "pair": batch[start : start + 2]}


TREES = {
    "blend": lambda s: BlendDataset((a(s), 2), (b(s), 1), (c(s), 0.5)),
    "blend of blends": lambda s: BlendDataset(
        (BlendDataset((a(s), 0.2), (MapDataset(b(s), as_many_as_number_mod_3), 0.8)), 1),
        (BlendDataset((MapDataset(a(s), square), 1), (c(s), 1)), 2),
    ),
    "blend, finite and endless": lambda s: EpochizeDataset(BlendDataset((a(s, 5), 1), (b(s, repeat=True), 1)), 13),
    "concat": lambda s: ConcatDataset(a(s), c(s, 0), BatchDataset(b(s), 2, as_batch), c(s)),
    "concat of limits": lambda s: ConcatDataset(LimitDataset(a(s), 4), EpochizeDataset(b(s), 4), c(s)),
    "limit of a concat of limits": lambda s: LimitDataset(ConcatDataset(LimitDataset(a(s), 4), b(s)), 9),
    "mix": lambda s: MixBatchDataset((MapDataset(a(s), square), 3), (b(s), 1), batch_size=4),
    "mix by a generator": lambda s: MixBatchDataset((a(s), 1), (b(s), 1), batch_size=5, batch_mix_fn=in_twos),
    "repeats in a blend": lambda s: BlendDataset(
        (RepeatDataset(a(s), repeats=1.5), 1), (RepeatDataset(b(s), repeats=3), 1)
    ),
    "groups of a blend": lambda s: GroupBatchDataset(BlendDataset((a(s), 1), (b(s), 1)), 3, by_parity, as_batch),
    "packs of a blend": lambda s: PackingDataset(
        BlendDataset((a(s), 1), (MapDataset(b(s), as_many_as_number_mod_3, stateless_map_fn=True), 1)),
        6,
        pairs,
        as_batch,
        sample_encoder=double,
    ),
    "handed over one by one": lambda s: BlendDataset(
        (bordered(MapDataset(a(s), square)), 1), (BatchDataset(bordered(b(s)), 2, as_batch), 1)
    ),
    "everything": lambda s: LimitDataset(
        ShuffleBufferDataset(
            BlendDataset(
                (FilterDataset(ConcatDataset(a(s), b(s)), filter_fn=lambda x: x["number"] % 4 != 1), 2),
                (BlendDataset((bordered(RepeatDataset(c(s, 5), repeats=2)), 1), (MapDataset(b(s), square), 1)), 3),
            ),
            5,
            first=2,
        ),
        30,
    ),
}


@pytest.mark.parametrize("streams", [1, 2])
@pytest.mark.parametrize("name", sampled(TREES, 2))
def test_a_restore_at_any_element_continues_exactly(name: str, streams: int) -> None:
    check_resume(lambda: TREES[name](streams), count=150, epochs=3)


@pytest.mark.parametrize("name", ["blend", "blend of blends", "concat of limits", "mix", "repeats in a blend"])
def test_every_element_can_be_made_again(name: str) -> None:
    def stateless(dataset: SavableDataset[Any]) -> None:
        for child in dataset.children:
            if isinstance(child, MapDataset):
                child.stateless_map_fn = True
            stateless(child)

    tree = TREES[name](2)
    stateless(tree)
    assert tree.can_restore_sample()
    for element in take(tree, 40):
        key = element[0]["__restore_key__"] if isinstance(element, list) else element["__restore_key__"]
        owner = tree.dataset if isinstance(tree, MixBatchDataset) else tree
        assert owner.restore_sample(key) == (element[0] if isinstance(element, list) else element)


def test_a_blend_keeps_its_weights_and_ends_when_all_have_ended() -> None:
    endless = BlendDataset((a(2, repeat=True), 60), (b(2, repeat=True), 30), (c(2, repeat=True), 10))
    for start in (0, 1):
        names = Counter(sample["name"] for sample in take(endless, 4000)[start::2])
        for name, share in (("a", 0.6), ("b", 0.3), ("c", 0.1)):
            assert abs(names[name] - 2000 * share) <= 3 * (2000 * share * (1 - share)) ** 0.5
    live = RankIterator(BlendDataset((a(1), 1), (b(1), 100), (c(1), 0)))
    for _ in range(2):
        names = Counter(sample["name"] for sample in live)
        assert names == {"a": 17, "b": 9}


def test_draws_are_counted() -> None:
    live = RankIterator(BlendDataset((a(1), 1), (BlendDataset((b(1), 1), (c(1), 1)), 1)))
    assert len(list(live)) == 28
    counts = live.metrics.snapshot()["counts"]
    assert counts == {"blend.samples.0": 17, "blend.samples.1": 11, "blend.samples.1/0": 9, "blend.samples.1/1": 2}


def test_each_stream_position_and_epoch_draws_differently() -> None:
    def drawn(dataset: SavableDataset[Any], epochs: int = 1) -> list[str]:
        return [sample["name"] for sample in take(dataset, 400, epochs)]

    def pair() -> SavableDataset[Any]:
        return BlendDataset((a(1, repeat=True), 1), (b(1, repeat=True), 1))

    one = drawn(pair())
    assert one == drawn(pair())
    two = drawn(BlendDataset((a(2, repeat=True), 1), (b(2, repeat=True), 1)))
    assert two[::2] != two[1::2]
    nested = take(BlendDataset((pair(), 1), (pair(), 1)), 400)
    first, second = ([s["name"] for s in nested if s["__restore_key__"][1] == number][:100] for number in (0, 1))
    assert len({tuple(first), tuple(second), tuple(one[:100])}) == 3
    epochs = drawn(BlendDataset((a(1), 1), (a(1), 1)), 2), drawn(BlendDataset((a(1), 1), (b(1), 1)), 2)
    assert epochs[1][:26] != epochs[1][26:]


@stateless(restore_seeds=True)
def with_luck(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "luck": random.random()}


def test_hooks_at_two_positions_draw_different_numbers_and_the_same_again() -> None:
    tree = ConcatDataset(*(MapDataset(c(1, 5), with_luck, stateless_map_fn=True) for _ in range(2)))
    samples = take(tree, 10)
    assert len({sample["luck"] for sample in samples}) == 10
    for sample in samples:
        assert tree.restore_sample(sample["__restore_key__"]) == sample


def test_hooks_at_nested_positions_draw_different_numbers() -> None:
    def member() -> SavableDataset[Any]:
        return MapDataset(c(1, 5), with_luck, stateless_map_fn=True)

    tree = ConcatDataset(*(ConcatDataset(member(), member()) for _ in range(2)))
    assert len({sample["luck"] for sample in take(tree, 20)}) == 20


def test_concatenated_streams_take_one_dataset_after_the_other() -> None:
    live = RankIterator(ConcatDataset(a(2, 5), c(2, 0), b(2, 4)))
    for _ in range(2):
        got = [(sample["name"], sample["number"]) for sample in live]
        assert got[::2][:3] == [("a", 0), ("a", 2), ("a", 4)]
        assert sorted(got) == [("a", n) for n in range(5)] + [("b", n) for n in range(4)]


def test_a_state_of_a_large_blend_is_small_and_asks_only_members_that_moved() -> None:
    def make() -> SavableDataset[Any]:
        return BlendDataset(*((a(4, 1000, repeat=True), 1) for _ in range(100)))

    live = RankIterator(make())
    for _ in range(50):
        next(live)
    state = live.state_dict()
    assert len(json.dumps(state)) < 8 * 1024
    with pytest.raises(StateError, match="The state is of 100 datasets, and 2 are mixed here"):
        RankIterator(BlendDataset((a(4), 1), (b(4), 1))).load_state_dict(state)


def test_what_cannot_be_blended_is_refused_with_a_reason() -> None:
    for wrong, words in (
        ((), "no dataset"),
        ((a(1),), "a Named without a weight"),
        (((a(1), "heavy"),), "weight 'heavy'"),
        (((a(1), -1),), "weight -1"),
        (((a(1), "1"),), "weight '1'"),
        (((a(1), True),), "weight True"),
        (((a(1), float("nan")),), "finite"),
        (((a(1), 0), (b(1), 0)), "at least one must be positive"),
        ((("a path", 1),), "'a path', which is not a dataset"),
        (((a(1), 1), (b(2), 1)), "share one WorkerConfig"),
    ):
        with pytest.raises(ConfigError, match=words):
            BlendDataset(*wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="share one WorkerConfig"):
        ConcatDataset(a(1), b(1), worker_config=config(2))
    with pytest.raises(StateError, match="names member 5, and this BlendDataset has 1"):
        BlendDataset((a(1), 1)).restore_sample(("BlendDataset", 5, "Counting", 0))


@edataclass
class Pictures(Batch):
    image: torch.Tensor
    caption: list[str]
    sizes: dict[str, torch.Tensor]
    note: Any = None


def pictures(number: int, height: int) -> Pictures:
    source = SourceInfo(dataset_path="d", index=number, shard_name="s", file_names=())
    return Pictures(
        __key__=[f"k{number}"],
        __restore_key__=(number,),
        __sources__=(source,),
        image=torch.full((1, 3, height, 2), number),
        caption=[f"picture {number}"],
        sizes={"h": torch.tensor([height])},
    )


class Pair(NamedTuple):
    left: torch.Tensor
    right: str


def test_batches_of_one_type_become_one_batch() -> None:
    mixed = homogeneous_concat_mix([pictures(1, 4), pictures(2, 6), pictures(3, 5)])
    assert isinstance(mixed, Pictures)
    assert mixed.image.shape == (3, 3, 6, 2)
    assert mixed.image.sum(dim=(1, 2, 3)).tolist() == [4 * 6, 2 * 6 * 6, 3 * 5 * 6]
    assert mixed.caption == ["picture 1", "picture 2", "picture 3"]
    assert mixed.__key__ == ["k1", "k2", "k3"]
    assert [source.index for source in mixed.__sources__ or ()] == [1, 2, 3]
    assert mixed.sizes["h"].tolist() == [4, 6, 5]
    assert mixed.note is None
    assert mixed.__subflavors__ is None
    assert generic_concat([Pair(torch.ones(2), "x"), Pair(torch.zeros(1), "y")])[1] == ["x", "y"]
    with pytest.raises(FatalSampleError, match="types Pictures, dict"):
        homogeneous_concat_mix([pictures(1, 4), {}])


def test_tensors_are_padded_and_concatenated() -> None:
    whole = concat_pad([torch.ones(2, 3, dtype=torch.uint8), 2 * torch.ones(1, 5)])
    assert whole.dtype == torch.float32
    assert whole.tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 0, 0], [2, 2, 2, 2, 2]]
    assert concat_pad([torch.ones(2, 3), torch.zeros(1, 3)]).tolist() == [[1] * 3, [1] * 3, [0] * 3]
    for wrong in ([], [torch.ones(2), torch.ones(2, 2)], [torch.tensor(1.0), torch.tensor(2.0)]):
        with pytest.raises(ConfigError, match="same number of dimensions"):
            concat_pad(wrong)


def test_a_mixed_batch_holds_its_datasets_by_weight_and_can_be_made_again() -> None:
    def one(batch: list[Any]) -> Any:
        return {"__restore_key__": (), "__key__": [batch[0]["name"]], "value": torch.tensor([batch[0]["number"]])}

    def single(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
        return BatchDataset(dataset, 1, one, batcher_stateless=True)

    tree = MixBatchDataset(
        (single(a(2, repeat=True)), 6),
        (single(b(2, repeat=True)), 4),
        batch_size=32,
        batch_mix_fn=homogeneous_concat_mix,
    )
    batches = take(tree, 20)
    names = Counter(name for batch in batches for name in batch["__key__"])
    assert abs(names["a"] - 0.6 * 640) < 3 * (640 * 0.24) ** 0.5
    assert all(len(batch["value"]) == 32 for batch in batches)
    again = tree.restore_sample(batches[7]["__restore_key__"])
    assert again["__key__"] == batches[7]["__key__"]
    assert torch.equal(again["value"], batches[7]["value"])
