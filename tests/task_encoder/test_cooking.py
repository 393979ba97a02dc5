from __future__ import annotations

from typing import Any

import pytest

from energon_dali.errors import ConfigError
from energon_dali.samples import CrudeSample, SourceInfo, TextSample
from energon_dali.task_encoder.cooking import Cooker, basic_sample_keys, choose_cooker, cooker
from energon_dali.task_encoder.encoder import TaskEncoder
from energon_dali.task_encoder.stateless import stateless


def source(index: int) -> SourceInfo:
    return SourceInfo(dataset_path="d", index=index, shard_name="s", file_names=())


@stateless
def cook_text(sample: CrudeSample, **stores: Any) -> TextSample:
    return TextSample(**basic_sample_keys(sample), text=sample["txt"] + "".join(sorted(stores)))


def crude() -> CrudeSample:
    return CrudeSample(
        {
            "__key__": "k",
            "__shard__": "s.tar",
            "__restore_key__": (1,),
            "__subflavors__": {"kind": "text", "n": 1},
            "__sources__": (source(0),),
            "txt": "hello",
        }
    )


def test_a_cooker_matches_by_subflavors() -> None:
    chosen = Cooker(cook_text, has_subflavors={"kind": "text"})
    assert chosen.is_match({"kind": "text", "n": 1})
    assert not chosen.is_match({"kind": "image"})
    assert not chosen.is_match(None)
    assert not Cooker(cook_text, has_subflavors={"kind": None}).is_match({})
    assert Cooker(cook_text).is_match(None)


def test_the_first_match_is_chosen() -> None:
    image = Cooker(cook_text, has_subflavors={"kind": "image"})
    text = Cooker(cook_text, has_subflavors={"kind": "text"})
    every = Cooker(cook_text)
    assert choose_cooker([image, text, every], {"kind": "text"}) is text
    assert choose_cooker([every, text], {"kind": "text"}) is every
    with pytest.raises(ConfigError, match=r"/data yields .* the subflavors \{'kind': 'x'\}.*'image'.*'text'"):
        choose_cooker([image, text], {"kind": "x"}, "/data")
    with pytest.raises(ConfigError, match="none at all"):
        choose_cooker([], None)


def test_the_task_encoder_cooks() -> None:
    encoder: TaskEncoder[TextSample, TextSample, Any, Any] = TaskEncoder()
    sample = encoder.cook_crude_sample(crude(), Cooker(cook_text), {"captions": 1})
    assert isinstance(sample, TextSample)
    assert (sample.__key__, sample.text, sample.__subflavors__) == ("k", "hellocaptions", {"kind": "text", "n": 1})


def test_base_keys_take_further_sources() -> None:
    assert basic_sample_keys(crude(), (source(5),))["__sources__"] == (source(0), source(5))
    base = {"__key__": "k", "__restore_key__": ()}
    assert basic_sample_keys({**base, "jpg": b""}) == base


def test_wishes_are_found() -> None:
    @cooker(need_cache=True)
    def with_cache(sample: CrudeSample, cache: object) -> None: ...

    @cooker
    def plain(sample: CrudeSample) -> None: ...

    assert (Cooker(with_cache).need_cache, Cooker(with_cache).need_primary) == (True, False)
    assert (Cooker(plain).need_cache, Cooker(plain).need_primary) == (False, False)
    assert not Cooker(cook_text).need_cache


@pytest.mark.parametrize("cookers", [Cooker(dict), [dict], None])
def test_cookers_are_a_list_of_cookers(cookers: Any) -> None:
    with pytest.raises(ConfigError, match="give a list of Cooker objects"):
        choose_cooker(cookers, {})
