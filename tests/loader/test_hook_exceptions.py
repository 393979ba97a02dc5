"""Exceptions of every kind in every hook of a task encoder: with both decoders, and in a worker."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    CaptioningSample,
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    SkipSample,
    WorkerConfig,
    basic_sample_keys,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.errors import FatalSampleError, WorkerError
from energon_dali.loader.processes.messages import failed_stream, rebuild_error
from tests.datasets.test_hook_exceptions import COUNTED, FATAL, RAISED
from tests.loader.crude_folder import CRUDE
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

KINDS: dict[str, BaseException] = {**COUNTED, **FATAL, **RAISED, "SkipSample": SkipSample()}
DECODERS: dict[str, Any] = {
    "sample": SampleDecoder(image_decode="torchrgb8"),
    "dali": DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu"),
}
RESULTS: dict[str, Any] = {
    "preencode_sample": lambda sample: sample,
    "encode_sample": lambda sample: sample,
    "postencode_sample": lambda sample: sample,
    "select_samples_to_pack": lambda samples: [[sample] for sample in samples],
    "pack_selected_samples": lambda samples: samples[0],
    "batch_group_criterion": lambda sample: (0, None),
    "batch": lambda samples: {"__key__": [sample.__key__ for sample in samples]},
    "encode_batch": lambda batch: batch,
}
"""What each hook does if it does not fail."""
HOOKS = ["cook_crude_sample", *RESULTS]
PACKING = ("select_samples_to_pack", "pack_selected_samples")


class Hook:
    """A hook whose third call raises."""

    def __init__(self, name: str, error: BaseException | None = None) -> None:
        self.name = name
        self.error = error
        self.calls = 0

    def __call__(self, argument: Any) -> Any:
        self.calls += 1
        if self.error is not None and self.calls == 3:
            raise self.error
        return RESULTS[self.name](argument) if self.name in RESULTS else self.cook(argument)

    def cook(self, crude: Any) -> CaptioningSample:
        image = next(crude[name] for name in ("jpg", "png", "webp") if name in crude)
        return CaptioningSample(**basic_sample_keys(crude), image=image, caption=crude["txt"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = captioning_dataset(tmp_path_factory.mktemp("hooks") / "data", count=12, shards=1)
    (folder / ".nv-meta" / "dataset.yaml").write_text(json.dumps(CRUDE))
    return folder


def open_loader(folder: Path, hook: str, error: BaseException, decoder: str, workers: int = 0) -> Any:
    encoder: Any = DefaultTaskEncoder()
    encoder.decoder = DECODERS[decoder]
    failing = Hook(hook, error.with_traceback(None))
    encoder.cookers = [Cooker(failing if hook == "cook_crude_sample" else Hook("cook_crude_sample"))]
    encoder.batch = Hook("batch")
    if hook in PACKING:
        for name in PACKING:
            setattr(encoder, name, Hook(name))
    if hook in RESULTS:
        setattr(encoder, hook, failing)
    dataset = get_train_dataset(
        folder,
        worker_config=WorkerConfig(
            rank=0, world_size=1, num_workers=workers, num_streams=1, global_error_handler=quiet
        ),
        batch_size=1,
        packing_buffer_size=2 if hook in PACKING else None,
        task_encoder=encoder,
    )
    return get_savable_loader(dataset, start_method="fork")


def check(folder: Path, hook: str, kind: str, decoder: str, workers: int = 0) -> None:
    error = KINDS[kind]
    with open_loader(folder, hook, error, decoder, workers) as loader:
        if kind in COUNTED or kind == "SkipSample":
            assert len(list(itertools.islice(loader, 10))) == 10
            counts = loader.stats().counts
            dropped = "samples.failed" if kind in COUNTED else "samples.skipped"
            assert counts[dropped] == 1
            assert [failure["stage"] for failure in loader.stats().failures] == [hook] * (kind in COUNTED)
            return
        with pytest.raises(FatalSampleError if kind in FATAL else type(error)) as raised:
            list(itertools.islice(loader, 10))
    if kind in FATAL:
        assert str(raised.value).startswith(f"{hook} raised {type(error).__name__}")
    else:
        assert raised.value is error


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_a_sample_of_hooks_kinds_and_decoders(number: int, folder: Path) -> None:
    """Each kind once; each hook with both decoders."""
    check(folder, HOOKS[number % len(HOOKS)], list(KINDS)[number], list(DECODERS)[number // len(HOOKS) % 2])


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("hook", HOOKS)
def test_all_hooks_kinds_and_decoders(hook: str, decoder: str, workers: int, folder: Path) -> None:
    in_worker = workers and (decoder == "sample" or hook in ("cook_crude_sample", "preencode_sample"))
    for kind in KINDS:
        if in_worker and kind in RAISED:
            continue  # it travels: see below
        check(folder, hook, kind, decoder, workers)


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "OwnBaseError"])
def test_what_ends_a_process_names_the_hook_in_the_trainer(kind: str) -> None:
    """In the trainer it would mean something else: that the user pressed Ctrl-C, or that the program is over."""

    def hook() -> None:
        raise KINDS[kind].with_traceback(None)

    with pytest.raises(type(KINDS[kind])) as raised:
        hook()
    assert raised.tb is not None
    error = raised.value.with_traceback(raised.tb.tb_next)  # without this function
    rebuilt = rebuild_error(failed_stream(0, 0, error, None), "worker 1")
    name = type(KINDS[kind]).__name__
    assert isinstance(rebuilt, WorkerError)
    assert re.match(rf"hook \({__file__}:\d+\) raised {name}.* outside the trainer's process", str(rebuilt))
    assert name in str(rebuilt.__cause__)


def test_a_worker_whose_hook_raises_generator_exit(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with (
        open_loader(folder, "batch_group_criterion", GeneratorExit(), "sample", workers=1) as loader,
        pytest.raises(WorkerError, match=r"^__call__ \(.*test_hook_exceptions.py:\d+\) raised GeneratorExit outside"),
    ):
        list(loader)
    assert capfd.readouterr().err == ""
