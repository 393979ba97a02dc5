"""Crude data: cookers with stores, primary and cache; decoding of their media; restores; defects of Energon."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali import (
    CaptioningSample,
    Cooker,
    DaliDecoder,
    DefaultTaskEncoder,
    SampleDecoder,
    TextSample,
    WorkerConfig,
    basic_sample_keys,
    cooker,
    get_loader,
    get_savable_loader,
    get_train_dataset,
    get_val_dataset,
    stateless,
)
from energon_dali.cache import FileStoreCachePool, Lazy
from energon_dali.datasets.mixing.blend import BlendDataset
from energon_dali.decode import RandomCrop
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.processes.class_pickling import pickle_task
from energon_dali.samples.kinds import InterleavedSample
from tests.datasets.oracle import check_resume
from tests.loader.crude_folder import BROKEN, MISSING, polylithic
from tests.quiet import quiet

pytestmark = pytest.mark.usefixtures("warm_workers")

CROP = {"image_decode": "torchrgb8", "operations": [RandomCrop(12)]}
DECODERS = {"pil": SampleDecoder(**CROP), "dali": DaliDecoder(image_decode_device="cpu", **CROP)}  # type: ignore[arg-type]


@stateless
def cook_line(sample: dict[str, Any], images: Any, files: Any) -> InterleavedSample:
    line = sample["json"]
    sequence = [images.get(line["image"], sample), str(line["n"]), files.get(line["file"], sample)]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


@stateless
@cooker(need_primary=True)
def cook_shard(sample: dict[str, Any], images: Any, primary: Any) -> InterleavedSample:
    own = primary.get(".jpg", sample)
    sequence = [sample["jpg"], str(sample["json"]["n"]), images.get(sample["json"]["image"], sample), own]
    return InterleavedSample(**basic_sample_keys(sample), sequence=sequence)


class Mixed(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook_line, {"kind": "lines"}), Cooker(cook_shard, {"kind": "shards"}))

    def __init__(self, decoder: str) -> None:
        super().__init__()
        self.decoder = DECODERS[decoder]


def job(num_workers: int = 0, num_streams: int = 2) -> WorkerConfig:
    return WorkerConfig(
        rank=0,
        world_size=1,
        num_workers=num_workers,
        num_streams=num_streams,
        seed_offset=3,
        global_error_handler=quiet,
    )


@pytest.fixture(scope="module")
def mix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return polylithic(tmp_path_factory.mktemp("mix"))


def plain(value: Any) -> Any:
    """Returns a sample or batch in a form that can be compared."""
    if isinstance(value, torch.Tensor):
        return [list(value.shape), value.flatten().tolist()]
    if isinstance(value, Lazy):
        return plain(value.get())
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def val(mix: Path, encoder: Any, split: str, workers: int = 0, **options: Any) -> list[Any]:
    dataset = get_val_dataset(mix, split_part=split, worker_config=job(workers), task_encoder=encoder)
    with get_loader(dataset, **options) as loader:
        return [plain(sample) for sample in loader]


def test_media_of_stores_are_those_of_every_decoder_and_layout(mix: Path) -> None:
    expected = val(mix, Mixed("pil"), "val")
    assert len(expected) == 32
    assert val(mix, Mixed("dali"), "val") == expected
    assert val(mix, Mixed("dali"), "val", workers=2) == expected
    lines = [sample for sample in expected if len(sample["sequence"]) == 3]
    shards = [sample for sample in expected if len(sample["sequence"]) == 4]
    assert sorted(int(sample["sequence"][1]) for sample in lines) == list(range(16))
    assert all(sample["sequence"][0] == sample["sequence"][3] for sample in shards), (
        "a part is cropped as in its sample"
    )
    assert all(sample["sequence"][0] != sample["sequence"][2] for sample in shards)
    (own, image, file) = lines[0]["__sources__"]
    assert (Path(own["dataset_path"]).name, own["file_names"]) == ("lines.jsonl", [f"{lines[0]['__key__']}.json"])
    assert (Path(image["dataset_path"]).name, image["file_names"][0]) == ("images", image["index"])
    assert (Path(file["dataset_path"]).name, file["shard_name"]) == ("files", file["dataset_path"])
    assert [len(sample["__sources__"]) for sample in shards] == [3] * 16


def test_media_of_stores_and_of_samples_are_decoded_in_one_block(mix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[set[str]] = []
    submit = DaliDecoder.submit_block

    def watched(self: DaliDecoder, handles: Any) -> Any:
        blocks.append({Path(handle.source.dataset_path).name for handle in handles})
        return submit(self, handles)

    monkeypatch.setattr(DaliDecoder, "submit_block", watched)
    assert len(val(mix, Mixed("dali"), "shards")) == 16
    assert blocks == [{"shards", "images"}] * 2, "one block for each of the two streams"


def test_a_part_is_cropped_alike_at_every_place_of_a_blend(mix: Path) -> None:
    dataset = get_train_dataset(
        mix, split_part="shards", worker_config=job(), task_encoder=Mixed("pil"), batch_size=None
    )
    samples = [plain(sample) for sample, _ in zip(BlendDataset((dataset, 1), (dataset, 1)), range(12), strict=False)]
    assert all(sample["sequence"][0] == sample["sequence"][3] for sample in samples)


@pytest.mark.parametrize("decoder", ["pil", "dali"])
def test_cooked_blends_restore_exactly(mix: Path, decoder: str) -> None:
    def make() -> Any:
        return get_train_dataset(
            mix,
            worker_config=job(),
            task_encoder=Mixed(decoder),
            batch_size=None,
            shuffle_buffer_size=5,
            max_samples_per_sequence=4,
        )

    check_resume(make, count=20, view=plain)


# --- references and caches ------------------------------------------------------------------------------------------


@stateless
@cooker(need_cache=True)
def cook_lazily(sample: dict[str, Any], images: Any, files: Any, cache: Any) -> CaptioningSample:
    line = sample["json"]
    lazy = cache.get_lazy(images, line["image"])
    note = cache.to_cache({"n": line["n"]}, "note")
    return CaptioningSample(
        **basic_sample_keys(sample), image=[lazy, cache.get_lazy(files, line["file"]), lazy], caption=note
    )


class Late(DefaultTaskEncoder[Any, Any, Any, Any]):
    """Fetches after decoding if that is in the rank, else in the worker."""

    cookers = (Cooker(cook_lazily),)

    def __init__(self, decoder: str, *, keep: bool = False) -> None:
        super().__init__()
        self.decoder = DECODERS[decoder]
        self.keep = keep

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        if not self.keep:
            first, second, again = sample.image
            assert first.get(sample) is again.get(sample)
            sample.image = [first.get(sample), second.get(sample)]
            sample.caption = sample.caption.get()["n"]
        return sample


@pytest.mark.parametrize("keep", [False, True])
def test_references_give_the_same_everywhere(mix: Path, keep: bool, tmp_path: Path) -> None:
    """Workers or none, cache or none, either decoder; fetched in a hook, or by the user from the batch (defect 7)."""
    expected = val(mix, Late("pil", keep=keep), "lines")
    assert len(expected) == 16
    if not keep:
        assert [len(sample["__sources__"]) for sample in expected] == [3] * 16
    assert val(mix, Late("dali", keep=keep), "lines") == expected
    for decoder, workers in (("dali", 0), ("dali" if keep else "pil", 2)):
        pool = FileStoreCachePool(parent_cache_dir=tmp_path, num_workers=2, max_cache_count=30)
        assert val(mix, Late(decoder, keep=keep), "lines", workers, cache_pool=pool) == expected
        pool.close()
        assert not list(tmp_path.iterdir())


def test_a_reference_stays_one_in_a_batch(mix: Path) -> None:
    dataset = get_val_dataset(
        mix, split_part="lines", worker_config=job(), batch_size=4, task_encoder=Late("dali", keep=True)
    )
    with get_loader(dataset) as loader:
        batch = next(iter(loader))
        assert [lazy.get()["n"] for lazy in batch.caption] == [int(key) for key in batch.__key__]
        assert [tuple(lazy.get().shape) for images in batch.image for lazy in images] == [(3, 12, 12)] * 12
        assert plain(loader.restore_sample(batch.__restore_key__)) == plain(batch)


def test_lazy_cooking_restores_exactly(mix: Path, tmp_path: Path) -> None:
    def make() -> Any:
        return get_train_dataset(
            mix,
            split_part="lines",
            worker_config=job(),
            task_encoder=Packs(),
            packing_buffer_size=5,
            batch_size=None,
            shuffle_buffer_size=5,
        )

    check_resume(make, count=12, view=plain)
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    with get_savable_loader(make(), cache_pool=pool) as loader:
        batches = iter(loader)
        first = [plain(next(batches)) for _ in range(3)]
        state = loader.save_state_rank()
        rest = [plain(next(batches)) for _ in range(3)]
    with get_savable_loader(make(), cache_pool=pool) as loader:
        loader.restore_state_rank(state)
        assert [plain(batch) for batch, _ in zip(loader, range(3), strict=False)] == rest
    with get_loader(make()) as loader:
        assert [plain(batch) for batch, _ in zip(loader, range(6), strict=False)] == first + rest
    pool.close()


class Packs(Late):
    """Fetches only what was chosen."""

    def __init__(self) -> None:
        super().__init__("dali", keep=True)

    encode_sample = DefaultTaskEncoder.encode_sample

    @stateless
    def preencode_sample(self, sample: Any) -> Any:
        return sample

    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        return [samples[:2], samples[3:]]

    @stateless
    def postencode_sample(self, sample: Any) -> Any:
        sample.image = [sample.image[0].get(sample), sample.image[1].get(sample)]
        return sample

    @stateless
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        return TextSample.derive_from(samples[0], text=str(plain([sample.image for sample in samples])))


# --- failures, forms and settings -----------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["pil", "dali"])
def test_a_missing_file_and_a_broken_line_fail_alone(decoder: str, tmp_path: Path) -> None:
    mix = polylithic(tmp_path, 12, damaged=True)
    dataset = get_val_dataset(mix, split_part="lines", worker_config=job(), task_encoder=Mixed(decoder))
    with get_loader(dataset) as loader:
        keys = [sample.__key__ for sample in loader]
        reasons = {failure["key"]: failure["reason"] for failure in loader.stats().failures}
    assert sorted(map(int, keys)) == [number for number in range(12) if number not in (MISSING, BROKEN)]
    assert "has no file 'b/i5.jpg'" in reasons[str(MISSING)]
    assert "'json'" in reasons[str(BROKEN)]
    lazy = val(mix, Late(decoder), "lines")
    assert sorted(int(sample["__key__"]) for sample in lazy) == sorted(map(int, keys))


@cooker
def cook_twice(sample: dict[str, Any], **aux: Any) -> Iterator[TextSample]:
    for number in range(2):
        yield TextSample(**basic_sample_keys(sample), text=f"{sample['json']['n']} {number} {sorted(aux)}")


class Twice(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(stateless(cook_twice)),)
    decoder = None

    @stateless
    def cook_crude_sample(self, sample: Any, cooker: Any, aux: Any) -> Any:
        return super().cook_crude_sample(sample, cooker, {name: aux[name] for name in aux if name != "files"})


def test_generator_cookers_overrides_and_lines_without_a_decoder(mix: Path) -> None:
    found = sorted(sample["text"] for sample in val(mix, Twice(), "lines"))
    assert found == sorted(f"{n} {number} ['images']" for n in range(16) for number in range(2))

    def make() -> Any:
        return get_train_dataset(
            mix,
            split_part="lines",
            worker_config=job(num_streams=3),
            task_encoder=Twice(),
            batch_size=None,
            shuffle_buffer_size=4,
            max_samples_per_sequence=3,
            repeat=False,
        )

    assert sorted(sample.text for sample in make()) == found
    check_resume(make, count=15, view=plain)
    dataset = make()
    sample = next(iter(dataset))
    assert plain(dataset.restore_sample(sample.__restore_key__)) == plain(sample)


def text_of(sample: dict[str, Any], *words: object) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=" ".join(map(str, words)))


@stateless
def cook_names(sample: dict[str, Any], **aux: Any) -> TextSample:
    return text_of(sample, "cooker", *sorted(aux))


@stateless
def of_the_sample(self: Any, sample: Any) -> Any:
    """The form of Energon's guide."""
    return text_of(sample, "alone")


