"""What the measures of a task encoder depend on: the code and values that its hooks reach, and nothing else."""

from __future__ import annotations

import functools
import logging
import operator
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali import AugmentTaskEncoder, Cooker, CrudeSample, DefaultTaskEncoder
from energon_dali.assembly.fingerprint import describe_difference, fingerprint_of, tokenizer_text
from energon_dali.assembly.sample_loaders import FactoryLoader
from energon_dali.compat.epath import EPath
from energon_dali.compat.factories import DefaultDecoderWebdatasetFactory
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.metadataset.reference import AuxReference, SourceReference
from energon_dali.samples.kinds import CaptioningSample, TextSample
from energon_dali.shards.meta.sample_loader import DatasetFunction
from energon_dali.worker_config import WorkerConfig

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


CRUDE = SampleLoader(decoder=None, sample_type=CrudeSample)


def of_cooker(cook: Callable[..., Any], **aux: AuxReference) -> dict[str, str]:
    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        cookers = (Cooker(cook),)

    return fingerprint_of(CRUDE, Encoder(), SourceReference("data", "train", aux=aux))


def cook_first(longest: int, sample: CrudeSample, **more: Any) -> Any:
    return sample["txt"][:longest]


class Shortener:
    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.itself = self.cook
        self.calls = 0
        self.first: Any = None

    def __call__(self, sample: CrudeSample) -> Any:
        self.calls += 1
        self.remember(sample)
        return sample["txt"][: self.longest]

    def cook(self, sample: CrudeSample) -> Any:
        return self(sample)

    def remember(self, sample: CrudeSample) -> None:
        self.first = self.first or sample


class SlottedShortener:
    __slots__ = ("__hidden", "longest")

    def __init__(self, longest: int) -> None:
        self.longest = self.__hidden = longest

    def __call__(self, sample: CrudeSample) -> Any:
        return sample["txt"][: self.longest]


class Method:
    """A decorator that is a class, of a function that may be a method."""

    def __init__(self, function: Callable[..., Any], longest: int) -> None:
        self.function, self.longest = function, longest

    def __get__(self, owner: Any, kind: Any) -> Any:
        return functools.partial(self, owner)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)[: self.longest]


COOKS: dict[str, Callable[[int], Callable[..., Any]]] = {
    "arguments": lambda longest: functools.partial(cook_first, longest),
    "keywords": lambda longest: functools.partial(cook_first, 1, end=longest),
    "arguments of arguments": lambda longest: functools.partial(functools.partial(cook_first, longest), end=1),
    "callable object": Shortener,
    "slots": SlottedShortener,
    "bound method": lambda longest: Shortener(longest).cook,
    "arguments of an object": lambda longest: functools.partial(Shortener(longest), end=1),
    "an object in arguments": lambda longest: functools.partial(cook_first, Shortener(longest)),
    "bound method of Python": lambda longest: {"a": longest}.get,
    "callable object of Python": operator.itemgetter,
    "decorator class": lambda longest: Method(cook_first, longest),
    "a cache": lambda longest: functools.lru_cache(functools.partial(cook_first, longest)),
}


@pytest.mark.parametrize("made", COOKS.values(), ids=COOKS)
def test_what_is_bound_to_a_cooker_counts(made: Callable[[int], Callable[..., Any]]) -> None:
    assert of_cooker(made(1)) == of_cooker(made(1))
    assert of_cooker(made(1)) != of_cooker(made(2))


@pytest.mark.parametrize("made", COOKS.values(), ids=COOKS)
def test_what_is_bound_to_an_attribute_counts(made: Callable[[int], Callable[..., Any]]) -> None:
    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        def __init__(self, longest: int) -> None:
            self.shorten = made(longest)

        def measure_sample(self, sample: Any) -> Any:
            return {"text_tokens": len(self.shorten(sample))}

    one, same, other = (fingerprint_of(LOAD, Encoder(most), SourceReference("data", "train")) for most in (1, 1, 2))
    assert one == same != other


def test_a_sample_loader_counts_by_its_file_wherever_the_dataset_is() -> None:
    def fingerprint(source: str, path: str) -> dict[str, str]:
        function = DatasetFunction(source, "sample_loader", path)
        load = SampleLoader(decoder=None, sample_type=TextSample, sample_loader=function)
        return fingerprint_of(load, DefaultTaskEncoder(), SourceReference("data", "train"))

    source = "LONGEST = 3\n\n# Shortens.\ndef sample_loader(raw):\n    return {'text': raw['txt'][:LONGEST]}\n"
    before = fingerprint(source, "/one/.nv-meta/sample_loader.py")
    assert fingerprint(source.replace("# Shortens.", ""), "s3://two/.nv-meta/sample_loader.py") == before
    changed = fingerprint(source.replace("LONGEST = 3", "LONGEST = 4"), "/one/.nv-meta/sample_loader.py")
    assert describe_difference(before, changed) == "source of sample_loader changed; variable LONGEST was 3 and is 4"


