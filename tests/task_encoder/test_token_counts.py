from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali import ConfigError, DatasetError, FrontEnd, MediaHandle, SampleDecoder, SequencePacker, count_tokens
from energon_dali.cache import DirectLazy, MockLazy

ID = 7
WIDE, SMALL = (280, 140), (56, 56)
CONFIG = {"image_processor_type": "Qwen2VLImageProcessor"}
FRONT_END = FrontEnd.from_processor(CONFIG, image_token_id=ID)


def handle(size: tuple[int, int] = WIDE, front_end: FrontEnd | None = FRONT_END) -> Any:
    file = io.BytesIO()
    Image.new("RGB", size).save(file, "PNG")
    staged = SampleDecoder(front_end=front_end).stage("png", file.getvalue())
    assert front_end is None or isinstance(staged, MediaHandle)
    return staged


@dataclasses.dataclass
class Turn:
    input_ids: torch.Tensor
    images: tuple[Any, ...] = ()


IMAGE, OTHER = handle(), handle(SMALL)
BOTH = IMAGE.num_tokens + OTHER.num_tokens


@pytest.mark.parametrize(
    ("sample", "tokens"),
    [
        ({"tokens": [1, 2], "image": IMAGE}, 2 + 50),
        ({"tokens": [1, ID, 2], "image": IMAGE}, 2 + 50),
        ({"tokens": [1, *[ID] * 50, 2], "image": IMAGE}, 2 + 50),
        ({"input_ids": np.array([[1, ID, 2, ID]]), "images": [IMAGE, OTHER]}, 2 + BOTH),
        ({"input_ids": torch.tensor([1] + [ID] * BOTH), "images": {"a": IMAGE, "b": (OTHER, None)}}, 1 + BOTH),
        ({"input_ids": [1], "images": [IMAGE, IMAGE], "again": IMAGE}, 1 + 50),
        ({"tokens": [[1, 2], IMAGE, np.array([3]), OTHER], "x": "text"}, 3 + BOTH),
        ({"turns": [Turn(torch.tensor([1, ID, 2]), (IMAGE,)), {"tokens": [1, ID], "image": OTHER}]}, 3 + BOTH),
        (Turn(torch.tensor([1, 2])), 2),
        ({"length": 17, "image": IMAGE}, 17),
        ({"tokens": [1], "image": FRONT_END}, 1),
        ({"tokens": [1], "image": handle(front_end=None), "size": {"length": "long", "tokens": "many"}}, 1),
    ],
)
def test_text_and_vision_are_counted(sample: Any, tokens: int) -> None:
    assert count_tokens(sample) == tokens


def test_decoded_images_count_like_handles() -> None:
    assert count_tokens({"tokens": [1, ID], "image": IMAGE.decode()}) == count_tokens(
        {"tokens": [1, ID], "image": IMAGE}
    )


def test_a_file_of_a_store_counts_if_it_can_be_media() -> None:
    fetched = []

    def get(name: str) -> Any:
        fetched.append(name)
        return IMAGE

    assert count_tokens({"tokens": [1], "image": MockLazy("a.png", get)}) == 1 + 50
    assert fetched == ["a.png"]

    class Store:
        def identity(self, name: str) -> tuple[str, ...]:
            return (name,)

        def __getitem__(self, name: str) -> Any:
            raise AssertionError("fetched")

    texts: Any = DirectLazy(Store(), "a.txt")  # type: ignore[arg-type]
    assert count_tokens({"tokens": [1], "text": texts}) == 1


def test_what_cannot_be_counted_says_why() -> None:
    unknown = handle(front_end=FrontEnd.from_processor(CONFIG))
    with pytest.raises(ConfigError, match=r"has no id of its placeholder '<.image_pad.>'.*image_token_id="):
        count_tokens({"tokens": [1], "image": unknown})
    with pytest.raises(DatasetError, match="3 placeholder tokens for 1 images or videos with 50 tokens"):
        count_tokens({"tokens": [ID] * 3, "image": IMAGE})


def test_a_packer_counts_by_itself() -> None:
    packer = SequencePacker(2 * 52, max_padding=1)
    samples = [{"n": n, "tokens": [1, ID, 2], "image": IMAGE} for n in range(3)]
    selection = packer([*samples, {"n": 3, "tokens": [ID] * 3, "image": IMAGE}])
    assert sorted(len(pack) for pack in selection.packs) == [1, 2]
    ((sample, reason),) = selection.refused
    assert sample["n"] == 3
    assert "3 placeholder tokens" in str(reason)


def test_the_id_of_the_placeholder_is_read_from_a_processor_or_a_folder(tmp_path: Any) -> None:
    (tmp_path / "preprocessor_config.json").write_text('{"image_processor_type": "Qwen2VLImageProcessor"}')
    assert FrontEnd.from_processor(tmp_path).image_token_id is None
    (tmp_path / "config.json").write_text('{"image_token_index": 5, "hidden_size": 3}')
    assert FrontEnd.from_processor(tmp_path).image_token_id == 5
    assert FrontEnd.from_processor(str(tmp_path), image_token_id=6).image_token_id == 6