@stateless
def with_a_cooker(self: Any, sample: Any, cooker: Any) -> Any:
    return cooker.cook(sample)


@stateless
def with_all(self: Any, sample: Any, *, cooker: Any, aux: Any) -> Any:
    return cooker.cook(sample, **aux)


@stateless
def with_the_stores(self: Any, sample: Any, aux: Any, cooker: Any = None) -> Any:
    return text_of(sample, cooker is not None, *sorted(aux))


@stateless
def with_anything(self: Any, sample: Any, **given: Any) -> Any:
    return text_of(sample, *sorted(given))


@stateless
def generated(self: Any, sample: Any) -> Any:
    yield text_of(sample, "one")
    yield text_of(sample, "two")


@pytest.mark.parametrize(
    ("hook", "alone", "with_cooker"),
    [
        (of_the_sample, ["alone"], ["alone"]),
        (with_a_cooker, None, ["cooker"]),
        (with_all, None, ["cooker files images"]),
        (with_the_stores, ["False files images"], ["True files images"]),
        (with_anything, ["aux"], ["aux cooker"]),
        (generated, ["one", "two"], ["one", "two"]),
    ],
)
def test_an_overridden_cook_is_called_with_what_it_asks_for(
    hook: Any, alone: list[str] | None, with_cooker: list[str], mix: Path
) -> None:
    for cookers, expected in (((), alone), ((Cooker(cook_names),), with_cooker)):
        encoder = type("Encoder", (Twice,), {"cook_crude_sample": hook, "cookers": cookers})()
        if expected is None:
            with pytest.raises(ConfigError, match=r"none at all.*or override cook_crude_sample\(self, sample\)"):
                val(mix, encoder, "lines")
            continue
        dataset = get_val_dataset(mix, split_part="lines", worker_config=job(), task_encoder=encoder, batch_size=1)
        found = [text for batch in pickle.loads(pickle_task(dataset)) for text in batch.text]
        assert sorted(found) == sorted(expected * 16)
        assert dataset.can_restore_sample()