def test_differences_name_what_is_bound() -> None:
    difference = describe_difference(of_cooker(SlottedShortener(1)), of_cooker(SlottedShortener(2)))
    assert difference == "object SlottedShortener was " + " and is ".join(
        f"SlottedShortener {{'_SlottedShortener__hidden': {longest}, 'longest': {longest}}}" for longest in (1, 2)
    )
    difference = describe_difference(of_cooker(COOKS["arguments"](1)), of_cooker(COOKS["arguments"](2)))
    assert difference == "arguments of cook_first was cook_first [[1], {}] and is cook_first [[2], {}]"


def test_what_a_bound_object_assigns_when_it_runs_changes_nothing() -> None:
    cook = Shortener(3)
    before = of_cooker(cook)
    cook(CrudeSample({"txt": "text"}))
    assert cook.calls == 1
    assert of_cooker(cook) == before


def test_arguments_that_refer_to_the_encoder_count_only_what_code_refers_to() -> None:
    def cook(encoder: Any, sample: CrudeSample) -> Any:
        return sample["txt"][: encoder.longest]

    class Encoder(DefaultTaskEncoder[Any, Any, Any, Any]):
        def __init__(self, longest: int, unused: int) -> None:
            self.longest, self.unused = longest, unused
            self.cookers = [Cooker(functools.partial(cook, self))]

    def fingerprint(longest: int, unused: int) -> dict[str, str]:
        return fingerprint_of(CRUDE, Encoder(longest, unused), SourceReference("data", "train"))

    assert fingerprint(1, 1) == fingerprint(1, 2)
    assert describe_difference(fingerprint(1, 1), fingerprint(2, 1)) == "attribute longest was 1 and is 2"


def test_auxiliary_folders_count_by_where_they_are(tmp_path: Path) -> None:
    def fingerprint(path: Path, kind: Any) -> dict[str, str]:
        return of_cooker(cook_first, images=AuxReference(str(path), kind))

    for kind in ("filesystem", "dataset"):
        assert fingerprint(tmp_path / "a", kind) == fingerprint(tmp_path / "a" / ".", kind)
        assert fingerprint(tmp_path / "a", kind) != fingerprint(tmp_path / "b", kind)
    (tmp_path / ".nv-meta").mkdir()
    (tmp_path / ".nv-meta" / "index.uuid").write_text("0123")
    assert fingerprint(tmp_path, "dataset")["auxiliary store images"] == "0123"


FACTORY = """
from energon_dali import TextSample
from energon_dali.compat.factories import DefaultDecoderWebdatasetFactory

WORDS = 7


def clean(text):
    return text.strip()


class Base(DefaultDecoderWebdatasetFactory):
    def shorten(self, text):
        return clean(text)[:WORDS]


class Encoder(Base):
    __sample_type__ = TextSample

    def __init__(self, path, *, longest=5, **options):
        self.longest = longest
        self.prepare = self.shorten
        super().__init__(path, **options)

    def load_sample(self, raw_data):
        return super().load_sample({**raw_data, "txt": self.shorten(raw_data["txt"])[: self.longest]})
"""
PLAIN: dict[str, Any] = {"split_part": "train", "field_map": {"text": "txt"}, "decoder": None}


def of_factory(kind: type[DefaultDecoderWebdatasetFactory[Any]], path: Path, rank: int = 0, **options: Any) -> Any:
    job = {"worker_config": WorkerConfig(rank=rank, world_size=4, num_workers=0), "training": rank > 0}
    factory = kind(EPath(path), **{**PLAIN, **job, **options})
    load = FactoryLoader(factory, dataset_path=str(path), seed=rank, source_number=rank)
    encoder: Any = DefaultTaskEncoder()
    return fingerprint_of(load, encoder, SourceReference("data", "train"))


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        (
            "longest=5",
            "longest=6",
            "object Encoder changed; source of Encoder changed; variable default longest was 5 and is 6",
        ),
        ("WORDS = 7", "WORDS = 8", "variable WORDS was 7 and is 8"),
        ("text.strip()", "text", "source of clean changed"),
        ("clean(text)[:WORDS]", "clean(text)[1:WORDS]", "source of Base changed; source of Base.shorten changed"),
    ],
)
def test_what_the_class_of_a_factory_reaches_counts(tmp_path: Path, old: str, new: str, difference: str) -> None:
    assert old in FACTORY
    before, after = (
        of_factory(factory_class(source, tmp_path / name), tmp_path)
        for name, source in (("old.py", FACTORY), ("new.py", FACTORY.replace(old, new)))
    )
    assert describe_difference(before, after) == difference


def factory_class(source: str, path: Path) -> type[DefaultDecoderWebdatasetFactory[Any]]:
    path.write_text(source)
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    exec(compile(source, str(path), "exec"), vars(module))
    return module.__dict__["Encoder"]  # type: ignore[no-any-return]


