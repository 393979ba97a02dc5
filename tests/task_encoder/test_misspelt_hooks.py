"""Methods that look like hooks and are none are named when a dataset is opened; helpers of a task encoder are not."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    AugmentTaskEncoder,
    Cooker,
    DefaultTaskEncoder,
    TaskEncoder,
    WorkerConfig,
    get_train_dataset,
    stateless,
)
from energon_dali.task_encoder.misspelt_hooks import find_misspelt_hooks
from tests.loader.dataset_folder import captioning_dataset


def method(self: Any, sample: Any) -> Any:
    return sample


def encoder_with(*names: str, base: type[Any] = TaskEncoder, **attributes: Any) -> Any:
    return type("Encoder", (base,), {**dict.fromkeys(names, method), **attributes})


MISSPELT = {
    "encode_sampel": "encode_sample",
    "encode_smaple": "encode_sample",
    "encode_samples": "encode_sample",
    "encodeSample": "encode_sample",
    "pre_encode_sample": "preencode_sample",
    "post_encode_sample": "postencode_sample",
    "postencode_samples": "postencode_sample",
    "select_sample_to_pack": "select_samples_to_pack",
    "pack_selected_sample": "pack_selected_samples",
    "batch_group_criteria": "batch_group_criterion",
    "bacth": "batch",
    "batchs": "batch",
    "encode_batches": "encode_batch",
    "encode_bacth": "encode_batch",
    "cook_crude_samples": "cook_crude_sample",
}

HELPERS = """
    encode_image encode_images encode_text encode_video encode_conversation encode_pixels encode tokenize decode
    decode_sample batch_images batch_size batch_pad pad_batch collate build_batch make_batch pack pack_samples
    select_samples sample_length cook cook_captioning preprocess preprocess_sample process_sample postprocess patch
    match encoder batched load_sample save_restore_state get_max_seq_len apply_prompt find_best_resolution
"""
"""Names of methods in public task encoders, and others that are near."""


@pytest.mark.parametrize("name", MISSPELT)
@pytest.mark.parametrize("base", [TaskEncoder, DefaultTaskEncoder])
def test_a_misspelt_hook_is_found(name: str, base: type[Any]) -> None:
    assert find_misspelt_hooks(encoder_with(name, base=base)()) == {name: MISSPELT[name]}


def test_helpers_are_not_taken_for_hooks() -> None:
    assert find_misspelt_hooks(encoder_with(*HELPERS.split())()) == {}
    for name, hook in MISSPELT.items():
        assert find_misspelt_hooks(encoder_with(name, hook)()) == {}, "the hook itself is there"
        assert find_misspelt_hooks(encoder_with(f"_{name}")()) == {}


class Calling(TaskEncoder[Any, Any, Any, Any]):
    """Calls its helpers, or hands them on."""

    def __init__(self) -> None:
        self.callbacks = [self.encode_batches]

    @stateless(restore_seeds=True)
    def batch(self, samples: list[Any]) -> Any:
        return self.encode_samples(samples)

    def encode_samples(self, samples: list[Any]) -> Any:
        return [self.postencode_samples(sample) for sample in samples]

    def postencode_samples(self, sample: Any) -> Any:
        return sample

    def encode_batches(self, batch: Any) -> Any:
        return batch

    def cook_crude_samples(self, sample: Any) -> Any:
        return sample


def test_helpers_that_the_class_uses_are_not_taken_for_hooks() -> None:
    encoder = Calling()
    assert find_misspelt_hooks(encoder) == {"cook_crude_samples": "cook_crude_sample"}
    encoder.cookers = [Cooker(encoder.cook_crude_samples)]
    assert find_misspelt_hooks(encoder) == {}


def test_it_is_found_in_base_classes_mixins_and_around_other_encoders() -> None:
    mixin = type("Mixin", (), {"encode_sampel": staticmethod(functools.partial(method, None))})
    assert find_misspelt_hooks(type("Mixed", (mixin, DefaultTaskEncoder), {})()) == {"encode_sampel": "encode_sample"}
    augmented = encoder_with("encode_sampel", base=AugmentTaskEncoder)(DefaultTaskEncoder())
    assert find_misspelt_hooks(augmented) == {"encode_sampel": "encode_sample"}
    corrected = encoder_with("encode_sampel")()
    corrected.encode_sample = corrected.encode_sampel
    assert find_misspelt_hooks(corrected) == {}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("hooks") / "data", count=3)


def open_dataset(folder: Path, encoder: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    return get_train_dataset(folder, worker_config=config, batch_size=1, task_encoder=encoder)


def test_opening_a_dataset_warns_where_it_is_opened(folder: Path) -> None:
    words = r"Encoder\.encode_sampel is not a hook.* Did you mean encode_sample\?"
    with pytest.warns(UserWarning, match=words) as caught:
        open_dataset(folder, encoder_with("encode_sampel", base=DefaultTaskEncoder)())
    assert caught[0].filename == __file__


class Waiting:
    async def __call__(self, sample: Any) -> Any:
        return sample


async def wait(self: Any, sample: Any) -> Any:
    return sample


async def wait_for_each(self: Any, sample: Any) -> Any:
    yield sample


@pytest.mark.parametrize("hook", ["cook_crude_sample", "encode_sample", "batch_group_criterion", "batch"])
@pytest.mark.parametrize("function", [wait, wait_for_each, Waiting()])
def test_an_async_hook_is_named_when_the_dataset_is_opened(function: Any, hook: str, folder: Path) -> None:
    name = getattr(function, "__name__", "Waiting")
    with pytest.raises(ValueError, match=rf"^{name} is an async function\. .* nothing awaits them: write"):
        open_dataset(folder, encoder_with(base=DefaultTaskEncoder, **{hook: function})())


@pytest.mark.parametrize("mark", [stateless, stateless(restore_seeds=True), Cooker])
def test_an_async_function_is_refused_where_it_is_marked(mark: Any) -> None:
    with pytest.raises(ValueError, match=r"^wait is an async function"):
        mark(wait)
