"""A tolerance counts failures in a row, in every stage: any number of them passes if there are successes in between."""

from __future__ import annotations

import contextlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import DaliDecoder, DefaultTaskEncoder, SampleDecoder, TaskEncoder, WorkerConfig, get_train_dataset
from energon_dali.cli.media_options import check_image
from energon_dali.datasets.base import SavableDataset
from energon_dali.datasets.hooks import FailurePolicy
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.datasets.native_rows import RowPlanner
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import DecodeError, FatalSampleError, ShardError
from energon_dali.shards import ShardReader, prepare_dataset
from tests.datasets.failing_stages import DECODERS, HOOKS, Check
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

TOLERANCE = 2
FAILURES = 4 * TOLERANCE
WHEN = {True: lambda number: number % 2 == 1, False: lambda number: number >= 2}


@pytest.fixture(autouse=True)
def tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives every stage the same tolerance, also those that have a fixed one."""
    init = FailurePolicy.__init__
    monkeypatch.setattr(
        FailurePolicy, "__init__", lambda self, stage, _, context, config: init(self, stage, TOLERANCE, context, config)
    )


def expect(tree: SavableDataset[Any], alternating: bool) -> None:
    """Checks that alternating failures pass, and that failures in a row end the run."""
    live: Any = RankIterator(tree)
    with contextlib.closing(live):
        if alternating:
            assert len(list(islice(live, FAILURES + 1))) == FAILURES + 1
            assert live.metrics.snapshot()["counts"]["samples.failed"] >= FAILURES
        else:
            with pytest.raises(FatalSampleError, match=f"failed {TOLERANCE} times in a row"):
                list(islice(live, FAILURES))


@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("stage", [*HOOKS, *DECODERS])
def test_a_stage_over_numbers(stage: str, alternating: bool) -> None:
    expect({**HOOKS, **DECODERS}[stage](Check(WHEN[alternating])), alternating)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = captioning_dataset(tmp_path_factory.mktemp("in_a_row") / "data", 24)
    prepare_dataset(str(folder), split_ratio={"train": 1.0}, check_part=check_image)
    return folder


def dataset(folder: Path, decoder: Any, **options: Any) -> SavableDataset[Any]:
    encoder: TaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.decoder = decoder
    job = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=quiet)
    source: Any = {"__class__": "MetadatasetV2", "splits": {"train": {"blend": [{"path": str(folder)}] * 2}}}
    return get_train_dataset(
        source if "blend_by" in options else folder,
        task_encoder=encoder,
        worker_config=job,
        parallel_shard_iters=1,
        **options,
    )


@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("feed", ["block", "native"])
def test_reading(feed: Any, alternating: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, read = Check(WHEN[alternating]), ShardReader.read

    def fail_some(reader: ShardReader, shards: Any, indices: Any) -> Any:
        return [ShardError("bad") if check.fails() else raw for raw in read(reader, shards, indices)]

    monkeypatch.setattr(ShardReader, "read", fail_some)
    monkeypatch.setattr(RowPlanner, "add", lambda *_: None)  # in the native feed, the reader reads all
    decoder = DaliDecoder(image_decode_device="cpu", feed=feed)
    expect(dataset(folder, decoder), alternating)


@pytest.mark.parametrize("alternating", [True, False])
@pytest.mark.parametrize("error", [ValueError("bad"), DecodeError("bad")], ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("feed", ["block", "native"])
def test_loading(feed: Any, error: Exception, alternating: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check, load = Check(WHEN[alternating], error), SampleLoader.__call__
    monkeypatch.setattr(SampleLoader, "__call__", lambda loader, *arguments: load(loader, *check(arguments)))
    expect(dataset(folder, DaliDecoder(image_decode_device="cpu", feed=feed)), alternating)


@pytest.mark.parametrize("alternating", [True, False])
def test_measuring(alternating: bool, folder: Path) -> None:
    expect(dataset(folder, SampleDecoder(), blend_by=Check(WHEN[alternating]).measure), alternating)