def take_text(raw: dict[str, Any]) -> dict[str, Any]:
    return {"text": raw["txt"]}


def test_options_of_a_factory_count_and_those_of_the_job_do_not(tmp_path: Path) -> None:
    kind = factory_class(FACTORY, tmp_path / "factory.py")
    before = of_factory(kind, tmp_path)
    job = {"shuffle_over_epochs": 3, "max_samples_per_sequence": 4, "parallel_shard_iters": 2}
    assert of_factory(kind, tmp_path / "moved", rank=2, subflavors={"a": 1}, **job) == before
    assert describe_difference(before, of_factory(kind, tmp_path, longest=6)) == "object Encoder changed"
    assert of_factory(kind, tmp_path, field_map={"text": "json"}) != before
    loaders = [
        {"field_map": None, "sample_loader": functools.partial(take_text, **given), "part_filter": ["txt"]}
        for given in ({}, {}, {"a": 1})
    ]
    one, same, other = (of_factory(kind, tmp_path, **given) for given in loaders)
    assert one == same != other


class Unreadable:
    __array_interface__ = 5

    def __array__(self) -> Any:
        raise TypeError("on another device")

    def __repr__(self) -> str:
        raise ValueError("cannot be shown")


def of_value(value: Any) -> dict[str, str]:
    return of_cooker(functools.partial(cook_first, value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool])
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)], ids=str)
def test_tensors_count_by_their_values(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    zeros, ones = torch.zeros(shape, dtype=dtype), torch.ones(shape, dtype=dtype)
    assert of_value(zeros) == of_value(zeros.clone())
    assert (of_value(zeros) != of_value(ones)) == bool(zeros.numel())
    assert of_value(zeros) != of_value(torch.zeros((*shape, 1), dtype=dtype))
    if dtype.is_floating_point and dtype.itemsize > 1:
        assert of_value(ones.clone().requires_grad_()) == of_value(ones)


def test_tensors_of_other_forms_can_be_read() -> None:
    value = torch.tensor([[1 + 2j, 3 + 4j], [5 + 6j, 7 + 8j]])
    assert of_value(value.conj()) != of_value(value)
    assert of_value(value.T) == of_value(value.T.contiguous())
    assert of_value(value.to_sparse()) != of_value(2 * value.to_sparse())
    assert of_value(torch.nn.Linear(2, 2)) != of_value(torch.nn.Linear(2, 2))
    assert of_value(torch.empty(2, device="meta")) == of_value(torch.empty(2, device="meta"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_of_a_gpu_count_as_those_of_the_cpu() -> None:
    assert of_value(torch.ones(3, device="cuda")) == of_value(torch.ones(3))


def test_what_cannot_be_read_counts_by_its_class() -> None:
    assert of_value(Unreadable()) == of_value(Unreadable())
    assert of_value(Unreadable()) != of_value(None)


def test_loggers_change_nothing() -> None:
    log = logging.getLogger("fingerprint")
    before = of_value(log)
    log.info("This fills a cache."), logging.getLogger("fingerprint.another")
    assert of_value(log) == before


PROCESS = """
import functools
from energon_dali import Cooker, CrudeSample, DefaultTaskEncoder
from energon_dali.assembly.fingerprint import fingerprint_of
from energon_dali.datasets.load_sample import SampleLoader
from energon_dali.metadataset.reference import SourceReference

class Cook:
    def __init__(self):
        self.words = {"a", "b", "c", "d"}
        self.parts = {name: object() for name in self.words}
        self.get = self.parts.get

    def __call__(self, words, sample):
        return self.get(words)

class Encoder(DefaultTaskEncoder):
    cookers = [Cooker(functools.partial(Cook(), frozenset(("x", "y", "z"))))]

load = SampleLoader(decoder=None, sample_type=CrudeSample)
print(fingerprint_of(load, Encoder(), SourceReference("data", "train")))
"""


def test_every_process_returns_the_same() -> None:
    command = [sys.executable, "-c", PROCESS]
    first, second = (
        subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, check=True, capture_output=True, text=True
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second
    assert "object Cook" in first


def test_the_inner_encoder_counts_by_either_of_its_names() -> None:
    class Inner(DefaultTaskEncoder[Any, Any, Any, Any]):
        def __init__(self, longest: int) -> None:
            self.longest = longest

        def measure_sample(self, sample: Any) -> Any:
            return {"text_tokens": self.longest}

    class Outer(AugmentTaskEncoder[Any, Any, Any, Any]):
        def measure_sample(self, sample: Any) -> Any:
            return self.task_encoder.measure_sample(sample)

    class Written(AugmentTaskEncoder[Any, Any, Any, Any]):
        def measure_sample(self, sample: Any) -> Any:
            return self._task_encoder.measure_sample(sample)

    for kind in (Outer, Written):
        one, same, other = (
            fingerprint_of(LOAD, kind(Inner(longest)), SourceReference("data", "train")) for longest in (1, 1, 2)
        )
        assert one == same != other
