from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali.datasets.load_sample import PartAccess, SampleLoader, parse_field_map
from energon_dali.datasets.metrics import Metrics
from energon_dali.decode import DaliDecoder, MediaHandle, SampleDecoder
from energon_dali.errors import DatasetFormatError, DecodeError
from energon_dali.samples.base import CrudeSample
from energon_dali.samples.kinds import CaptioningSample, TextSample
from energon_dali.shards import RawSample


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (10, 200, 30)).save(file, "JPEG")
    return file.getvalue()


def raw(**parts: bytes) -> RawSample:
    return RawSample(key="a/b", shard="s.tar", index=7, shard_index=0, sample_index=7, parts=parts)


def test_a_field_map_names_parts_alternatives_and_paths_into_json() -> None:
    fields = parse_field_map(
        {"image": "jpg, png", "caption": "json[captions][0][text],txt", "last": "json[captions][-1]"}
    )
    assert fields["image"] == (PartAccess("jpg"), PartAccess("png"))
    assert fields["caption"] == (PartAccess("json", ("captions", 0, "text")), PartAccess("txt"))
    assert fields["last"] == (PartAccess("json", ("captions", -1)),)


@pytest.mark.parametrize("expression", ["", "jpg,", "[0]", "json[", "json[a", "json[]"])
def test_an_invalid_field_map_is_named(expression: str) -> None:
    with pytest.raises(DatasetFormatError, match="image"):
        parse_field_map({"image": expression})


def test_fields_are_filled_from_the_first_alternative_that_exists() -> None:
    load = SampleLoader(
        decoder=SampleDecoder(),
        sample_type=CaptioningSample,
        field_map={"image": "png,jpg", "caption": "json[c][1]"},
        subflavors={"lang": "en"},
        dataset_path="/data",
    )
    sample = load(raw(jpg=jpeg(), json=b'{"c": ["one", "two"]}'), 0)
    assert isinstance(sample, CaptioningSample)
    assert (sample.__key__, sample.caption, sample.__subflavors__) == ("a/b", "two", {"lang": "en"})
    assert sample.image.shape == (3, 6, 8)
    assert sample.image.dtype == torch.float32
    (source,) = sample.__sources__ or ()
    assert (source.shard_name, source.index, source.file_names) == ("s.tar", 7, ("a/b.jpg", "a/b.json"))


def test_with_dali_images_stay_encoded_and_know_their_size() -> None:
    load = SampleLoader(
        decoder=DaliDecoder(image_decode_device="cpu"),
        sample_type=CaptioningSample,
        field_map={"image": "jpg", "caption": "txt"},
    )
    sample = load(raw(jpg=jpeg(), txt=b"hello"), 0)
    assert isinstance(sample.image, MediaHandle)
    assert (sample.image.width, sample.image.height, sample.image.format) == (8, 6, "jpeg")
    assert torch.equal(sample.image.decode(), SampleDecoder().decode("jpg", jpeg()))


def test_seeds_differ_by_epoch_and_part() -> None:
    load = SampleLoader(decoder=DaliDecoder(image_decode_device="cpu"), sample_type=CrudeSample)
    first, second = load.seeds(np.array([0, 1]), np.array([7, 7]))
    samples = [load(raw(jpg=jpeg(), png=jpeg()), seed) for seed in (first, second)]
    seeds = [sample[part].seed for sample in samples for part in ("jpg", "png")]
    assert len(set(seeds)) == 4
    assert load.seeds(np.array([0]), np.array([7])) == [first]


def test_a_missing_part_tells_which_parts_exist() -> None:
    load = SampleLoader(
        decoder=SampleDecoder(), sample_type=CaptioningSample, field_map={"image": "png", "caption": "txt"}
    )
    with pytest.raises(
        DatasetFormatError, match=r"'a/b' has no part 'png' for the field 'image'; it has \['jpg', 'txt'\]"
    ):
        load(raw(jpg=jpeg(), txt=b"x"), 0)


def test_a_missing_entry_in_json_tells_the_path() -> None:
    load = SampleLoader(
        decoder=SampleDecoder(), sample_type=CaptioningSample, field_map={"image": "jpg", "caption": "json[c][9]"}
    )
    with pytest.raises(DatasetFormatError, match=r"json\[c\]\[9\].*IndexError"):
        load(raw(jpg=jpeg(), json=b'{"c": []}'), 0)


@pytest.mark.parametrize("decoder", [SampleDecoder(), DaliDecoder(image_decode_device="cpu")])
def test_a_bad_part_is_named(decoder: SampleDecoder | DaliDecoder) -> None:
    load = SampleLoader(decoder=decoder, sample_type=CaptioningSample, field_map={"image": "jpg", "caption": "txt"})
    with pytest.raises(DecodeError, match="Part 'jpg'"):
        load(raw(jpg=b"this is text", txt=b"x"), 0)


def test_a_crude_sample_keeps_all_parts() -> None:
    load = SampleLoader(decoder=None, sample_type=CrudeSample, subflavors={"a": 1})
    sample = load(raw(txt=b"x", json=b"{}"), 0)
    assert isinstance(sample, CrudeSample)
    assert {"__key__", "__shard__", "__restore_key__", "__subflavors__", "__sources__", "txt", "json"} == set(sample)


def test_only_parts_that_a_field_names_are_read() -> None:
    load = SampleLoader(
        decoder=None, sample_type=CaptioningSample, field_map={"image": "jpg,png", "caption": "json[a]"}
    )
    wanted = load.part_filter()
    assert wanted is not None
    assert [name for name in ("jpg", "png", "json", "txt", "seg.png") if wanted(name)] == ["jpg", "png", "json"]


