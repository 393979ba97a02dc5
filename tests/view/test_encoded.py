"""What the model sees: encoded samples and batches as images, tokens and strips; errors are shown, not fatal."""

from __future__ import annotations

import io
import pickle
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali.metadataset.loader import prepare_metadataset
from energon_dali.view.catalog import ViewOptions
from energon_dali.view.encoded import EncodedViews
from energon_dali.view.encoded_fields import FieldDescriber, find_strips, to_array
from energon_dali.view.encoder_session import EncoderSession, ViewEncoder
from energon_dali.view.pixels import find_images, to_uint8
from energon_dali.view.site import TEMPLATES
from tests.loader.dataset_folder import captioning_dataset, prepare, write_shards
from tests.photographs import full_photograph


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return captioning_dataset(tmp_path_factory.mktemp("encoded") / "data", count=12)


@pytest.fixture(scope="module")
def photograph() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8[112, 168, 3]: a part of a photograph."""
    return np.asarray(full_photograph("china").resize((168, 112)))


def shown(image: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(image.png)))


def session_of(folder: Path, encoder: str = "Captions", **options: Any) -> EncoderSession:
    return EncoderSession(ViewOptions(path=str(folder), encoder=f"tests.view.encoders:{encoder}", **options))


def test_a_sample_is_shown_as_the_model_sees_it(folder: Path) -> None:
    view = session_of(folder).sample(str(folder), 5)
    assert (view.error, view.note) == ("", "")
    (element,) = view.elements
    assert (element.type_name, element.keys) == ("EncodedCaption", ["k0005"])
    fields = {field.name: field for field in element.fields}
    assert list(fields) == ["image", "tokens", "labels"]
    (image,) = fields["image"].images
    assert (image.width, image.height, image.note) == (48, 32, "normalisation undone")
    assert fields["image"].summary.startswith("Tensor float32 [3, 32, 48], ")
    (row,) = fields["tokens"].rows
    assert "".join(token.text for token in row.tokens) == "picture number 5"
    assert [token.ignored for token in fields["labels"].rows[0].tokens] == [True] * 3 + [False] * 13


def test_errors_and_skipped_samples_are_shown(folder: Path) -> None:
    session = session_of(folder)
    skipped = session.sample(str(folder), 1)
    assert (skipped.elements, skipped.error, skipped.note) == ([], "", "The encoder skips this sample.")
    failed = session.sample(str(folder), 2)
    assert (failed.elements, failed.error) == ([], "ValueError: no <b>words</b> for this")
    assert "in encode_sample" in failed.trace
    assert session.sample(str(folder), 99).error.startswith("DatasetError: ")
    assert "does not read /elsewhere" in session.sample("/elsewhere", 0).error
    assert session.sample(str(folder), 3).error == ""


def test_the_first_batch_and_packs_with_their_boundaries(folder: Path) -> None:
    batch = session_of(folder, batch_size=2).batch()
    assert "Give --packing-buffer-size" in batch.note
    (element,) = batch.elements
    assert len(element.keys) == 2
    assert len({field.name: field for field in element.fields}["image"].images) == 2
    packed = session_of(folder, batch_size=1, packing_buffer_size=9).batch()
    fields = {field.name: field for field in packed.elements[0].fields}
    (strip,) = fields["cu_seqlens"].strips
    assert [(run.start, run.stop) for run in strip.runs] == [
        (run.start, run.stop) for run in fields["position_ids"].strips[0].runs
    ]
    assert strip.length == len(fields["tokens"].rows[0].tokens)
    assert len(strip.runs) == 3
    drawn = ET.fromstring(TEMPLATES.get_template("drawings.html").module.strip(strip))  # type: ignore[attr-defined]
    assert drawn.tag.endswith("svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) == 3
    masked = [run for run in fields["loss_mask"].strips[0].runs if run.colour < 0]
    assert [run.stop - run.start for run in masked] == [3, 3, 3]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("tests.view.encoders", "write MODULE:CLASS"),
        ("tests.view.encoders:Nothing", "has no attribute 'Nothing'"),
        ("tests.view.encoders:Unmakable", "missing 1 required positional argument"),
        ("no_such_module:Class", "No module named 'no_such_module'"),
        ("json:loads", "cannot be used"),
        ("collections:OrderedDict", "not a TaskEncoder"),
    ],
)
def test_a_name_that_is_no_encoder_is_explained(folder: Path, name: str, reason: str) -> None:
    with pytest.raises(Exception, match=reason):
        EncoderSession(ViewOptions(path=str(folder), encoder=name))


@pytest.fixture(scope="module")
def views(folder: Path) -> Iterator[EncodedViews]:
    made = EncodedViews(ViewOptions(path=str(folder), encoder="tests.view.encoders:Hangs"), request_seconds=100)
    yield made
    made.close()


@pytest.mark.usefixtures("warm_workers")
def test_an_encoder_runs_in_a_process_of_its_own(views: EncodedViews, folder: Path) -> None:
    good = views.sample(str(folder), 4)
    assert good.error == ""
    (element,) = good.elements
    image = next(field for field in element.fields if field.name == "image").images[0]
    picture = views.image(good.name, good.images.index(image))
    assert picture is not None
    assert Image.open(io.BytesIO(picture)).size == (image.width, image.height)
    assert views.image(good.name, 99) is None
    assert views.sample(str(folder), 4) is good


@pytest.mark.sweep
def test_an_encoder_may_end_its_process_and_take_too_long(views: EncodedViews, folder: Path) -> None:
    assert views.sample(str(folder), 2).error == "The encoder ended its process with SIGKILL."
    assert views.sample(str(folder), 5).error == ""
    views._request_seconds = 0.2
    assert "took longer than 0.2 seconds" in views.sample(str(folder), 1).error


def test_an_encoder_that_cannot_be_loaded_is_an_error_of_the_view(folder: Path) -> None:
    options = ViewOptions(path=str(folder), encoder="tests.view.encoders:leave")
    encode = ViewEncoder(options)
    assert [encode(None).error for _ in range(2)] == ["SystemExit: 3"] * 2
    options = ViewOptions(path="/nowhere", encoder="tests.view.encoders:Captions")
    assert "/nowhere" in ViewEncoder(options)(None).error


# --- arrays as images ----------------------------------------------------------------------------------------------


def patches_of_qwen(pixels: np.ndarray[Any, Any], side: int = 14, merge: int = 2) -> np.ndarray[Any, Any]:
    """Returns an image as Qwen2-VL's processor makes it: float32[rows * columns, 3 * 2 * side * side]."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    image = np.repeat((pixels / 255.0).astype(np.float32).transpose(2, 0, 1)[None], 2, 0)
    blocks = image.reshape(1, 2, 3, rows // merge, merge, side, columns // merge, merge, side)
    return blocks.transpose(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(rows * columns, -1)


def patches_of_siglip(pixels: np.ndarray[Any, Any], side: int = 14) -> np.ndarray[Any, Any]:
    """Returns an image as SigLIP 2's processor makes it: float32[rows * columns, side * side * 3]."""
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    blocks = (pixels / 255.0).astype(np.float32).reshape(rows, side, columns, side, 3)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(rows * columns, -1)


def test_patches_are_put_back_together(photograph: Any) -> None:
    patches = patches_of_qwen(photograph)
    grid = np.array([[1, 8, 12]])
    (image,) = find_images("pixel_values", patches, {"image_grid_thw": grid})
    assert np.abs(shown(image).astype(int) - photograph).max() <= 1
    assert image.note == "8 x 12 patches of 14 px put together, 2 x 2 of them neighbours"
    both = find_images("pixel_values", np.concatenate([patches] * 2), {"image_grid_thw": np.repeat(grid, 2, 0)})
    assert len(both) == 2
    padded = np.zeros((2, 100, patches.shape[1] // 2), np.float32)
    padded[:, :96] = patches_of_siglip(photograph)
    images = find_images("pixel_values", padded, {"spatial_shapes": np.array([[8, 12], [8, 12]])})
    assert len(images) == 2
    assert np.abs(shown(images[1]).astype(int) - photograph).max() <= 1
    assert find_images("pixel_values", patches, {}) == []
    assert find_images("pixel_values", patches, {"image_grid_thw": np.array([[1, 80, 12]])}) == []
    assert find_images("pixel_values", patches, {"image_grid_thw": np.array([[1, 4, 12]])}) == []


@pytest.mark.parametrize("stem", ["", "batch."])
def test_images_and_videos_each_have_their_own_grid(photograph: Any, stem: str) -> None:
    patches = patches_of_qwen(photograph)
    grids = {f"{stem}image_grid_thw": np.array([[1, 12, 8]]), f"{stem}video_grid_thw": np.array([[1, 8, 12]])}
    for others in (grids, dict(reversed(grids.items()))):
        (video,) = find_images(f"{stem}pixel_values_videos", patches, others)
        assert np.abs(shown(video).astype(int) - photograph).max() <= 1
        (image,) = find_images(f"{stem}pixel_values", patches, others)
        assert (image.width, image.height) == (8 * 14, 12 * 14)


def test_one_padded_list_of_patches_is_put_back_together(photograph: Any) -> None:
    patches = np.concatenate([patches_of_siglip(photograph), np.zeros((4, 588), np.float32)])
    (image,) = find_images("pixel_values", patches, {"spatial_shapes": np.array([8, 12])})
    assert np.abs(shown(image).astype(int) - photograph).max() <= 1


def test_tiles_are_put_back_together_where_their_grid_is_known(photograph: Any) -> None:
    tiles = photograph.reshape(2, 56, 3, 56, 3).transpose(0, 2, 4, 1, 3).reshape(6, 3, 56, 56)
    with_overview = np.concatenate([tiles, tiles[:1]])
    found = find_images("x.tiles", with_overview, {"x.tile_grid": np.array([2, 3]), "y.tile_grid": np.array([7, 1])})
    assert len(found) == 2
    assert np.array_equal(shown(found[0]), photograph)
    assert found[1].note == "overview"
    assert len(find_images("x.tiles", with_overview, {})) == 7


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.5,) * 3, (0.5,) * 3), ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_normalisation_is_undone(photograph: Any, mean: Any, std: Any, dtype: torch.dtype) -> None:
    pixels = torch.from_numpy(photograph.copy()).permute(2, 0, 1) / 255.0
    normalised = ((pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]).to(dtype)
    array = to_array(normalised)
    assert array is not None
    (image,) = find_images("image", array, {})
    assert np.abs(shown(image).astype(int) - photograph).max() <= (1 if dtype == torch.float32 else 3)


def test_numbers_that_are_no_colours_are_still_shown() -> None:
    image = np.full((8, 9, 1), np.nan, np.float32)
    image[0, 0] = -7
    image[1, 1] = 1e30
    pixels, note = to_uint8(image)
    assert pixels.shape == (8, 9, 1)
    assert "shown as black to white" in note
    with_negative = np.array([[[-1], [0], [254]]], np.int16)
    assert to_uint8(with_negative)[0].ravel().tolist() == [0, 1, 255]
    assert to_uint8(with_negative)[1] == "-1 to 254 shown as black to white"
    of_16_bits = np.array([[[2000], [4000], [6000]]], np.uint16)
    for normalisation in (None, ((0.5,), (0.5,))):
        pixels, note = to_uint8(of_16_bits, normalisation)
        assert (pixels.ravel().tolist(), note) == ([0, 128, 255], "2000 to 6000 shown as black to white")
    assert to_uint8(np.array([[[2], [255]]], np.int64))[0].ravel().tolist() == [2, 255]
    assert find_images("x", np.zeros((3, 0, 8)), {}) == []
    assert find_images("x", np.zeros((3, 8, 8), bool), {}) == []


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("cu_seqlens", [0, 3, 7, 7, 7], [(0, 3), (3, 7)]),
        ("cu_seqlens_q", [1, 3], []),
        ("position_ids", [[0, 1, 2, 0, 1]], [(0, 3), (3, 5)]),
        ("position_ids", [4, 5, 6], [(0, 3)]),
        ("attention_mask", [1, 1, 0, 0], [(0, 2), (2, 4)]),
        ("segment_ids", [1, 1, 2], [(0, 2), (2, 3)]),
        ("seq_lens", [2, 5, 0], [(0, 2), (2, 7)]),
        ("loss_mask", [0.0, 0.5], []),
        ("weights", [1, 2, 3], []),
    ],
)
def test_strips(name: str, values: Any, expected: list[tuple[int, int]]) -> None:
    found = find_strips(name, np.array(values))
    assert [(run.start, run.stop) for strip in found for run in strip.runs] == expected


