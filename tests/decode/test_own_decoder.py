"""Public methods that a subclass of a decoder overrides are called wherever parts are decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    CaptioningSample,
    ConfigError,
    DaliDecoder,
    DecodeFileStore,
    DefaultTaskEncoder,
    SampleDecoder,
    WorkerConfig,
    get_loader,
    get_train_dataset,
)
from energon_dali.cli.media_options import check_image
from energon_dali.decode import MediaHandle, RandomResizedCrop
from energon_dali.decode.interface import Outcome
from energon_dali.decode.part_kind import find_part_kind
from energon_dali.shards import prepare_dataset
from tests.cache.files import Numbers
from tests.loader.dataset_folder import captioning_dataset
from tests.quiet import quiet

OPTIONS: dict[str, Any] = {"image_decode": "torchrgb8", "operations": (RandomResizedCrop(24),)}


class Shouting:
    def decode(self, fname: str, raw: bytes) -> Any:
        if fname.endswith("txt"):
            return raw.decode().upper()
        return super().decode(fname, raw)  # type: ignore[misc]


class ShoutingOnPil(Shouting, SampleDecoder):
    pass


class ShoutingOnDali(Shouting, DaliDecoder):
    pass


class Calling(SampleDecoder):
    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        made = super().__call__(sample)
        return {**made, "txt": f"{sample['__key__']}: {made['txt']}"}


class Darkening(DaliDecoder):
    def decode_block(self, handles: Sequence[MediaHandle]) -> list[Outcome]:
        outcomes = super().decode_block(handles)
        for outcome in outcomes:
            outcome.value = outcome.value * 0  # type: ignore[union-attr]
        return outcomes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("captions"), count=20)


def samples(folder: Path, decoder: Any, **options: Any) -> list[CaptioningSample]:
    encoder: Any = DefaultTaskEncoder()
    encoder.decoder = decoder
    config = WorkerConfig(rank=0, world_size=1, num_workers=0, global_error_handler=quiet)
    dataset = get_train_dataset(folder, worker_config=config, batch_size=None, task_encoder=encoder, **options)
    with get_loader(dataset) as loader:
        return list(islice(loader, 10))


@pytest.mark.parametrize("decoder", [ShoutingOnPil(**OPTIONS), ShoutingOnDali(image_decode_device="cpu", **OPTIONS)])
def test_an_overridden_decode_is_called_for_samples(decoder: Any, folder: Path) -> None:
    plain = samples(folder, SampleDecoder(**OPTIONS))
    for sample, expected in zip(samples(folder, decoder), plain, strict=True):
        assert sample.caption == expected.caption.upper() != expected.caption
        # The crop is the sample's: drawn from its seed, not from 0.
        assert torch.equal(sample.image, expected.image)


def test_an_overridden_decode_is_called_for_the_files_of_a_store() -> None:
    class Naming(SampleDecoder):
        def decode(self, fname: str, raw: bytes) -> Any:
            return fname, bytes(raw)

    assert DecodeFileStore(Numbers(3), decoder=Naming())["7"][0] == ("7", b"777")
    assert ShoutingOnPil().decode("a/b.json", b"[1]") == [1]


def test_an_overridden_call_is_called_with_whole_samples(folder: Path) -> None:
    plain = samples(folder, SampleDecoder(**OPTIONS))
    for sample, expected in zip(samples(folder, Calling(**OPTIONS)), plain, strict=True):
        assert sample.caption == f"{expected.__key__}: {expected.caption}"
        assert torch.equal(sample.image, expected.image)


def test_an_overridden_decode_block_is_called(folder: Path) -> None:
    found = samples(folder, Darkening(image_decode_device="cpu", **OPTIONS))
    # Some kinds of PNG and WebP images never get there, because workers decode them.
    jpegs = [sample for sample in found if any(name.endswith("jpg") for name in sample.__sources__[0].file_names)]
    assert jpegs
    assert all(not sample.image.any() for sample in jpegs)


def test_the_native_feed_refuses_a_decoder_that_it_would_not_call(folder: Path) -> None:
    recipe = (folder / ".nv-meta" / "dataset.yaml").read_text()
    prepare_dataset(str(folder), split_patterns=[("train", ".*")], check_part=check_image)
    (folder / ".nv-meta" / "dataset.yaml").write_text(recipe)
    decoder = ShoutingOnDali(image_decode_device="cpu", feed="native", **OPTIONS)
    with pytest.raises(ConfigError, match=r'ShoutingOnDali overrides decode\. Use feed="block"'):
        samples(folder, decoder, parallel_shard_iters=1)


def test_the_kinds_of_many_names_are_not_kept() -> None:
    decoder = SampleDecoder()
    for number in range(3000):
        decoder.decode(f"{number}.txt", b"t")
    assert find_part_kind.cache_info().currsize <= 1000
