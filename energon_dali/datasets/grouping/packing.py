"""Packs several samples into one: fills a buffer, lets a packer choose groups, and makes one element of each group."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.datasets.arguments import check_count, check_function
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.grouping.batch import GroupingDataset, GroupingIterator
from energon_dali.datasets.hooks import DEFAULT_FAILURE_TOLERANCE, FailurePolicy, check_result
from energon_dali.datasets.restore_key import expect_name, key_to_json, restore_groups
from energon_dali.datasets.stream import State, StreamContext, StreamIterator
from energon_dali.datasets.worker_border import decode_elements
from energon_dali.decode import Decoder
from energon_dali.errors import ConfigError, DatasetError, DecodeError, FatalSampleError
from energon_dali.samples.base import Key, get_restore_key
from energon_dali.shards.documents.state_entries import (
    Rest,
    Snapshot,
    checked_count,
    count_of,
    flag_of,
    keys_of,
    state_of,
)
from energon_dali.task_encoder.context import sample_context
from energon_dali.task_encoder.packing import PackingBuffer, PackSelection
from energon_dali.worker_config import WorkerConfig

EMPTY_ROUNDS = 100
"""Rounds in a row in which the packer may choose nothing."""

Keyed = tuple[Key, Any]
"""A sample with its restore key."""

_GROUPS_WANTED = (
    "Return a list of groups, each a list of samples of the buffer (the very objects, or copies with their "
    "__restore_key__), or a PackSelection; a sample in no group is dropped."
)


class PackingDataset(GroupingDataset):
    """Fills a buffer, lets `pre_packer` choose groups from it, and yields `final_packer(group)` for each group.

    A sample in no group is dropped, unless the packer returns a PackSelection that keeps it for the next buffer. With a
    sample encoder (and a decoder), only the chosen samples are decoded and encoded, so the buffer holds encoded media.

    Args:
        dataset: The dataset below.
        buffer_size: Samples in the buffer, at least 1.
        pre_packer: Returns lists of samples, or a PackSelection, from the list of all samples in the buffer.
        final_packer: Makes one element of a group; a generator function may yield none or several.
        final_packer_stateless: Whether its result depends on its argument (and its seeds) alone.
        sample_encoder: Applied to every chosen sample, or None.
        sample_encoder_stateless: The same for the sample encoder.
        decoder: Decodes the media handles of the chosen samples before the sample encoder; None decodes nothing.
        first: Samples in the buffer of the first round, to start sooner; each round doubles it up to `buffer_size`.
        packer_config: Plain values that describe the packer.
        pre_packer_failure_tolerance: Consecutive failures of the packer after which FatalSampleError is raised; 0 is
            unlimited.
        final_packer_failure_tolerance: The same for the final packer.
        sample_encoder_failure_tolerance: The same for the sample encoder.
        worker_config: Default: that of the dataset below.

    Raises:
        ConfigError: A size is out of range, or a function is not callable.
    """

    hook_name = "final_packer"

    @explain_call
    def __init__(
        self,
        dataset: SavableDataset[Any],
        buffer_size: int,
        pre_packer: Callable[[list[Any]], list[list[Any]] | PackSelection[Any]],
        final_packer: Callable[[list[Any]], Any],
        *,
        final_packer_stateless: bool = False,
        sample_encoder: Callable[[Any], Any] | None = None,
        sample_encoder_stateless: bool = False,
        decoder: Decoder | None = None,
        first: int | None = None,
        packer_config: dict[str, Any] | None = None,
        pre_packer_failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        final_packer_failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        sample_encoder_failure_tolerance: int = DEFAULT_FAILURE_TOLERANCE,
        worker_config: WorkerConfig | None = None,
    ) -> None:
        super().__init__(
            dataset,
            final_packer,
            hook_stateless=final_packer_stateless,
            failure_tolerance=final_packer_failure_tolerance,
            worker_config=worker_config,
        )
        check_function("pre_packer", pre_packer, "from the list of samples in the buffer to lists of them")
        if sample_encoder is not None:
            check_function("sample_encoder", sample_encoder, "from a sample to a sample", may_yield=False)
        self.first, self.buffer_size = first, check_count("packing_buffer_size", buffer_size, "leave it out for none")
        advice = f"give a number up to packing_buffer_size={buffer_size}, or None for the full buffer"
        if first is not None and check_count("packing_first_buffer_size", first, advice) > buffer_size:
            raise ConfigError(f"packing_first_buffer_size={first} is invalid: {advice}.")
        self.pre_packer = pre_packer
        self.pre_packer_failure_tolerance = pre_packer_failure_tolerance
        self.sample_encoder = sample_encoder
        self.sample_encoder_failure_tolerance = sample_encoder_failure_tolerance
        self.sample_encoder_stateless = sample_encoder_stateless or sample_encoder is None
        self.decoder = decoder
        self.packer_config = packer_config

    @property
    def runs_in_rank(self) -> bool:  # type: ignore[override]
        """Whether it decodes the chosen samples on a device."""
        return self.decoder is not None and self.decoder.placement == "rank"

    def describe(self) -> str:
        return f"PackingDataset(buffer_size={self.buffer_size})"

    @property
    def options(self) -> dict[str, Any]:
        return {"buffer_size": self.buffer_size, "first": self.first, "packer": self.packer_config}

    def open(self, context: StreamContext) -> StreamIterator[Any]:
        return _PackingIterator(self, context)

    def can_restore_sample(self) -> bool:
        return self.sample_encoder_stateless and super().can_restore_sample()

    def restore_part(self, key: Key) -> Any:
        """Returns the encoded sample of a key ("encode", index, *inner key).

        Raises:
            StateError: The key is not of the dataset below.
            DecodeError: The sample cannot be decoded.
        """
        _, index, *inner = key
        sample = self.dataset.restore_sample(tuple(inner))
        if self.decoder is not None:
            (sample,) = decode_elements(self.decoder, [sample], strict=True)
        if self.sample_encoder is None:
            return sample
        with sample_context(index, self.hook_seed):
            return self.sample_encoder(sample)


class _PackingIterator(GroupingIterator):
    def __init__(self, dataset: PackingDataset, context: StreamContext) -> None:
        super().__init__(dataset, "pack_selected_samples", context)
        self._dataset = dataset
        config = dataset.worker_config
        self._select_policy = FailurePolicy(
            "select_samples_to_pack", dataset.pre_packer_failure_tolerance, context, config
        )
        self._refuse_policy = FailurePolicy("select_samples_to_pack", 0, context, config)
        self._encode_policy = FailurePolicy(
            "postencode_sample", dataset.sample_encoder_failure_tolerance, context, config
        )
        self._decode_policy = FailurePolicy("decode", DEFAULT_FAILURE_TOLERANCE, context, config)
        self._stream = context.stream
        self._num_streams = config.layout.num_streams
        self._seed = dataset.hook_seed
        self._packs: deque[list[Keyed]] = deque()
        self._kept: list[tuple[int, list[Keyed]]] = []  # (rounds that it was kept, group), for the next buffer
        self._encoded = 0
        self._rounds = self._empty_rounds = 0
        self._ended = False
        self._note_round()

    def _note_round(self) -> None:
        """Notes the keys of what a round chose, to which every state until the next round refers."""
        self._chosen = Snapshot([[key for key, _ in group] for group in self._packs])
        self._waiting = Snapshot([[waited, *(key for key, _ in group)] for waited, group in self._kept])

    def _collect(self) -> tuple[list[Any], list[Key]]:
        while not self._packs:
            try:
                self._select(*self._fill())
            finally:
                self._note_round()
        return self._encode(self._packs.popleft())

    def _fill(self) -> tuple[PackingBuffer[Any], list[Key]]:
        """Returns the samples of one buffer and their keys; raises StopIteration at the end of an epoch."""
        if self._ended:
            self._ended = False
            raise StopIteration
        keys = [key for _, group in self._kept for key, _ in group]
        samples = [sample for _, group in self._kept for _, sample in group]
        rounds = [waited for waited, group in self._kept for _ in group]
        size = self._dataset.buffer_size
        if (first := self._dataset.first) is not None and self._rounds < size.bit_length():
            size = min(size, first << self._rounds)
        present = set(map(id, samples))
        while len(samples) < size:
            try:
                sample = next(self._inner)
            except StopIteration:
                if not samples:
                    raise
                self._ended = True
                break
            keys.append(self._inner.last_key(sample))
            samples.append(distinct(sample, present))
        self._kept = []
        return PackingBuffer(samples, rounds + [0] * (len(samples) - len(rounds))), keys

    def _select(self, buffer: PackingBuffer[Any], buffer_keys: list[Key]) -> None:
        """Lets the packer choose groups from the buffer."""
        keys = dict(zip(map(id, buffer), buffer_keys, strict=True))
        index = self._rounds * self._num_streams + self._stream
        self._rounds += 1
        try:
            with sample_context(index, self._seed):
                chosen = read_selection(self._dataset.pre_packer(buffer), keys)
        except ConfigError:
            raise
        except Exception as error:
            self._select_policy.on_failure(error, buffer)
            return
        self._select_policy.on_success()
        for (_, sample), reason in chosen.refused:
            self._refuse_policy.on_failure(DatasetError(reason) if isinstance(reason, str) else reason, sample)
        self._packs.extend(chosen.packs)
        self._keep(chosen, buffer, buffer_keys)
        self._empty_rounds = 0 if self._packs else self._empty_rounds + 1
        if self._empty_rounds >= EMPTY_ROUNDS:
            raise FatalSampleError(
                f"select_samples_to_pack chose nothing in {EMPTY_ROUNDS} rounds of up to {len(buffer)} samples. It "
                "must return lists of samples to pack together; a list with a single sample is allowed."
            )

    def _keep(self, chosen: PackSelection[Keyed], buffer: PackingBuffer[Any], keys: list[Key]) -> None:
        """Puts what the packer keeps at the beginning of the next buffer, or packs it if no buffer follows.

        Raises:
            ConfigError: It packs nothing and keeps so much that no further sample fits into the buffer.
        """
        groups: list[list[Keyed]] = chosen.keep  # type: ignore[assignment]
        if self._ended:
            self._packs.extend(groups)
            return
        if not chosen.packs and sum(map(len, groups)) >= self._dataset.buffer_size:
            raise ConfigError(
                f"select_samples_to_pack keeps all {len(buffer)} samples of a full buffer and packs none, so it "
                "would receive the same buffer indefinitely. Pack at least one group of a full buffer."
            )
        waited = dict(zip(keys, buffer.rounds, strict=True))
        self._kept = [(1 + max(waited.get(key, 0) for key, _ in group), group) for group in groups]

    def _encode(self, group: list[Keyed]) -> tuple[list[Any], list[Key]]:
        """Decodes and encodes the samples of a group; leaves out those that fail."""
        samples, decoder = [sample for _, sample in group], self._dataset.decoder
        samples = samples if decoder is None else decode_elements(decoder, samples)
        encoded, keys = [], []
        for (key, original), sample in zip(group, samples, strict=True):
            index = self._encoded * self._num_streams + self._stream
            self._encoded += 1
            if isinstance(sample, DecodeError):
                self._decode_policy.on_failure(sample, original)
                continue
            self._decode_policy.on_success()
            if self._dataset.sample_encoder is not None:
                try:
                    with sample_context(index, self._seed):
                        sample = check_result(self._encode_policy.stage, self._dataset.sample_encoder(sample))
                except Exception as error:
                    self._encode_policy.on_failure(error, original)
                    continue
                self._encode_policy.on_success()
            encoded.append(sample)
            keys.append(("encode", index, *key))
        return encoded, keys

    def state_dict(self) -> State:
        if self._saved is not None:
            return self._saved
        return {
            "index": self._runner.index,
            "offset": self._runner.offset,
            "encoded": self._encoded,
            "rounds": self._rounds,
            "ended": self._ended,
            "current": key_to_json(self._current),
            "packs": Rest(self._chosen, len(self._chosen.rows) - len(self._packs)),
            "kept": Rest(self._waiting),
            "inner": self._inner.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        # The chosen samples are read again when the first element is taken. A state without an entry is refused here.
        for pack in keys_of(state, "packs"):
            keys_of({"packs": pack}, "packs")
        for waited, *group in keys_of(state, "kept"):
            checked_count(waited, "kept")
            keys_of({"kept": group}, "kept")
        for name in ("index", "offset", "encoded", "rounds"):
            count_of(state, name)
        for key in keys_of(state, "current"):
            expect_name(key, "encode")
        flag_of(state, "ended")
        self._saved = {name: state[name] for name in self.state_dict()}
        self._inner.load_state_dict(state_of(state))

    def _refill(self, state: State) -> None:
        handler = self._dataset.worker_config.restore_error_handler
        groups = [*state["packs"], *(group for _, *group in state["kept"])]
        made = iter(restore_groups(self._dataset.dataset.restore_samples, groups, handler))
        self._packs.extend(filter(None, [next(made) for _ in state["packs"]]))
        self._kept = [(waited, group) for (waited, *_), group in zip(state["kept"], made, strict=True) if group]
        self._encoded, self._rounds, self._ended = state["encoded"], state["rounds"], state["ended"]
        self._refill_current(state, self._dataset.restore_parts)
        self._note_round()

    def close(self) -> None:
        self._packs.clear()
        super().close()


def distinct(sample: Any, present: set[int]) -> Any:
    """Returns a sample, or a copy of one that is already in the buffer, and notes its id in `present`.

    A hook may yield one object several times. A restore makes as many objects, each with its own key, and what follows
    must not depend on whether there was a restore.
    """
    if id(sample) in present:
        sample = copy(sample)
    present.add(id(sample))
    return sample


def read_selection(result: Any, keys: Mapping[int, Key]) -> PackSelection[Keyed]:
    """Returns what a packer chose, with the key of each sample, without empty groups; kept samples become groups.

    Args:
        result: What the packer returned: a PackSelection, a list of lists, or a generator of lists.
        keys: Keys of the samples of the buffer, by id of the sample.

    Raises:
        ConfigError: It is none of these, or has a sample that a restore could not make again.
    """
    if not isinstance(result, PackSelection):
        return PackSelection(_groups(result, keys))
    keep = [group if isinstance(group, list) and id(group) not in keys else [group] for group in result.keep]
    return PackSelection(
        _groups(result.packs, keys),
        _groups(keep, keys),  # type: ignore[arg-type]
        [(_keyed([sample], keys)[0], reason) for sample, reason in result.refused],
    )


def _groups(groups: Any, keys: Mapping[int, Key]) -> list[list[Keyed]]:
    if not isinstance(groups, Iterable):
        raise ConfigError(f"select_samples_to_pack returned {type(groups).__name__}. {_GROUPS_WANTED}")
    found = []
    for group in groups:
        if id(group) in keys or not isinstance(group, Iterable):
            raise ConfigError(f"select_samples_to_pack returned {type(group).__name__} as a group. {_GROUPS_WANTED}")
        keyed = _keyed(group, keys)
        if keyed:
            found.append(keyed)
    return found


def _keyed(group: Iterable[Any], keys: Mapping[int, Key]) -> list[Keyed]:
    keyed = [(keys.get(id(sample)) or get_restore_key(sample), sample) for sample in group]
    strange = next((sample for key, sample in keyed if not key), None)
    if strange is not None:
        raise ConfigError(
            f"select_samples_to_pack returned {type(strange).__name__}, which is not one of the samples it received. "
            f"{_GROUPS_WANTED}"
        )
    return keyed
