"""Front ends of users, and what is said about processors that have none."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from energon_dali import ConfigError, FrontEnd, register_front_end
from energon_dali.decode.front_ends import ImageLayout, ProcessorConfig, View, registry
from energon_dali.decode.front_ends.internvl import InternVL


@dataclass(frozen=True, kw_only=True)
class Letterbox(FrontEnd):
    """Fits an image into a square."""

    side: int = 448
    family: ClassVar[str] = "letterbox"
    processors: ClassVar[tuple[str, ...]] = ("LetterboxImageProcessor",)

    @classmethod
    def from_config(cls, config: ProcessorConfig) -> Letterbox:
        return cls(**config.take_conversion((0.5,) * 3, (0.5,) * 3, "bicubic"), side=config.take_integer("side", 448))

    def layout(self, width: int, height: int) -> ImageLayout:
        view = View(height, width, canvas=(self.side, self.side))
        return ImageLayout(height, width, (view,), 9)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    before = list(registry.registered)
    yield
    registry.registered[:] = before


def test_a_registered_front_end_is_chosen_and_travels() -> None:
    config = {"image_processor_type": "LetterboxImageProcessorFast", "side": 20}
    with pytest.raises(ConfigError, match=r"no front end for LetterboxImageProcessor.*register_front_end"):
        FrontEnd.from_processor(config)
    assert register_front_end(Letterbox) is Letterbox
    assert register_front_end(Letterbox) is Letterbox
    front_end = FrontEnd.from_processor(config)
    assert isinstance(front_end, Letterbox)
    assert front_end.side == 20
    assert pickle.loads(pickle.dumps(front_end)) == front_end
    with pytest.raises(ConfigError, match="It sets colour="):
        FrontEnd.from_processor({**config, "colour": 3})


def test_a_text_of_ones_own_around_a_known_image_processor() -> None:
    @register_front_end
    @dataclass(frozen=True, kw_only=True)
    class Own(InternVL):
        around: ClassVar[tuple[str, ...]] = ("OwnProcessor",)

        @classmethod
        def from_config(cls, config: ProcessorConfig) -> Own:
            return cls(**config.take_conversion((0.5,) * 3, (0.5,) * 3, "bicubic"), tile_size=(28, 28))

    inner = {"image_processor_type": "GotOcr2ImageProcessor"}
    assert type(FrontEnd.from_processor({**inner, "processor_class": "OwnProcessor"})) is Own
    assert type(FrontEnd.from_processor(inner)) is InternVL


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"processors": ("CLIPImageProcessor",)}, "names CLIPImageProcessor, which FixedSize covers already"),
        ({"processors": ()}, "needs the class attributes `family`, a text, and `processors`"),
        ({"layout": FrontEnd.layout}, "has all methods; layout are missing"),
    ],
)
def test_refuses_a_class_that_cannot_be_chosen(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register_front_end(type("Wrong", (Letterbox,), changes))


def test_refuses_what_is_no_front_end() -> None:
    with pytest.raises(ConfigError, match=r"register_front_end\(int\) needs a subclass of FrontEnd"):
        register_front_end(int)  # type: ignore[type-var]


def test_names_the_nearest_family_and_what_differs() -> None:
    values = {"patch_size": 14, "merge_size": 2, "min_pixels": 9, "do_resize": True}
    with pytest.raises(
        ConfigError,
        match=r"no front end for OtherImageProcessor\. Its values are most like those of Qwen2VLImageProcessor, which "
        r"reads merge_size, min_pixels, patch_size too\. It differs in slices=3, which that one does not read",
    ):
        FrontEnd.from_processor({"image_processor_type": "OtherImageProcessor", "slices": 3, **values})
    with pytest.raises(ConfigError, match=r"accept all of them, which does not prove .*\"Qwen2VLImageProcessor\"}"):
        FrontEnd.from_processor({"image_processor_type": "OtherImageProcessor", **values})


def test_names_no_family_for_values_that_all_have() -> None:
    with pytest.raises(ConfigError, match=r"no front end for OtherImageProcessor\. Covered are") as raised:
        FrontEnd.from_processor({"image_processor_type": "OtherImageProcessor", "do_resize": True, "resample": 2})
    assert str(raised.value).count("BeitImageProcessor,") == 1  # two families have it
