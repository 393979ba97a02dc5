"""A state continues with other hooks if that is allowed and the order of samples is the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from energon_dali import (
    BlendDataset,
    DefaultTaskEncoder,
    LayoutError,
    MapDataset,
    StateError,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
    stateless,
)
from energon_dali.integrations.global_state import GlobalLoaderState
from energon_dali.loader.loader_state import LoaderIdentity, pack_config, unpack_config
from tests.faults.states import mutate_state
from tests.loader.dataset_folder import captioning_dataset

VARIABLE = "ENERGON_DALI_ALLOW_CHANGED_HOOKS"


class Keys(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = None

    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {"keys": [sample.__key__ for sample in samples]}


class OtherBatch(Keys):
    def batch(self, samples: list[Any]) -> dict[str, Any]:
        return {"keys": [sample.__key__ for sample in samples], "other": True}


class EncodesSamples(Keys):
    def encode_sample(self, sample: Any) -> Any:
        sample.caption = str(self.current_sample_index)
        return sample


class EncodesMore(EncodesSamples):
    def encode_batch(self, batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "number": self.current_batch_index}


class Splits(Keys):
    def preencode_sample(self, sample: Any) -> Any:
        return sample

    def postencode_sample(self, sample: Any) -> Any:
        return sample


class Twice(Keys):
    def encode_sample(self, sample: Any) -> Any:
        yield sample
        yield sample


class Groups(Keys):
    def batch_group_criterion(self, sample: Any) -> Any:
        return 0, None


class Packs(Keys):
    @stateless
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[start : start + 2] for start in range(0, len(samples), 2)]

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return samples[0]


class PacksEncoded(Packs):
    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return sample


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=30)


def train(folder: Path, encoder: type[Any], **options: Any) -> Any:
    streams, seed = options.pop("num_streams", 2), options.pop("seed", 5)
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, num_streams=streams, seed_offset=seed)
    kwargs = {"shuffle_buffer_size": 20, "batch_size": 3, **options}
    return get_train_dataset(folder, worker_config=config, task_encoder=encoder(), **kwargs)


def run(dataset: Any, count: int, state: Any = None, **options: Any) -> tuple[list[Any], Any]:
    """Returns the next batches, and the state after them."""
    with get_savable_loader(dataset) as loader:
        if state is not None:
            loader.restore_state_rank(state, **options)
        batches = list(islice(loader, count))
        return batches, json.loads(json.dumps(loader.save_state_rank()))


def keys(batches: list[Any]) -> list[list[str]]:
    return [batch["keys"] for batch in batches]


@pytest.mark.parametrize("first", [Keys, EncodesSamples, EncodesMore, Splits])
@pytest.mark.parametrize("then", [OtherBatch, EncodesSamples, EncodesMore, Splits, Keys])
def test_other_hooks_continue_with_the_same_samples(first: type[Any], then: type[Any], folder: Path) -> None:
    whole, _ = run(train(folder, first), 12)
    _, state = run(train(folder, first), 5)
    rest, later = run(train(folder, then), 3, state, allow_changed_hooks=True)
    assert keys(rest) == keys(whole[5:8])
    rest, _ = run(train(folder, then), 4, later)  # which is a state of the new hooks
    assert keys(rest) == keys(whole[8:])


def test_the_log_says_in_one_line_what_differs(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, state = run(train(folder, OtherBatch), 2)
    with caplog.at_level(logging.WARNING):
        run(train(folder, EncodesMore), 1, state, allow_changed_hooks=True)
    (record,) = caplog.records
    assert record.getMessage() == (
        "The state was saved with other hooks, and continues with those of this loader: "
        "encode_batch (EncodesMore.encode_batch) is new; encode_sample (EncodesSamples.encode_sample) is new; "
        "inner.batcher.hooks.batch was 'OtherBatch.batch', is 'Keys.batch'"
    )


def test_equal_hooks_are_not_reported(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    _, state = run(train(folder, Keys), 2)
    with caplog.at_level(logging.WARNING):
        run(train(folder, Keys), 1, state, allow_changed_hooks=True)
    assert not caplog.records


def test_the_count_of_batches_goes_on_and_that_of_a_new_hook_begins(folder: Path) -> None:
    _, state = run(train(folder, Keys), 4)
    (batch,), after = run(train(folder, EncodesMore), 1, state, allow_changed_hooks=True)
    assert batch["number"] == 4
    levels = after["streams"]["0"]["state"]["inner"]  # encode_batch, batch, encode_sample
    assert (levels["index"], levels["inner"]["index"], levels["inner"]["inner"]["index"]) == (1, 3, 3)


def test_without_the_option_the_error_names_it(folder: Path) -> None:
    _, state = run(train(folder, Keys), 2)
    with pytest.raises(
        StateError, match=r"other hooks\. What differs: encode_sample .* is new.*allow_changed_hooks=True"
    ):
        run(train(folder, EncodesSamples), 1, state)


@pytest.mark.parametrize("options", [{"seed": 6}, {"packing_buffer_size": 4}, {"shuffle_buffer_size": 10}])
def test_another_plan_is_an_error_whatever_is_allowed(options: dict[str, Any], folder: Path) -> None:
    _, state = run(train(folder, Packs), 2)
    with pytest.raises(StateError, match="of another dataset"):
        run(train(folder, PacksEncoded, **options), 1, state, allow_changed_hooks=True)


def test_batches_by_groups_are_another_plan(folder: Path) -> None:
    _, state = run(train(folder, Keys), 2)
    with pytest.raises(StateError, match="was BatchDataset, is GroupBatchDataset"):
        run(train(folder, Groups), 1, state, allow_changed_hooks=True)


def test_the_batch_size_may_change_with_the_hooks(folder: Path) -> None:
    whole, _ = run(train(folder, Keys, batch_size=4), 8)
    _, state = run(train(folder, Keys, batch_size=4), 4)
    rest, _ = run(train(folder, EncodesMore, batch_size=2), 4, state, allow_changed_hooks=True)
    whole_of_stream = [key for batch in whole[4::2] for key in batch["keys"]]
    assert [key for batch in rest[::2] for key in batch["keys"]] == whole_of_stream[:4]


def test_a_limit_around_the_stages_stays(folder: Path) -> None:
    options = {"virtual_epoch_length": 7}
    whole, _ = run(train(folder, Keys, **options), 7)
    _, state = run(train(folder, Keys, **options), 4)
    rest, _ = run(train(folder, EncodesMore, **options), 7, state, allow_changed_hooks=True)
    assert keys(rest) == keys(whole[4:])


def test_members_of_a_blend_may_change(folder: Path) -> None:
    def blend(encoder: type[Any]) -> Any:
        return BlendDataset((train(folder, encoder), 2), (train(folder, Keys), 1))

    whole, _ = run(blend(Keys), 12)
    _, state = run(blend(Keys), 5)
    rest, _ = run(blend(EncodesMore), 7, state, allow_changed_hooks=True)
    assert keys(rest) == keys(whole[5:])


def test_a_function_of_a_map_dataset_may_change(folder: Path) -> None:
    def mapped(function: Callable[[Any], Any]) -> Any:
        return MapDataset(train(folder, Keys), function)

    whole, _ = run(mapped(dict), 6)
    _, state = run(mapped(dict), 3)
    with pytest.raises(StateError, match=r"map_fn was 'dict', is 'copy'.*allow_changed_hooks"):
        run(mapped(dict.copy), 1, state)
    rest, _ = run(mapped(dict.copy), 3, state, allow_changed_hooks=True)
    assert keys(rest) == keys(whole[3:])


@pytest.mark.parametrize("delivered", [1, 2, 3, 4])
def test_a_generator_hook_may_become_a_plain_function(delivered: int, folder: Path) -> None:
    def flat(batches: list[Any]) -> list[str]:
        return [key for batch in batches for key in batch["keys"]]

    options = {"batch_size": 1, "num_streams": 1}
    whole = flat(run(train(folder, Keys, **options), 6)[0])
    first, state = run(train(folder, Twice, **options), delivered)
    rest, _ = run(train(folder, EncodesSamples, **options), 2, state, allow_changed_hooks=True)
    passed = list(dict.fromkeys(flat(first)))  # each sample was delivered once or twice
    assert [*passed, *flat(rest)] == whole[: len(passed) + 2]


def test_a_generator_hook_in_the_middle_of_its_outputs_must_not_go(folder: Path) -> None:
    _, state = run(train(folder, Twice), 2)
    with pytest.raises(
        StateError, match=r"between two outputs of encode_sample \(Twice\.encode_sample\).*Keep the hook"
    ):
        run(train(folder, Keys), 1, state, allow_changed_hooks=True)


def test_hooks_below_a_packing_buffer_are_neither_added_nor_removed(folder: Path) -> None:
    _, state = run(train(folder, Packs, packing_buffer_size=8), 1)
    with pytest.raises(StateError, match="PackingDataset holds samples that went through another series of hooks"):
        run(train(folder, PacksEncoded, packing_buffer_size=8), 1, state, allow_changed_hooks=True)


@pytest.mark.parametrize("allowed", [True, False])
def test_the_environment_allows_it_where_a_trainer_restores(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, allowed: bool
) -> None:
    monkeypatch.setenv(VARIABLE, "1" if allowed else "0")
    whole, _ = run(train(folder, Keys), 4)
    with get_savable_loader(train(folder, Keys)) as saving:
        next(iter(saving))
        state = GlobalLoaderState(saving).state_dict()
    with get_savable_loader(train(folder, OtherBatch)) as loader:
        if allowed:
            GlobalLoaderState(loader).load_state_dict(state)
            assert keys(list(islice(loader, 3))) == keys(whole[1:])
        else:
            with pytest.raises(StateError, match=VARIABLE):
                GlobalLoaderState(loader).load_state_dict(state)


def test_a_global_state_continues_with_other_hooks(folder: Path) -> None:
    whole, state = run(train(folder, Keys), 4)
    with get_savable_loader(train(folder, OtherBatch)) as loader:
        loader.restore_state_global([state], allow_changed_hooks=True)
        rest = keys(list(islice(loader, 2)))
    assert rest == keys(run(train(folder, Keys), 6)[0][4:])
    assert len(whole) == 4


def test_a_damaged_state_is_refused_in_our_words(folder: Path) -> None:
    _, state = run(train(folder, EncodesMore, virtual_epoch_length=9), 2)
    config = unpack_config(state)
    refused = 0
    dataset = train(folder, Keys, virtual_epoch_length=9)
    for seed in range(300):
        entry, value = ("config", config) if seed % 2 else ("streams", state["streams"])
        changed = mutate_state(value, Random(seed))
        damaged = {**state, entry: pack_config(changed) if seed % 2 else changed}
        try:
            LoaderIdentity(dataset).position(damaged, allow_changed_hooks=True)
        except (StateError, LayoutError):
            refused += 1
    assert 50 < refused < 300
