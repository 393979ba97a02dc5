"""Hooks that drop every sample, or return nothing: an error or a warning, where it looked like waiting or success."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    Cooker,
    DefaultTaskEncoder,
    FilterDataset,
    SkipSample,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.errors import FatalSampleError, WatchdogTimeoutError, WorkerError
from tests.running_time import wait_until

COUNT = 24


@stateless
def cook(sample: Any) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=str(sample["json"]["number"]))


class Encoder(DefaultTaskEncoder):
    """Calls `do` in one hook, and does nothing in the others."""

    decoder = None

    def __init__(self, hook: str = "", do: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self.cookers = [Cooker(cook)]
        self.hook, self.do = hook, do

    def _through(self, hook: str, value: Any) -> Any:
        return self.do(value) if self.do is not None and hook == self.hook else value

    @stateless(failure_tolerance=0)
    def encode_sample(self, sample: TextSample) -> Any:
        return self._through("encode_sample", sample)

    def batch(self, samples: list[Any]) -> Any:
        return self._through("batch", [sample.text for sample in samples])

    def encode_batch(self, batch: Any) -> Any:
        return self._through("encode_batch", batch)


class Packer(Encoder):
    def select_samples_to_pack(self, samples: list[Any]) -> Any:
        return self._through("select_samples_to_pack", [samples])

    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return self._through("pack_selected_samples", samples[0])


def skip(value: Any) -> Any:
    raise SkipSample


def fail(value: Any) -> Any:
    raise ValueError("not this one")


def nothing(value: Any) -> Any:
    return None


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> str:
    from energon_dali.shards import prepare_jsonl

    path = tmp_path_factory.mktemp("lines") / "lines.jsonl"
    path.write_text("".join(json.dumps({"number": number}) + "\n" for number in range(COUNT)))
    prepare_jsonl(str(path))
    return str(path)


def job(workers: int) -> WorkerConfig:
    return WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2)


LAYOUTS = [(0, False), (1, False), (1, True)]


@pytest.mark.parametrize("way", ["skip", "fail", "filter"])
def test_the_watchdog_ends_a_loop_in_which_every_sample_is_dropped(lines: str, way: str) -> None:
    encoder = Encoder("encode_sample", {"skip": skip, "fail": fail}.get(way))
    dataset = get_train_dataset(lines, worker_config=job(0), task_encoder=encoder, batch_size=2)
    if way == "filter":
        dataset = FilterDataset(dataset, filter_fn=nothing)
    stages = {"skip": "were skipped by encode_sample", "fail": "failed in encode_sample"}
    stage = stages.get(way, "were skipped by nothing")
    with (
        get_loader(dataset, watchdog_timeout_seconds=2.0, fail_on_timeout=True) as batches,
        pytest.raises(WatchdogTimeoutError, match=f"No batch arrived for .*[0-9] {stage}"),
    ):
        next(iter(batches))


def test_a_log_that_fails_does_not_keep_the_watchdog_from_ending_a_wait(lines: str) -> None:
    class Full(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("No space left on device")

    dataset = get_train_dataset(lines, worker_config=job(0), task_encoder=Encoder("encode_sample", skip), batch_size=2)
    logger, full = logging.getLogger("energon_dali.loader"), Full()
    logger.addHandler(full)
    try:
        with (
            get_loader(dataset, watchdog_timeout_seconds=0.2, fail_on_timeout=True) as batches,
            pytest.raises(WatchdogTimeoutError, match="No batch arrived for"),
        ):
            next(iter(batches))
    finally:
        logger.removeHandler(full)


@pytest.mark.parametrize(("workers", "decode_process"), LAYOUTS)
def test_what_is_dropped_is_known_while_no_batch_comes_and_the_loader_can_be_closed(
    lines: str, workers: int, decode_process: bool
) -> None:
    encoder = Encoder("encode_sample", skip)
    dataset = get_train_dataset(lines, worker_config=job(workers), task_encoder=encoder, batch_size=2)
    batches = get_loader(dataset, decode_process=decode_process, start_method="fork")
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            next(iter(batches))
        except BaseException as error:
            ends.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert wait_until(lambda: batches.stats().counts.get("skipped.encode_sample", 0) > 0, 60)
    batches.close()
    waiting.join(60)
    assert [type(error) for error in ends] == [WorkerError]


@pytest.mark.parametrize(("workers", "decode_process"), LAYOUTS)
def test_an_epoch_in_which_every_sample_failed_is_an_error(lines: str, workers: int, decode_process: bool) -> None:
    encoder = Encoder("encode_sample", fail)
    dataset = get_val_dataset(lines, split_part="train", worker_config=job(workers), task_encoder=encoder, batch_size=2)
    with (
        get_loader(dataset, decode_process=decode_process, start_method="fork") as batches,
        pytest.raises(FatalSampleError, match=f"No sample of this epoch arrived on rank 0: {COUNT} failed in encode_s"),
    ):
        list(batches)


def test_an_epoch_in_which_every_sample_was_skipped_is_a_warning(lines: str, caplog: pytest.LogCaptureFixture) -> None:
    encoder = Encoder("encode_sample", skip)
    dataset = get_val_dataset(lines, split_part="train", worker_config=job(0), task_encoder=encoder, batch_size=2)
    with caplog.at_level(logging.WARNING, "energon_dali.loader"):
        assert list(get_loader(dataset)) == []
    assert f"{COUNT} were skipped by encode_sample" in caplog.text


def test_the_last_sample_may_fail_after_a_restore(lines: str) -> None:
    def fail_at_last(sample: TextSample) -> TextSample:
        return fail(sample) if sample.text == str(COUNT - 1) else sample

    config = WorkerConfig(rank=0, world_size=1, num_workers=0)
    encoder = Encoder("encode_sample", fail_at_last)
    dataset = get_val_dataset(lines, split_part="train", worker_config=config, task_encoder=encoder)
    batches = get_savable_loader(dataset)
    iterator = iter(batches)
    for _ in range(COUNT - 1):
        next(iterator)
    again = get_savable_loader(dataset)
    again.load_state_dict(batches.state_dict())
    assert list(again) == []


@pytest.mark.parametrize(
    "hook", ["encode_sample", "batch", "encode_batch", "select_samples_to_pack", "pack_selected_samples"]
)
def test_a_hook_that_returns_none_is_named(lines: str, hook: str) -> None:
    encoder = (Packer if "pack" in hook else Encoder)(hook, nothing)
    dataset = get_train_dataset(
        lines,
        worker_config=job(0),
        task_encoder=encoder,
        batch_size=2,
        packing_buffer_size=4 if "pack" in hook else None,
    )
    with pytest.raises(Exception, match=f"{hook} returned None"):
        next(iter(get_loader(dataset)))


def test_a_cooker_that_returns_none_is_named(lines: str) -> None:
    encoder = Encoder()
    encoder.cookers = [Cooker(nothing)]
    dataset = get_train_dataset(lines, worker_config=job(0), task_encoder=encoder)
    with pytest.raises(FatalSampleError, match="The cooker nothing returned None"):
        next(iter(get_loader(dataset)))


def test_failures_of_one_kind_are_printed_once_and_counted(lines: str, caplog: pytest.LogCaptureFixture) -> None:
    def fail_twice(sample: TextSample) -> TextSample:
        if sample.text == "5":
            raise KeyError("another kind")
        return fail(sample) if int(sample.text) % 2 else sample

    encoder = Encoder("encode_sample", fail_twice)
    dataset = get_val_dataset(lines, split_part="train", worker_config=job(0), task_encoder=encoder)
    with get_loader(dataset) as batches:
        assert len(list(batches)) == COUNT // 2
        kinds = batches.stats().failure_kinds
    assert caplog.text.count("Traceback") == 2
    assert sorted(kinds.values()) == [1, COUNT // 2 - 1]
    place = f"encode_sample: ValueError at {Path(__file__)}"
    assert any(kind.startswith(place) for kind in kinds)
    assert f"{COUNT // 2} samples were dropped so far" in caplog.text
    assert f"{COUNT // 2 - 1} x {place}" in caplog.text
    assert "failure_kinds" in batches.stats().as_dict()


def test_a_users_error_handler_hears_of_every_failure(lines: str) -> None:
    heard: list[Exception] = []
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=0, global_error_handler=lambda error, *_: heard.append(error)
    )
    encoder = Encoder("encode_sample", lambda sample: fail(sample) if sample.text != "1" else sample)
    dataset = get_val_dataset(lines, split_part="train", worker_config=config, task_encoder=encoder)
    assert len(list(get_loader(dataset))) == 1
    assert len(heard) == COUNT - 1