class NotRestorable(Twice):
    cookers = (Cooker(cook_twice),)

    def cook_crude_sample(self, sample: Any, cooker: Any, aux: Any) -> Any:
        return cooker.cook(sample, **aux)


def test_what_is_not_stateless_says_so(mix: Path) -> None:
    dataset = get_val_dataset(mix, split_part="lines", worker_config=job(), task_encoder=NotRestorable())
    assert len(list(dataset)) == 32
    with pytest.raises(StateError, match="not marked"):
        dataset.assert_can_restore()


def test_a_jsonl_file_is_a_dataset_by_itself(mix: Path) -> None:
    class Texts(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(primary_text),)

    dataset = get_train_dataset(
        mix.parent / "lines.jsonl", worker_config=job(), task_encoder=Texts(), batch_size=4, repeat=False
    )
    batches = list(dataset)
    assert sorted(text for batch in batches for text in batch.text) == sorted(f"{n} {n - n % 2}" for n in range(16))
    with pytest.raises(ConfigError, match="is not a CachePool"):
        get_loader(dataset, cache_pool=3)
    closed = FileStoreCachePool()
    closed.close()
    with pytest.raises(ConfigError, match="was closed"):
        get_loader(dataset, cache_pool=closed)


@stateless
@cooker(need_primary=True, need_cache=True)
def primary_text(sample: dict[str, Any], primary: Any, cache: Any) -> TextSample:
    number = int(sample["__key__"])
    other = cache.get_lazy(primary, f"{number - number % 2}.json").get(sample)
    assert primary[".json"][0] == sample["json"]
    return TextSample(**basic_sample_keys(sample), text=f"{number} {other['n']}")


