"""A metadataset through the loader: shares in samples and in tokens, statistics, and exact resume over workers."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from energon_dali import (
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    get_savable_loader,
    get_train_dataset,
)
from energon_dali.errors import ConfigError
from tests.loader.dataset_folder import prepare, write_shards

WEIGHTS = {"short": 0.6, "long": 0.3, "few": 0.1}
LENGTHS = {"short": 10, "long": 100, "few": 30}
SIZES = {"short": 90, "long": 31, "few": 1}


class Tokeniser(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder: Any = SampleDecoder()

    def encode_sample(self, sample: TextSample) -> dict[str, Any]:
        return {"__key__": sample.__key__, "tokens": sample.text.split(), "__restore_key__": ()}

    def batch(self, samples: list[dict[str, Any]]) -> list[tuple[str, int]]:
        return [(sample["__key__"], len(sample["tokens"])) for sample in samples]


class Splitting(DefaultTaskEncoder[Any, Any, Any, Any]):
    decoder = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")

    def preencode_sample(self, sample: TextSample) -> TextSample:
        return TextSample.derive_from(sample, text=sample.text.split())

    def batch(self, samples: list[TextSample]) -> list[tuple[str, int]]:
        return [(sample.__key__, len(sample.text)) for sample in samples]


class InTheRank(Tokeniser):
    decoder: Any = DaliDecoder(image_decode="torchrgb8", image_decode_device="cpu")


@pytest.fixture(scope="module")
def blend(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("blend")
    for name, size in SIZES.items():
        words = [LENGTHS[name] + (number % 5 - 2) * LENGTHS[name] // 10 for number in range(size)]
        samples = {f"{name}{number}": {"txt": b"word " * count} for number, count in enumerate(words)}
        prepare(write_shards(root / name, samples, min(size, 3)), {"text": "txt"}, "TextSample")
    parts = [{"path": name, "weight": weight} for name, weight in WEIGHTS.items()]
    whole = {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": {"train": {"blend": parts}}}
    (root / "blend.yaml").write_text(json.dumps(whole))
    return root / "blend.yaml"


def loader(path: Path, encoder: Any, workers: int, **options: Any) -> Any:
    config = WorkerConfig(rank=0, world_size=1, num_workers=workers, num_streams=2)
    dataset = get_train_dataset(
        path, worker_config=config, batch_size=8, task_encoder=encoder, shuffle_buffer_size=20, **options
    )
    return get_savable_loader(dataset, start_method="fork") if workers else get_savable_loader(dataset)


def samples(opened: Any, batches: int) -> list[tuple[str, int]]:
    with opened:
        return [sample for batch in islice(opened, batches) for sample in batch]


def shares(taken: list[tuple[str, int]]) -> dict[str, tuple[float, float]]:
    table = {name: [length for key, length in taken if key.startswith(name)] for name in WEIGHTS}
    return {
        name: (len(rows) / len(taken), sum(rows) / sum(length for _, length in taken)) for name, rows in table.items()
    }


@pytest.mark.parametrize("encoder", [Tokeniser, Splitting], ids=lambda kind: kind.__name__)
def test_weights_in_samples_or_in_tokens(blend: Path, encoder: Any) -> None:
    if encoder is Tokeniser:
        by_samples = shares(samples(loader(blend, encoder(), 0), 300))
        assert {name: share[0] for name, share in by_samples.items()} == pytest.approx(WEIGHTS, abs=0.01)
    measure = "tokens" if encoder is Tokeniser else (lambda sample: len(sample.text))
    opened = loader(blend, encoder(), 0, blend_by=measure)
    by_units = shares(samples(opened, 500))
    assert {name: share[1] for name, share in by_units.items()} == pytest.approx(WEIGHTS, abs=0.01)
    table = opened.stats()["blend"]
    assert {name: row["unit_share"] for name, row in table.items()} == pytest.approx(WEIGHTS, abs=0.01)
    assert sum(row["samples"] for row in table.values()) >= 4000


def test_a_state_continues_the_shares_on_another_number_of_workers(blend: Path) -> None:
    with loader(blend, Tokeniser(), 2, blend_by="tokens") as opened:
        batches = iter(opened)
        for _ in range(37):
            next(batches)
        state = json.loads(json.dumps(opened.save_state_rank()))
        expected = [next(batches) for _ in range(30)]
    for workers in (0, 1):
        restored = loader(blend, Tokeniser(), workers, blend_by="tokens")
        restored.restore_state_rank(state)
        with restored:
            assert list(islice(restored, 30)) == expected


def test_measuring_after_the_decoder_is_refused(blend: Path) -> None:
    with pytest.raises(ConfigError, match="Split it into preencode_sample"):
        loader(blend, InTheRank(), 0, blend_by="tokens")


def test_a_single_dataset_has_no_shares(blend: Path) -> None:
    with pytest.raises(ConfigError, match="several datasets that are blended by weight"):
        loader(blend.parent / "short", Tokeniser(), 0, blend_by="tokens")
