"""Front ends in whole pipelines: packed before anything is decoded, with every composition, and resumed exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import DaliDecoder, SampleDecoder, WorkerConfig, get_loader, get_train_dataset
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.decode.interface import Decoder
from tests.datasets.oracle import check_resume
from tests.loader.interleaved_folder import (
    COUNT,
    DAMAGED,
    IMAGE_TOKEN,
    Interleaved,
    interleaved_folder,
    sizes_of,
    view,
)
from tests.quiet import quiet


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return interleaved_folder(tmp_path_factory.mktemp("interleaved"))


def dataset(mix: Path, encoder: Any, *, packed: bool, workers: int = 0, repeat: bool = False) -> Any:
    config = WorkerConfig(
        rank=0, world_size=1, num_workers=workers, num_streams=2, seed_offset=3, global_error_handler=quiet
    )
    return get_train_dataset(
        mix,
        worker_config=config,
        batch_size=2,
        task_encoder=encoder,
        packing_buffer_size=6 if packed else None,
        shuffle_buffer_size=8,
        max_samples_per_sequence=None,
        repeat=repeat,
    )


@pytest.mark.parametrize(
    ("decoder", "operations", "packed"),
    [
        ("pil", "folded", True),
        ("dali", "plain", True),
        ("dali", "folded", False),
        pytest.param("pil", "plain", True, marks=pytest.mark.sweep),
        pytest.param("dali", "folded", True, marks=pytest.mark.sweep),
        pytest.param("pil", "plain", False, marks=pytest.mark.sweep),
        pytest.param("pil", "folded", False, marks=pytest.mark.sweep),
        pytest.param("dali", "plain", False, marks=pytest.mark.sweep),
    ],
)
def test_interleaved_samples_resume_exactly(mix: Path, decoder: str, operations: str, packed: bool) -> None:
    check_resume(lambda: dataset(mix, Interleaved(decoder, operations), packed=packed, repeat=True), count=4, view=view)


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "unpacked"])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
def test_decoders_agree_and_only_the_bad_sample_is_missing(mix: Path, packed: bool, workers: int) -> None:
    batches = {}
    for name in ("pil", "dali"):
        with get_loader(dataset(mix, Interleaved(name, "folded"), packed=packed, workers=workers)) as loader:
            batches[name] = [view(batch) for batch in loader]
            failures = loader.stats().failures
        assert {failure["key"] for failure in failures if failure["stage"] == "decode"} == {f"k{DAMAGED:02d}"}, name
    found = str(batches["pil"])
    assert [number for number in range(COUNT) if f"k{number:02d}" not in found] == [DAMAGED]
    assert batches["dali"] == batches["pil"]


@pytest.mark.parametrize("decoder", ["pil", "dali"])
def test_only_what_is_in_a_pack_is_decoded(mix: Path, decoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[list[Any]] = []
    kind: type[Decoder] = SampleDecoder if decoder == "pil" else DaliDecoder
    submit = kind.submit_block

    def watched(self: Any, handles: Any) -> Any:
        blocks.append([(handle.source.index, handle.name) for handle in handles])
        return submit(self, handles)

    monkeypatch.setattr(kind, "submit_block", watched)
    batch = next(RankIterator(dataset(mix, Interleaved(decoder), packed=True)))
    numbers = [int(key[1:]) for keys in batch["keys"] for key in keys]
    images = sum(len(sizes_of(number)) + (number % 5 == 0) for number in numbers)
    decoded = [handle for block in blocks for handle in block]
    bad = len(sizes_of(DAMAGED))
    assert len(decoded) in (images, images + bad)
    assert len(numbers) < 6 <= COUNT, "the buffer had more samples than the two packs"


def test_a_pack_says_where_its_samples_are(mix: Path) -> None:
    with get_loader(dataset(mix, Interleaved("pil"), packed=True)) as loader:
        for batch in loader:
            for keys, ids, cu_seqlens, vision in zip(
                batch["keys"], batch["input_ids"], batch["cu_seqlens"], batch["vision"], strict=True
            ):
                assert cu_seqlens.dtype == torch.int32
                assert int(cu_seqlens[-1]) == ids.shape[1] == 48
                assert len(cu_seqlens) in (len(keys) + 1, len(keys) + 2)
                grids = iter(vision.get("image_grid_thw", []))
                for key, start, stop in zip(keys, cu_seqlens, cu_seqlens[1:], strict=False):
                    number = int(key[1:])
                    count = len(sizes_of(number)) + (number % 5 == 0)
                    tokens = sum(int(next(grids).prod()) // 4 for _ in range(count))
                    assert int((ids[0, start:stop] == IMAGE_TOKEN).sum()) == tokens
                assert next(grids, None) is None
