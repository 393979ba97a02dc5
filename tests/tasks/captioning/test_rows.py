from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from energon_dali import CaptioningSample, CrudeSample
from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import ConfigError, DatasetError, DecodeError
from energon_dali.tasks.captioning.rows import IGNORED, CaptioningBatch, EncodedCaption, lay_rows, packed_causal_mask
from energon_dali.tasks.captioning.task import images_of
from energon_dali.tasks.captioning.task_encoder import PackedCaptioningTaskEncoder, cook_caption
from tests.datasets.oracle import check_resume
from tests.decode.tolerance import CPU_BILINEAR, explain_difference
from tests.tasks.captioning.captions import SIZES, TOKENIZER, cropped, encoded, encoder, packed_dataset, two_datasets

PATCH = SIZES["patch_size"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return two_datasets(tmp_path_factory.mktemp("captions"))


SAMPLES = st.builds(
    lambda text, height, width, seed: encoded(
        text, torch.randint(0, 256, (height, width, 3), dtype=torch.uint8, generator=torch.manual_seed(seed))
    ),
    st.text("abc", max_size=9),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 99),
)


@given(rows=st.lists(st.lists(SAMPLES, min_size=1, max_size=3), min_size=1, max_size=3), spare=st.integers(0, 5))
@settings(max_examples=30)
def test_every_place_of_a_row_is_what_it_should_be(rows: list[list[EncodedCaption]], spare: int) -> None:
    row_length = max(sum(sample.length for sample in row) for row in rows) + spare
    batch = lay_rows(rows, row_length, patch_size=PATCH, padding=TOKENIZER.pad_token_id)
    tokens, targets, positions, places, owners = [], [], [], [], []
    for row in rows:
        filled = sum(sample.length for sample in row)
        for number, sample in enumerate(row):
            places += range(len(tokens), len(tokens) + sample.patches)
            text = sample.tokens.tolist()
            tokens += [TOKENIZER.pad_token_id] * sample.patches + text[:-1]
            targets += [IGNORED] * sample.patches + text[1:]
            positions += [0] * sample.patches + list(range(1, len(text)))
            owners += [number] * sample.length
        rest = row_length - filled
        tokens += [TOKENIZER.pad_token_id] * rest
        targets += [IGNORED] * rest
        positions += [0] * rest
        owners += [-1] * rest
    shape = (len(rows), row_length)
    assert batch.tokens.tolist() == torch.tensor(tokens).view(shape).tolist()
    assert batch.targets.tolist() == torch.tensor(targets).view(shape).tolist()
    assert batch.position_ids.tolist() == torch.tensor(positions).view(shape).tolist()
    assert batch.patch_places.tolist() == places
    assert batch.num_targets == sum(target != IGNORED for target in targets)
    # A place sees its own sample up to itself, and nothing else.
    owner = torch.tensor(owners).view(shape)
    expected = (owner[:, :, None] == owner[:, None, :]) & torch.ones(row_length, row_length).tril().bool()
    assert torch.equal(packed_causal_mask(batch.cu_seqlens, *shape)[:, 0], expected)
    for sample, image in zip([s for row in rows for s in row], images_of(batch, 99, PATCH), strict=True):
        height, width = sample.image.shape[:2]
        assert torch.equal(image[:height, :width], sample.image)


def view(batch: CaptioningBatch) -> tuple[object, ...]:
    return (
        batch.__key__,
        batch.captions,
        batch.tokens.tolist(),
        batch.cu_seqlens.tolist(),
        batch.grids,
        batch.patches.sum(1).tolist(),
    )


@pytest.mark.parametrize("kind", ["pil", "dali"])
def test_packed_rows_resume_exactly(kind: str, folders: list[str]) -> None:
    check_resume(lambda: packed_dataset(folders, kind), count=9, view=view)


def test_decoders_give_the_same_rows(folders: list[str]) -> None:
    """The nine tenths of two datasets that are trained on, decoded where they are read and in the rank's process."""
    pil, dali = (iter(RankIterator(packed_dataset(folders, kind))) for kind in ("pil", "dali"))
    subsets = set()
    for _ in range(20):
        expected, batch = next(pil), next(dali)
        assert view(batch)[:-1] == view(expected)[:-1]
        assert torch.equal(batch.patch_positions, expected.patch_positions)
        for caption, *images in zip(batch.captions, *(images_of(b, 99, PATCH) for b in (batch, expected)), strict=True):
            given, wanted = (cropped(image, caption).numpy() for image in images)
            assert explain_difference(given, wanted, CPU_BILINEAR) is None
        assert batch.captions == [f"picture number {int(key[-3:])}" for key in batch.__key__]
        subsets |= set(batch.__key__)
    assert {key for key in subsets if key.startswith("first")} == {f"first{number:03d}" for number in range(36)}
    assert subsets <= {*(f"first{number:03d}" for number in range(36)), *(f"second{n}" for n in range(100, 118))}


def test_long_images_lose_their_ends_and_long_captions_too() -> None:
    wide = torch.arange(24 * 100 * 3, dtype=torch.int64).remainder(251).to(torch.uint8).view(24, 100, 3)
    sample = CaptioningSample(__key__="k", __restore_key__=(), image=wide, caption="x" * 99)
    made = encoder().preencode_sample(sample)
    assert made.grid == (2, 4)
    assert TOKENIZER.decode(made.tokens) == "x" * SIZES["max_caption_tokens"]
    assert torch.equal(encoder().postencode_sample(made).image, wide[:, 26:74])


def test_an_image_that_is_not_what_its_header_says_is_left_out() -> None:
    sample = encoded("a", torch.zeros(24, 24, 3, dtype=torch.uint8))
    sample.grid = (2, 3)
    with pytest.raises(DecodeError, match="24 x 24 pixels came where its header promised"):
        encoder().postencode_sample(sample)


def test_a_crude_sample_needs_an_image_and_a_caption() -> None:
    image = torch.zeros(2, 3, 3, dtype=torch.uint8)
    keys = {"__key__": "k7", "__restore_key__": ()}
    assert cook_caption(CrudeSample(**keys, png=image, json={"caption": "a cat"})).caption == "a cat"
    assert cook_caption(CrudeSample(**keys, json={"caption": "a cat"}, txt="a dog", png=image)).caption == "a dog"
    with pytest.raises(DatasetError, match="Sample k7 has no image; its parts are txt"):
        cook_caption(CrudeSample(**keys, txt="a cat"))
    with pytest.raises(DatasetError, match=r"Sample k7 has no caption \(txt, caption, text, also in json\)"):
        cook_caption(CrudeSample(**keys, png=image, json=[1]))


def test_a_row_that_cannot_hold_the_largest_sample_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"row_length=32 cannot hold an image of 24 x 48 .*which take 33 places"):
        PackedCaptioningTaskEncoder(TOKENIZER, None, row_length=32, **SIZES)
    assert PackedCaptioningTaskEncoder(TOKENIZER, None, row_length=33, **SIZES).row_length == 33


def test_a_task_encoder_loads_neither_torch_nor_lightning() -> None:

    script = (
        "import sys, energon_dali.tasks.captioning.task_encoder\n"
        "print(sorted({'torch', 'lightning', 'hydra', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
