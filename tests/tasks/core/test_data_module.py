from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import DaliDecoder, Resize, SampleDecoder
from energon_dali.decode.media_decoder import DecoderOptions
from energon_dali.errors import ConfigError, StateError
from energon_dali.tasks.data_module import TransformerDataConfig, TransformerDataModule, make_decoder
from energon_dali.tasks.loaders import EvalLoader
from energon_dali.tasks.position import RandomState, check_state
from tests.decode.every_option import EVERY_DALI_OPTION, given_options
from tests.tasks.core.number_batches import NumbersBatch
from tests.tasks.core.tiny_run import NumbersDataModule, data_config, numbers_dataset

pytestmark = pytest.mark.usefixtures("warm_workers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return numbers_dataset(tmp_path_factory.mktemp("numbers") / "data")


def keys(batches: Any) -> list[list[str]]:
    return [list(batch.__key__) for batch in batches]


def test_an_epoch_is_one_pass_in_whole_rounds_over_the_streams(folder: Path) -> None:
    for streams, batches in ((1, 7), (2, 8), (4, 8), (3, 9)):
        module = NumbersDataModule(data_config(folder, num_streams=streams))
        loader = module.train_dataloader()
        assert len(loader) == batches
        seen = keys(loader)
        assert len(seen) == batches
        assert {key for batch in seen for key in batch} == {f"n{i:03d}" for i in range(28)}
        assert keys(loader) != seen
        module.close()


def test_each_rank_counts_its_own_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        module = NumbersDataModule(data_config(folder, num_streams=None))
        loader = module.train_dataloader()
        assert (loader.worker_config.rank, loader.worker_config.world_size, len(loader)) == (rank, 2, 4)
        seen.append(keys(loader))
        assert len(module.val_dataloader()) == 4
        module.close()
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    module = NumbersDataModule(data_config(folder))
    assert keys(module.train_dataloader()) == [batch for pair in zip(*seen, strict=True) for batch in pair]
    module.close()


def test_a_rank_without_a_batch_to_validate_is_told_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = numbers_dataset(tmp_path / "small", 4)
    for rank in (0, 4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "5")
        module = NumbersDataModule(data_config(small, num_streams=None, test=str(small), test_split="val"))
        with pytest.raises(ConfigError, match=r"'val' .* too small for 5 ranks: it gives no batch to 1 of them\. .*"):
            module.val_dataloader()
        with pytest.raises(ConfigError, match=r"do without it \(trainer\.limit_test_batches=0\)"):
            module.test_dataloader()
        assert len(module.train_dataloader()) == 1
        module.close()


def test_an_endless_loader_has_no_length(folder: Path) -> None:
    module = NumbersDataModule(data_config(folder, virtual_epoch_length=0))
    with pytest.raises(ConfigError, match=r"virtual_epoch_length=-1 is invalid: .* 0 for epochs that never end"):
        NumbersDataModule(data_config(folder, virtual_epoch_length=-1)).train_dataloader()
    with pytest.raises(TypeError, match="set virtual_epoch_length"):
        len(module.train_dataloader())
    module.close()


def test_a_trainer_that_fetches_ahead_gets_again_what_it_left(folder: Path) -> None:
    module = NumbersDataModule(data_config(folder, virtual_epoch_length=4))
    reference = keys(module.train_dataloader()) + keys(module.train_dataloader())
    module.close()
    loader = NumbersDataModule(data_config(folder, virtual_epoch_length=4)).train_dataloader()
    loader.follow()
    epoch = iter(loader)
    fetched = [next(epoch) for _ in range(3)]
    loader.take()
    loader.trained(stepped=True)
    loader.take()
    loader.trained(stepped=False)
    assert loader.unsettled == 1
    state = loader.save_state_rank()
    assert keys(fetched) + keys(iter(loader)) == [*reference[:3], *reference[2:6]]
    loader.close()
    other = NumbersDataModule(data_config(folder, virtual_epoch_length=4)).train_dataloader()
    other.restore_state_rank(state)
    other.follow()
    other.take()  # a step that itself takes two batches from the iterator
    epoch = iter(other)
    assert keys([next(epoch), next(epoch)]) == reference[1:3]
    other.trained(stepped=True)
    third = NumbersDataModule(data_config(folder, virtual_epoch_length=4)).train_dataloader()
    third.restore_state_rank(other.save_state_rank())
    assert keys(third) == reference[3:7]
    other.close()
    third.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_every_validation_begins_at_the_beginning(folder: Path, num_workers: int) -> None:
    module = NumbersDataModule(data_config(folder, num_workers=num_workers, limit_val_batches=5))
    loader = module.val_dataloader()
    assert isinstance(loader, EvalLoader)
    whole = keys(loader)
    assert len(whole) == len(loader) == 5
    for taken in (2, 5, 1):
        batches = iter(loader)
        iter(loader)  # a trainer that only looks whether it can be iterated
        assert keys(next(batches) for _ in range(taken)) == whole[:taken]
    assert keys(loader) == whole
    assert loader.stats().batches >= 5
    module.close()
    assert keys(loader) == whole
    loader.close()


def test_without_a_path_there_is_nothing_to_validate_and_nothing_to_train_on(folder: Path) -> None:
    module = TransformerDataModule(TransformerDataConfig())
    assert module.val_dataloader() == module.test_dataloader() == []
    assert module.model_data_kwargs == {}
    with pytest.raises(ConfigError, match=r"cfg\.train is None"):
        module.train_dataloader()
    packing = NumbersDataModule(data_config(folder))
    packing.cfg.packing_buffer_size = 10
    with pytest.raises(ConfigError, match="virtual_epoch_length"):
        packing._epoch_length(None)  # type: ignore[arg-type]


def test_batches_travel_to_the_device_once(folder: Path) -> None:
    module = NumbersDataModule(data_config(folder))
    batch = next(iter(module.val_dataloader()))
    assert module.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    moved = module.transfer_batch_to_device(batch, torch.device("meta"), 0)
    assert isinstance(moved, NumbersBatch)
    assert moved.numbers.device.type == "meta"
    assert moved.__key__ == batch.__key__
    plain = module.transfer_batch_to_device({"a": [torch.zeros(2)]}, torch.device("meta"), 0)
    assert plain["a"][0].device.type == "meta"
    module.close()


def test_a_state_of_something_else_is_refused() -> None:
    module = TransformerDataModule(TransformerDataConfig())
    with pytest.raises(StateError, match="TransformerDataModule"):
        module.load_state_dict({"weights": 3})
    with pytest.raises(StateError, match="not a loader state"):
        check_state({"loader": {}, "random": {}})
    with pytest.raises(StateError, match="damaged"):
        RandomState.from_plain({"python": [3, "x", None], "numpy": [], "torch": "", "cuda": None})
    assert module.state_dict() == {}


@pytest.mark.parametrize(
    ("choice", "kind"),
    [
        (None, DaliDecoder),
        ("pil", SampleDecoder),
        ("dali_cpu", DaliDecoder),
        (SampleDecoder, SampleDecoder),
        (partial(DaliDecoder, image_decode_device="cpu"), DaliDecoder),
        (SampleDecoder(max_pixels=999), SampleDecoder),
        (DaliDecoder(av_decode="pyav", num_threads=3), DaliDecoder),
    ],
)
def test_the_run_chooses_the_backend_and_the_task_the_form(choice: Any, kind: type) -> None:
    decoder = make_decoder(choice, image_decode="torchrgb8", operations=[Resize((8, 8))])
    assert type(decoder) is kind
    config = decoder.config()
    assert (config["image_decode"], [op["type"] for op in config["operations"]]) == ("torchrgb8", ["Resize"])
    if isinstance(choice, SampleDecoder | DaliDecoder):
        assert {**choice.config(), "image_decode": "torchrgb8", "operations": config["operations"]} == config
        assert make_decoder(choice) is choice


@pytest.mark.parametrize("name", [*DecoderOptions.__annotations__, *EVERY_DALI_OPTION])
def test_the_task_leaves_other_options_as_they_are(name: str) -> None:
    given = DaliDecoder(**given_options(name))
    other = {"max_bytes": 11} if name == "max_pixels" else {"max_pixels": 11}
    assert make_decoder(given, **other).config() == {**given.config(), **other}


def test_what_makes_no_decoder_is_refused() -> None:
    with pytest.raises(ConfigError, match="dali, dali_cpu, dali_gpu, pil"):
        make_decoder("jax")
    with pytest.raises(ConfigError, match="_partial_: true"):
        make_decoder(3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="which is not a decoder"):
        make_decoder(dict)  # type: ignore[arg-type]
