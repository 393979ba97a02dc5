"""Where a tree of datasets is cut between workers and rank."""

from __future__ import annotations

import copy
from typing import Any

from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.decode_stage import DecodeDataset
from energon_dali.datasets.hand_over import HandOverDataset
from energon_dali.datasets.wrappers.epochize import EpochizeDataset


def find_hand_over(dataset: SavableDataset[Any]) -> HandOverDataset | None:
    """Returns the hand-over of a tree; None if it has none."""
    if isinstance(dataset, HandOverDataset):
        return dataset
    for child in dataset.children:
        found = find_hand_over(child)
        if found is not None:
            return found
    return None


def reads_in_rank(dataset: SavableDataset[Any]) -> bool:
    """Returns whether a tree reads its shards in the rank's process, so that no workers are needed."""
    return dataset.reads_in_rank or any(reads_in_rank(child) for child in dataset.children)


def with_hand_over(dataset: SavableDataset[Any]) -> SavableDataset[Any]:
    """Returns a tree with a hand-over: itself, or one whose workers run everything but the ends of epochs."""
    if find_hand_over(dataset) is not None or reads_in_rank(dataset):
        return dataset
    if isinstance(dataset, EpochizeDataset):
        outer = copy.copy(dataset)
        outer.dataset = with_hand_over(dataset.dataset)
        return outer
    return DecodeDataset(HandOverDataset(dataset, block_size=1), None)


def rank_has_work(dataset: SavableDataset[Any]) -> bool:
    """Returns whether the rank does more with the elements that workers hand over than to give them to the trainer."""
    if isinstance(dataset, HandOverDataset):
        return False
    if isinstance(dataset, EpochizeDataset):
        return rank_has_work(dataset.dataset)
    return not (isinstance(dataset, DecodeDataset) and dataset.decoder is None)
