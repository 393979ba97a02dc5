"""What comes from transformers: a GPT-2 as backbone and a tokenizer from a folder. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from energon_dali.errors import ConfigError
from energon_dali.tasks import HydraInstantiator, compose
from energon_dali.tasks.tokenizers import pretrained_tokenizer
from energon_dali.tasks.transformers_gpt2 import SequenceGPT2
from tests.tasks.words import save_word_tokenizer


@pytest.fixture(scope="module")
def model() -> SequenceGPT2:
    torch.manual_seed(0)
    return SequenceGPT2(embed_dim=8, num_heads=2, num_layers=2, num_positions=12, num_vocab=5, num_classes=3).eval()


def test_a_logit_depends_on_the_tokens_before_it_alone(model: SequenceGPT2) -> None:
    tokens = torch.arange(22).view(11, 2) % 5
    changed = tokens.clone()
    changed[6] = (changed[6] + 1) % 5
    before, after = model(tokens), model(changed)
    assert before.shape == (11, 2, 5)
    assert torch.equal(before[:7], after[:7])
    assert (before[7] != after[7]).all()
    classes, logits = model(tokens, classify=True)
    assert classes.shape == (2, 3)
    assert torch.equal(logits, before)


def test_one_token_after_the_other_gives_the_same_logits(model: SequenceGPT2) -> None:
    tokens = torch.arange(24).view(12, 2) % 5
    cache = model.start(2)
    steps = [model.extend(tokens[place - 1] if place else None, cache) for place in range(12)]
    torch.testing.assert_close(torch.stack(steps), model(tokens))


def test_sizes_that_cannot_be_are_refused(model: SequenceGPT2) -> None:
    with pytest.raises(ConfigError, match=r"\[13, 1\] and has 12 positions\. Sequences come first"):
        model(torch.zeros(13, 1, dtype=torch.int64))
    with pytest.raises(ConfigError, match="cannot build a GPT-2 with embed_dim=9, num_heads=2"):
        SequenceGPT2(embed_dim=9)


def test_a_tokenizer_comes_from_a_folder(tmp_path: Path) -> None:
    save_word_tokenizer(tmp_path, ["a", "dog"])
    cfg = compose(["tokenizer=autotokenizer", f"tokenizer.pretrained_model_name_or_path={tmp_path}"])
    tokenizer: Any = HydraInstantiator().tokenizer(cfg.tokenizer)
    assert tokenizer("a dog barks")["input_ids"] == [3, 4, 5]
    shared = [
        "+task=multimodal/captioning",
        "backbone=multimodal/captioning/transformers_gpt2",
        "tokenizer=autotokenizer",
        f"backbone.pretrained_model_name_or_path={tmp_path}",
    ]
    tokenizer = HydraInstantiator().tokenizer(compose(shared).tokenizer)
    assert tokenizer.is_fast
    assert tokenizer("a dog")["input_ids"] == [3, 4]


def test_a_tokenizer_that_is_not_there_is_refused_without_asking_a_network(tmp_path: Path) -> None:
    for name in (str(tmp_path), "no-such-user/no-such-tokenizer"):
        said = rf"pretrained_model_name_or_path={name} cannot be read as a tokenizer: (.|\n)*local_files_only"
        with pytest.raises(ConfigError, match=said):
            pretrained_tokenizer(name)
    with pytest.raises(ConfigError, match=r"has no value.*choose tokenizer=byte"):
        pretrained_tokenizer()
