"""Many sources below one task encoder, drawn from by weight."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from energon_dali.datasets.arguments import check_number
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.sources.leaves import READ_AHEAD, LeavesDataset, LeavesIterator, source_of
from energon_dali.datasets.sources.share_feedback import FEEDBACK_DRAWS
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.errors import ConfigError, DatasetError
from energon_dali.plan import blend_draws, mix
from energon_dali.plan.blend import GROUP_DRAWS
from energon_dali.shards.documents.state_entries import count_of, list_of
from energon_dali.worker_config import WorkerConfig


class BlendSourceDataset(LeavesDataset):
    """Gives samples of many leaves, each in the share of its weight, for ever.

    Which leaf the k-th sample of a stream comes from is planned (`plan.blend_draws`); the leaf gives its next sample
    that can be read, cooked and is not skipped. In every stream each leaf has its share: a stream whose part of a small
    leaf is empty in one epoch goes on to the leaf's next epoch, in which its part is another, so that all streams see
    all samples of the leaf in turn.

    Args:
        leaves: Endless datasets: sources with repeat=True, or a cook stage around one.
        weights: One per leaf, finite and not negative. A leaf of weight 0 is never drawn.
        seed: Of the draws; None is that of the job.
        names: For statistics and messages; None are the paths of the leaves.
        worker_config: Left out, that of the leaves.

    Raises:
        ConfigError: The lists differ in length, weights cannot work, or a leaf ends.
        DatasetError: A leaf with a weight has no sample.
    """

    def __init__(
        self,
        leaves: Sequence[SavableDataset[Any]],
        weights: Sequence[float],
        *,
        seed: int | None = None,
        names: Sequence[str] | None = None,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(leaves, names=names, worker_config=worker_config)
        if len(weights) != len(self.leaves):
            raise ConfigError(f"{len(weights)} weights were given for {len(self.leaves)} datasets: give one for each.")
        self.weights = tuple(check_number("the weight", weight) for weight in weights)
        self.seed = self.worker_config.seed_offset if seed is None else seed
        blend_draws(self.weights, 0, 0, 0, 0)  # refuses weights that cannot work
        for leaf, weight, name in zip(self.leaves, self.weights, self.names, strict=True):
            source = source_of(leaf)
            if weight and source is not None:
                _check_endless(source.repeat, source.order.base.num_samples, source.name, name)

    def placed(self, number: int) -> BlendSourceDataset:
        twin = copy.copy(super().placed(number))
        twin.seed = mix(self.seed, number)
        return twin

    def describe(self) -> str:
        return f"BlendSourceDataset({len(self.leaves)} datasets)"

    def config(self) -> dict[str, Any]:
        return {**super().config(), "weights": list(self.weights), "seed": self.seed}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _BlendIterator(self, context)


def _check_endless(repeat: bool, num_samples: int, path: str, name: str) -> None:
    if not repeat:
        raise ConfigError(
            f"{path} ends after one epoch (repeat=False), and a blend by weight repeats its datasets for ever. Leave "
            "repeat=False out, or use blend_epochized in the metadataset."
        )
    if not num_samples:
        raise DatasetError(
            f"{name} ({path}) has a weight in the blend and no sample: its split part, or its subset, is empty. Give "
            "it the weight 0, leave it out, or choose another split part."
        )


class _BlendIterator(LeavesIterator):
    def __init__(self, dataset: BlendSourceDataset, context: StreamContext) -> None:
        super().__init__(dataset, context)
        self._weights = dataset.weights
        self._seed = dataset.seed
        self._feedback = context.feedback
        self._size = GROUP_DRAWS if context.feedback is None else FEEDBACK_DRAWS
        self._draw = 0
        self._window = -1
        self._draws: list[int] = []
        self._read_until = 0
        self._patience = dataset.worker_config.layout.num_streams + 1

    def __next__(self) -> Any:
        window, place = divmod(self._draw, self._size)
        if window != self._window:
            self._draws, self._window = self._plan(window), window
            self._read_until = place
        if place >= self._read_until:
            self._read_until = min(place + READ_AHEAD, self._size)
            self._read_ahead(self._draws[place : self._read_until])
        leaf = self._draws[place]
        self._draw += 1
        if self._feedback is not None:
            self._feedback.drew(leaf)
        for _ in range(self._patience):
            try:
                return self._take(leaf)
            except StopIteration:  # this stream's part of the epoch was empty, or is over
                continue
        raise DatasetError(
            f"{self._names[leaf]} gave no sample in {self._patience} epochs, and a blend needs one. Give it the weight "
            "0, or see why it is empty."
        )

    def _plan(self, window: int) -> list[int]:
        """Returns which leaf each draw of a window takes."""
        weights = self._weights if self._feedback is None else self._feedback.weights(window)
        return blend_draws(weights, self._seed, self._stream, window * self._size, self._size).tolist()  # type: ignore[no-any-return]

    def state_dict(self) -> State:
        state = {"draw": self._draw, "leaves": self._states.snapshot()}
        return state if self._feedback is None else {**state, "drawn": self._feedback.drawn()}

    def load_state_dict(self, state: State) -> None:
        draw = count_of(state, "draw")
        self._load_leaf_states(list_of(state, "leaves"))
        self._draw = draw
        if self._feedback is not None:
            self._feedback.load_drawn(state.get("drawn"))