class Cached(DefaultTaskEncoder[Any, Any, Any, Any]):
    cookers = (Cooker(cook_shard),)

    @stateless
    def encode_sample(self, sample: Any) -> Any:
        return TextSample.derive_from(sample, text=self.cache.to_cache(type(self.cache).__name__, "name").get())


def test_hooks_find_the_loaders_pool(mix: Path, tmp_path: Path) -> None:
    dataset = get_val_dataset(mix, split_part="shards", worker_config=job(), task_encoder=Cached())
    assert next(iter(get_loader(dataset))).text == "NoCachePool"
    pool = FileStoreCachePool(parent_cache_dir=tmp_path)
    loader = get_loader(dataset, cache_pool=pool)
    sample = next(iter(loader))
    assert sample.text == loader.restore_sample(sample.__restore_key__).text == "FileStoreCachePool"
    pool.close()


def wants_other(sample: dict[str, Any], pictures: Any, files: Any) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text="")


def wants_more(sample: dict[str, Any], images: Any, files: Any, sounds: Any) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text="")


def wants_less(sample: dict[str, Any]) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text="")


@cooker(need_cache=True)
def wants_no_cache(sample: dict[str, Any], images: Any, files: Any) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text="")


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (wants_other, "missing a required argument: 'pictures'|unexpected keyword argument 'images'"),
        (wants_more, "missing a required argument: 'sounds'"),
        (wants_less, "unexpected keyword argument 'images'"),
        (wants_no_cache, "unexpected keyword argument 'cache'"),
    ],
)
def test_a_cooker_that_does_not_take_the_stores_is_refused_at_once(mix: Path, function: Any, says: str) -> None:
    encoder: DefaultTaskEncoder[Any, Any, Any, Any] = DefaultTaskEncoder()
    encoder.cookers = (Cooker(function),)
    with pytest.raises(ConfigError, match=rf"cannot be called with \(sample, images=\.\.\..*({says})"):
        get_val_dataset(mix, split_part="lines", worker_config=job(), task_encoder=encoder)