def test_a_sample_loader_makes_the_fields() -> None:
    def make(parts: dict[str, object]) -> dict[str, object]:
        return {"image": parts["jpg"], "caption": f"{parts['__key__']}: {parts['txt']}"}

    load = SampleLoader(decoder=SampleDecoder(), sample_type=CaptioningSample, sample_loader=make)
    assert load(raw(jpg=jpeg(), txt=b"hi"), 0).caption == "a/b: hi"


def test_a_sample_loader_receives_a_restore_key_and_the_sample_keeps_its_own() -> None:
    def make(parts: dict[str, object]) -> dict[str, object]:
        return {"__restore_key__": parts["__restore_key__"], "text": str(parts["__restore_key__"])}

    sample = SampleLoader(decoder=None, sample_type=TextSample, sample_loader=make)(raw(), 0, ("Webdataset", 7, 0))
    assert (sample.text, sample.__restore_key__) == ("('Webdataset', 7)", ("Webdataset", 7, 0))


JSON = b"""{"a": "text", "captions": [], "0": "zero", "none": null, "list": ["x", "y"],
"dict": {"0": "first", "-1": "minus", "007": "bond"}}"""


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("json[caption],txt", "T"),
        ("json[caption],json[a]", "text"),
        ("json[captions][0],txt", "T"),
        ("json[a][0],txt", "T"),
        ("json[0]", "zero"),
        ("json[dict][0]", "first"),
        ("json[dict][-1]", "minus"),
        ("json[dict][007]", "bond"),
        ("json[list][-1]", "y"),
        ("json[list][01]", "y"),
        ("json[list][x],txt", "T"),
        ("json[list][2],txt", "T"),
        ("json[none][a],txt", "T"),
        ("json[none],txt", None),
        ("cls,json[b],json[list][0]", "x"),
    ],
)
def test_the_first_alternative_that_can_be_reached_wins(expression: str, expected: object) -> None:
    """The expected values are those of megatron-energon 7.4.1."""
    load = SampleLoader(
        decoder=SampleDecoder(), sample_type=CaptioningSample, field_map={"image": "txt", "caption": expression}
    )
    assert load(raw(json=JSON, txt=b"T"), 0).caption == expected


@pytest.mark.parametrize("expression", ["json[a][0]", "json[a][0],json[captions][0]", "json[list][0][0]"])
def test_no_step_leads_into_text(expression: str) -> None:
    load = SampleLoader(
        decoder=SampleDecoder(), sample_type=CaptioningSample, field_map={"image": "txt", "caption": expression}
    )
    with pytest.raises(DatasetFormatError, match="into a value of type str, which is neither a dict nor a list"):
        load(raw(json=JSON, txt=b"T"), 0)


@pytest.mark.parametrize(
    "field_map", [{"image": "jpg", "caption": "txt"}, {"image": "jpg,png", "caption": "txt,json[c]"}]
)
def test_whole_parts_and_alternatives_fill_the_same_fields(field_map: dict[str, str]) -> None:
    metrics = Metrics()
    load = SampleLoader(decoder=SampleDecoder(), sample_type=CaptioningSample, field_map=field_map).counting(metrics)
    sample = load(raw(jpg=jpeg(), txt=b"words"), 3)
    assert (sample.caption, sample.image.shape, metrics.snapshot()["counts"]) == ("words", (3, 6, 8), {"route.pil": 1})
    with pytest.raises(DatasetFormatError, match="sample 'a/b' has no part 'txt"):
        load(raw(jpg=jpeg()), 3)


def test_two_fields_of_one_part_share_its_value() -> None:
    load = SampleLoader(decoder=None, sample_type=CaptioningSample, field_map={"image": "txt", "caption": "txt"})
    sample = load(raw(txt=b"words"), 0)
    assert sample.image is sample.caption


def test_a_part_that_its_reader_refuses_is_a_decode_error_that_names_it() -> None:
    load = SampleLoader(decoder=SampleDecoder(), sample_type=CrudeSample)
    assert load(raw(json=b'{"a": 1}'), 0)["json"] == {"a": 1}
    with pytest.raises(DecodeError, match=r"Part 'json'.*not a valid .json"):
        load(raw(json=b'{"a": '), 0)
    assert load(raw(json=b"[2]"), 0)["json"] == [2]


def test_names_of_parts_without_end_take_no_memory_without_end() -> None:
    load = SampleLoader(decoder=SampleDecoder(), sample_type=CrudeSample)
    for number in range(2500):
        assert load(raw(**{f"p{number}.txt": b"x"}), 0)[f"p{number}.txt"] == "x"
    assert len(load._readers) <= 1000


def test_the_key_to_restore_a_sample_comes_with_it() -> None:
    key = ("Webdataset", 7, 2)
    whole = SampleLoader(
        decoder=SampleDecoder(), sample_type=CaptioningSample, field_map={"image": "jpg", "caption": "txt"}
    )
    assert whole(raw(jpg=jpeg(), txt=b"a"), 0, key).__restore_key__ == key
    assert (
        SampleLoader(decoder=SampleDecoder(), sample_type=CrudeSample)(raw(txt=b"a"), 0, key)["__restore_key__"] == key
    )

    def own(parts: dict[str, object]) -> dict[str, object]:
        return {"__key__": "own", "__restore_key__": (), "image": parts["jpg"], "caption": parts["txt"]}

    made = SampleLoader(decoder=SampleDecoder(), sample_type=CaptioningSample, sample_loader=own)
    sample = made(raw(jpg=jpeg(), txt=b"a"), 0, key)
    assert (sample.__key__, sample.__restore_key__) == ("own", key)
