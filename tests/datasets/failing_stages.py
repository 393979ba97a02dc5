"""Stages over numbered elements that fail where a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count
from typing import Any

from energon_dali import DaliDecoder
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import BatchDataset
from energon_dali.datasets.grouping.group_batch import GroupBatchDataset
from energon_dali.datasets.grouping.packing import PackingDataset
from energon_dali.datasets.worker_border import DecodeDataset, WorkerBorder
from energon_dali.datasets.wrappers.filter import FilterDataset
from energon_dali.datasets.wrappers.iter_map import IterMapDataset
from energon_dali.datasets.wrappers.map import MapDataset
from energon_dali.decode import DecodeFailure, MediaHandle
from energon_dali.decode.interface import Decoded, Outcome
from tests.datasets.oracle import Counting, config, silent

TOTAL = 40
"""Elements of an epoch."""


class Check:
    """A hook of one argument, which it returns unless it fails.

    Args:
        when: Whether call n fails, from 0 on.
        error: What it raises.
    """

    def __init__(self, when: Callable[[int], bool], error: BaseException | None = None) -> None:
        self.when = when
        self.error = error or ValueError("bad")
        self.calls = count()

    def fails(self) -> bool:
        return self.when(next(self.calls))

    def __call__(self, argument: Any) -> Any:
        if self.fails():
            raise self.error
        return argument

    def generate(self, argument: Any) -> Iterator[Any]:
        yield self(argument)

    def map_all(self, elements: Iterator[Any]) -> Iterator[Any]:
        for element in elements:
            yield self(element)

    def group_of(self, element: Any) -> tuple[str, None]:
        return self(element)["__key__"], None

    def measure(self, element: Any) -> int:
        self(element)
        return 1


class Failing(DaliDecoder):
    """Decodes nothing, and fails as a check says."""

    def __init__(self, check: Check) -> None:
        super().__init__(image_decode_device="cpu")
        self.check = check

    def decode_block(self, handles: Any) -> list[Outcome]:
        bad = DecodeFailure("bad", "jpeg", "pil")
        return [bad if self.check.fails() else Decoded("decoded", "pil") for _ in handles]

    def start_block(self, handles: Any) -> Future[list[Outcome]]:
        future: Future[list[Outcome]] = Future()
        future.set_result(self.decode_block(handles))
        return future


def numbers() -> Counting:
    return Counting(TOTAL, config(1, global_error_handler=silent))


def images() -> SavableDataset[Any]:
    spec: Any = None
    return MapDataset(numbers(), lambda one: {**one, "image": MediaHandle("jpg", b"", "jpeg", 1, 1, spec)})


def packing(dataset: SavableDataset[Any], **options: Any) -> PackingDataset:
    passing: dict[str, Any] = {"pre_packer": lambda samples: [samples], "final_packer": lambda group: group[0]}
    return PackingDataset(dataset, 1, **{**passing, **options})


Stages = dict[str, Callable[[Check], SavableDataset[Any]]]

HOOKS: Stages = {
    "function": lambda check: MapDataset(numbers(), check),
    "generator": lambda check: MapDataset(numbers(), check.generate),
    "batch": lambda check: BatchDataset(numbers(), 1, check),
    "batch_group_criterion": lambda check: GroupBatchDataset(numbers(), 1, check.group_of, list),
    "select_samples_to_pack": lambda check: packing(numbers(), pre_packer=lambda samples: [check(samples)]),
    "postencode_sample": lambda check: packing(numbers(), sample_encoder=check),
    "pack_selected_samples": lambda check: packing(numbers(), final_packer=check),
    "filter": lambda check: FilterDataset(numbers(), filter_fn=check),
    "map of the iterator": lambda check: IterMapDataset(numbers(), check.map_all),
}
"""What runs a function of the user, one element at a time."""

DECODERS: Stages = {
    "decode": lambda check: WorkerBorder(images(), Failing(check), block_size=4),
    "late decode": lambda check: DecodeDataset(images(), Failing(check)),
    "decode for packs": lambda check: packing(images(), decoder=Failing(check)),
}
"""What decodes."""
