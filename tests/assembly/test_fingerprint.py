"""What the measures of a task encoder depend on: the code and values that its hooks reach, and nothing else."""

from __future__ import annotations

import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from energon_dali import DefaultTaskEncoder
from energon_dali.assembly.fingerprint import describe_difference, fingerprint_of, tokenizer_text
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.metadataset.reference import SourceReference
from energon_dali.samples.kinds import CaptioningSample

LOAD = SampleLoader(decoder=None, sample_type=CaptioningSample, field_map={"image": "jpg", "caption": "txt"})
SOURCE = """
from energon_dali import DefaultTaskEncoder, SampleDecoder, stateless

LIMIT = 10
UNUSED = 1
UNKNOWN = 0


def clean(text):
    return text.strip()


class Tokenizer:
    def __init__(self, words):
        self.words = words

    def __call__(self, text):
        return [self.words.get(word, UNKNOWN) for word in text.split()]


class Encoder(DefaultTaskEncoder):
    decoder = SampleDecoder()
    pad = 0

    def __init__(self):
        self.tokenizer = Tokenizer({"a": 1})
        self.unused = 5

    def tokens(self, text):
        return self.tokenizer(clean(text))[:LIMIT]

    @stateless
    def preencode_sample(self, sample):
        # A comment.
        sample.tokens = self.tokens(sample.caption)

        return sample

    def encode_batch(self, batch):
        return batch + [self.pad]
"""


def encoder_of(source: str, folder: Path, number: list[int]) -> Any:
    """Returns the encoder of a module of its own."""
    number[0] += 1
    path = folder / f"encoders_{number[0]}.py"
    path.write_text(textwrap.dedent(source))
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    return module.__dict__["Encoder"]()


def changes(tmp_path: Path, old: str, new: str) -> str:
    assert old in SOURCE
    number = [0]
    before, after = (
        fingerprint_of(LOAD, encoder_of(source, tmp_path, number), SourceReference("data", "train"))
        for source in (SOURCE, SOURCE.replace(old, new))
    )
    return describe_difference(before, after)


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("LIMIT = 10", "LIMIT = 11", "variable LIMIT was 10 and is 11"),
        ("text.strip()", "text", "source of clean changed"),
        (
            '{"a": 1}',
            '{"a": 2}',
            "attribute tokenizer was Tokenizer {'words': {'a': 1}} and is Tokenizer {'words': {'a': 2}}",
        ),
        ("text.split()", 'text.split(" ")', "source of Tokenizer changed"),
        ("clean(text))[:LIMIT]", "clean(text))", "source of Encoder.tokens changed; variable LIMIT is gone"),
        ("pad = 0", "pad = 0\n    measure_version = 2", "measure_version was 0 and is 2"),
        ("UNKNOWN = 0", "UNKNOWN = 1", "variable UNKNOWN was 0 and is 1"),
        ("pad = 0", "pad = 1", ""),
        ("UNUSED = 1", "UNUSED = 2", ""),
        ("self.unused = 5", "self.unused = 6", ""),
        ("return batch +", "return batch + batch +", ""),
        ("# A comment.", "# Another one.\n\n        # And a third.", ""),
        ("SampleDecoder()", 'SampleDecoder(image_decode="pil", max_pixels=7)', ""),
    ],
)
def test_what_hooks_reach_counts(tmp_path: Path, old: str, new: str, difference: str) -> None:
    assert changes(tmp_path, old, new) == difference


def test_default_arguments_and_arrays_of_objects_count_by_their_values() -> None:
    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        def __init__(self, longest: int, word: str) -> None:
            super().__init__()
            self.words = np.array([{"word": word}], object)

            def shorten(text: str, *, most: int = longest) -> str:
                return text[:most]

            self.shorten = shorten

        def measure_sample(self, sample: Any) -> Any:
            return {"text_tokens": len(self.shorten(sample.caption)) + len(self.words)}

    def fingerprint(longest: int, word: str) -> dict[str, str]:
        return fingerprint_of(LOAD, Encoder(longest, word), SourceReference("data", "train"))

    assert fingerprint(1, "a") == fingerprint(1, "a")
    assert describe_difference(fingerprint(1, "a"), fingerprint(2, "a")) == "variable default most was 1 and is 2"
    assert "attribute words" in describe_difference(fingerprint(1, "a"), fingerprint(1, "b"))


LAZY = """
import functools

from energon_dali import DefaultTaskEncoder


class Base(DefaultTaskEncoder):
    known = None

    def preencode_sample(self, sample):
        return sample


class Encoder(Base):
    @functools.cached_property
    def words(self):
        return {"a": 1}

    def preencode_sample(self, sample):
        if self.known is None:
            self.known = object()
        sample.tokens = self.words
        return super().preencode_sample(sample)
"""


def test_what_hooks_make_when_they_run_changes_nothing(tmp_path: Path) -> None:
    number = [0]
    reference = SourceReference("data", "train")
    encoder = encoder_of(LAZY, tmp_path, number)
    before = fingerprint_of(LOAD, encoder, reference)
    encoder.known, encoder.words  # noqa: B018
    encoder.known = [1, 2]
    assert fingerprint_of(LOAD, encoder, reference) == before
    other = encoder_of(
        LAZY.replace("return sample\n\n\nclass Enc", "return sample or None\n\n\nclass Enc"), tmp_path, number
    )
    difference = describe_difference(before, fingerprint_of(LOAD, other, reference))
    assert difference == "source of Base.preencode_sample changed"
    other = encoder_of(LAZY.replace('{"a": 1}', '{"a": 2}'), tmp_path, number)
    assert describe_difference(before, fingerprint_of(LOAD, other, reference)) == "source of Encoder.words changed"


def test_tokenizers_count_by_what_they_do() -> None:
    tokenizers = pytest.importorskip("tokenizers")

    def tokenizer(words: dict[str, int]) -> Any:
        made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="?"))
        made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        return made

    one, same, other = tokenizer({"?": 0, "a": 1}), tokenizer({"?": 0, "a": 1}), tokenizer({"?": 0, "b": 1})
    same.enable_truncation(5)
    same.enable_padding()
    assert tokenizer_text(one) == tokenizer_text(same)
    assert tokenizer_text(one) != tokenizer_text(other)
    transformers = pytest.importorskip("transformers")
    fast = [transformers.PreTrainedTokenizerFast(tokenizer_object=made) for made in (one, one, other)]
    texts = [tokenizer_text(made) for made in fast]
    assert texts[0] == texts[1] != texts[2]
    fast[1].chat_template = "{{ messages }}"
    assert tokenizer_text(fast[1]) != texts[1]
    assert tokenizer_text({"a": 1}) is None
