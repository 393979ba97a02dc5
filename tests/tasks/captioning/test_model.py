from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from energon_dali.datasets.rank_iterator import RankIterator
from energon_dali.errors import ConfigError
from energon_dali.tasks.captioning.backbone import CaptioningGPT
from energon_dali.tasks.captioning.rows import CaptioningBatch, EncodedCaption, lay_rows
from energon_dali.tasks.captioning.task import images_of
from energon_dali.tasks.transformers_gpt2 import TransformersGPT2
from tests.tasks.captioning.captions import (
    BACKBONES,
    ROW_LENGTH,
    SIZES,
    TOKENIZER,
    cropped,
    encoded,
    packed_dataset,
    task_with,
    two_datasets,
)

PATCH = SIZES["patch_size"]


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> CaptioningBatch:
    """Two packed rows as training sees them."""
    batch = next(iter(RankIterator(packed_dataset(two_datasets(tmp_path_factory.mktemp("captions"))))))
    assert len(batch.captions) > 3
    assert batch.tokens.shape == (2, ROW_LENGTH)
    return batch


def samples_of(batch: CaptioningBatch) -> list[EncodedCaption]:
    images = [cropped(image, text) for image, text in zip(images_of(batch, 99, PATCH), batch.captions, strict=True)]
    return [encoded(caption, image) for caption, image in zip(batch.captions, images, strict=True)]


def lay(samples: list[EncodedCaption], row_length: int) -> CaptioningBatch:
    return lay_rows([samples], row_length, patch_size=PATCH, padding=TOKENIZER.pad_token_id)


@pytest.mark.parametrize("backbone", BACKBONES)
@torch.no_grad()
def test_a_sample_changes_no_logit_of_its_neighbours(backbone: str, batch: CaptioningBatch) -> None:
    task = task_with(backbone)
    before = task(batch).flatten(0, 1)
    bounds = batch.cu_seqlens.tolist()
    owner = torch.bucketize(torch.arange(bounds[-1]), batch.cu_seqlens.long(), right=True) - 1
    for segment in range(len(bounds) - 1):
        mine = owner == segment
        changed = copy.deepcopy(batch)
        changed.tokens.view(-1)[mine] = (batch.tokens.view(-1)[mine] + 7) % 256
        patches = mine[batch.patch_places]
        changed.patches[patches] = -changed.patches[patches] - 0.1
        changed.patch_positions[patches] = changed.patch_positions[patches].flip(0)
        after = task(changed).flatten(0, 1)
        assert torch.equal(after[~mine], before[~mine])
        assert not torch.equal(after[mine], before[mine])


@pytest.mark.parametrize("backbone", BACKBONES)
@torch.no_grad()
def test_the_loss_of_packed_rows_is_that_of_their_samples(backbone: str, batch: CaptioningBatch) -> None:
    """In float64, so that what is left is rounding: sums of a few hundred terms of 2**-53."""
    task = task_with(backbone).double()

    def loss_of(batch: CaptioningBatch) -> torch.Tensor:
        return cross_entropy(task(batch).flatten(0, 1), batch.targets.flatten(), reduction="sum", ignore_index=-100)

    alone = [lay([sample], sample.length) for sample in samples_of(batch)]
    total, count = sum(loss_of(one) for one in alone), sum(one.num_targets for one in alone)
    assert count == batch.num_targets == (batch.targets != -100).sum()
    assert torch.allclose(loss_of(batch) / batch.num_targets, total / count, rtol=1e-12, atol=0)


@torch.no_grad()
def test_a_caption_depends_on_its_image_and_on_what_was_written_before(batch: CaptioningBatch) -> None:
    task = task_with()
    sample = samples_of(batch)[0]
    start = sample.patches
    logits = task(lay([sample], sample.length))[0, start:]
    sample.image = 255 - sample.image
    assert not torch.allclose(task(lay([sample], sample.length))[0, start:], logits)
    sample.image = 255 - sample.image
    sample.tokens[3] = 65  # the third letter: what precedes it cannot know
    changed = task(lay([sample], sample.length))[0, start:]
    assert torch.equal(changed[:3], logits[:3])
    assert not torch.allclose(changed[3:], logits[3:])


@pytest.mark.parametrize("backbone", BACKBONES)
@torch.no_grad()
def test_written_captions_are_the_likeliest_token_by_token(backbone: str, batch: CaptioningBatch) -> None:
    task = task_with(backbone)
    with torch.no_grad():  # a random model repeats one token; one that ends at some place shows more
        task.prefix.project.weight.mul_(40)
    written = task.write(batch, 4)
    images = [sample.image for sample in samples_of(batch)[:4]]
    assert len(written) == len(images) == 4
    for tokens, image in zip(written, images, strict=True):
        assert tokens[0] == TOKENIZER.bos_token_id
        assert len(tokens) == SIZES["max_caption_tokens"] + 2 or tokens[-1] == TOKENIZER.eos_token_id
        sample = encoded("", image, tokens)
        likeliest = task(lay([sample], sample.length + 3))[0].argmax(-1)
        assert likeliest[sample.patches : sample.length].tolist() == tokens[1:]


def test_heads_must_divide_the_vectors() -> None:
    with pytest.raises(ConfigError, match="embed_dim = 10 cannot be divided among num_heads = 4"):
        CaptioningGPT(10, 10, embed_dim=10, num_heads=4)


def test_weights_of_transformers_come_from_a_folder_and_have_to_fit(tmp_path: Path) -> None:
    made = TransformersGPT2(259, 26, embed_dim=8, num_heads=2, num_layers=1)
    made.model.save_pretrained(tmp_path)
    loaded = TransformersGPT2(100, 20, pretrained=str(tmp_path))
    assert torch.equal(loaded.embed(torch.arange(259)), made.embed(torch.arange(259)))
    assert (loaded.embed_dim, loaded.num_vocab) == (8, 259)
    with pytest.raises(ConfigError, match="are for 259 tokens and 26 positions, the data has 260 and 26"):
        TransformersGPT2(260, 26, pretrained=str(tmp_path))