def test_odd_values_are_described() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise ValueError("no")

    value = {
        "nested": {"list": [torch.zeros(2), {"deep": "text"}], "words": ["a", "b"]},
        "odd": Odd(),
        "empty": torch.zeros(0, 3),
        "flag": True,
        "raw": b"\x00" * 5,
        "input_ids": [1, 2, 3],
        "half": torch.full((2,), float("inf"), dtype=torch.float16),
        "<script>": "<img src=x onerror=alert(1)>",
    }
    fields = {field.name: field for field in FieldDescriber().describe(value)}
    assert fields["nested.list[1].deep"].text == "text"
    assert fields["empty"].summary == "Tensor float32 [0, 3], empty"
    assert fields["half"].summary == "Tensor float16 [2], 2 not finite"
    assert [token.id for token in fields["input_ids"].rows[0].tokens] == [1, 2, 3]
    assert pickle.loads(pickle.dumps(fields)) == fields, "they are sent from the encoder's process"
    many = FieldDescriber().describe({str(number): number for number in range(500)})
    assert len(many) == 201


def test_samples_of_a_join_are_found_by_their_place_in_each_dataset(tmp_path: Path) -> None:
    keys = [f"k{number}" for number in range(6)]
    prepare(
        write_shards(tmp_path / "left", {key: {"txt": f"left {key}".encode()} for key in keys}),
        {"image": "txt"},
        "ImageSample",
    )
    others = [*keys[4:], *keys[:3]]
    prepare(
        write_shards(tmp_path / "right", {key: {"txt": f"right {key}".encode()} for key in others}, 2),
        {"text": "txt"},
        "TextSample",
    )
    file = tmp_path / "join.yaml"
    file.write_text(
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits:\n  train:\n    join:\n    - {path: left}\n"
        "    - {path: right, nonmatch: skip}\n    joiner: {__class__: OCRSample}\n"
    )
    prepare_metadataset(str(file))
    session = session_of(file, "Plain")
    for name, order in (("left", keys), ("right", others)):
        for index, key in enumerate(order):
            view = session.sample(str(tmp_path / name), index)
            if key == "k3":
                assert view.note == "The join of 'train' does not use this sample."
                continue
            assert view.error == ""
            assert view.elements[0].keys == [key]
