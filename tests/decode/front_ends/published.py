"""The configurations of published models that `published_configs.json` holds, and the processors made from them.

Each entry has the files of a model's folder as values, its source, and the outcome: "accepted", "refused" or
"not covered", with words of the message. Most are files of repositories on GitHub. The others are what a conversion
script of transformers writes, what transformers prints, what notes and tests of other projects quote, or what the page
of a model has, from memory. Those of the source "class defaults" name a class alone, whose defaults are what was
published for most. Of those that are not covered, some keys are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.decode.front_ends.case import Case

_PASSED_ON: dict[str, dict[str, Any]] = {
    "InternVLProcessor": {"crop_to_patches": True},
    "Gemma3Processor": {
        "do_convert_rgb": True,
        "do_pan_and_scan": False,
        "pan_and_scan_min_crop_size": 256,
        "pan_and_scan_max_num_crops": 4,
        "pan_and_scan_min_ratio_to_activate": 1.2,
    },
}
"""What a processor passes to its image processor, whatever the file says."""
NESTED = (
    *("Idefics2ImageProcessor", "Idefics3ImageProcessor", "MllamaImageProcessor", "SmolVLMImageProcessor"),
    "VideoMAEImageProcessor",
)
"""Image processors that keep samples apart."""


@dataclass(frozen=True)
class Published:
    """The files of a model's folder."""

    model: str
    """Name of the model, or of the repository that has its files."""
    source: str
    """Where the values are from."""
    outcome: str
    """"accepted", "refused" or "not covered"."""
    files: dict[str, dict[str, Any]]
    """Values by the name of the file."""
    words: str = ""
    """Part of the message, if it is not accepted."""

    def save(self, folder: Path) -> None:
        """Writes the files into a folder."""
        for name, values in self.files.items():
            (folder / name).write_text(json.dumps(values))

    @property
    def image_values(self) -> dict[str, Any] | None:
        """Values of the image processor, if there is one."""
        outer = self.files.get("processor_config.json", {})
        values: dict[str, Any] | None = outer.get("image_processor", self.files.get("preprocessor_config.json"))
        return values

    @property
    def video_values(self) -> dict[str, Any] | None:
        """Values of the video processor, if there is one."""
        outer = self.files.get("processor_config.json", {})
        values: dict[str, Any] | None = outer.get("video_processor", self.files.get("video_preprocessor_config.json"))
        return values

    @property
    def passed_on(self) -> dict[str, Any]:
        """What the processor around it passes to the image processor."""
        outer = {**(self.image_values or {}), **self.files.get("processor_config.json", {})}
        return _PASSED_ON.get(str(outer.get("processor_class")), {})


def published() -> list[Published]:
    """Returns all entries."""
    entries = json.loads((Path(__file__).parent / "published_configs.json").read_text())
    return [Published(**entry) for entry in entries]


def type_name(values: dict[str, Any]) -> str:
    """Returns the class of an image processor of today, by the name that a file gives it."""
    given = values.get("image_processor_type") or values["feature_extractor_type"]
    today: str = given.removesuffix("Fast").replace("FeatureExtractor", "ImageProcessor").replace("2_5_", "2")
    return today


def published_processors(case: Case) -> Iterator[Any]:
    """Yields a processor of a case for each configuration that is published: first the case's own.

    A case of a processor around an image processor takes those that say they are of its class.
    """
    first = case.published()
    yield first
    inner, seen = getattr(first, "image_processor", first), []
    seen.append(inner.to_dict())
    for entry in published():
        values = entry.image_values
        if entry.outcome != "accepted" or values is None or not _is_of(entry, type(inner), first):
            continue
        # Without normalisation, processors that do not convert images accept any number of channels.
        converted = {"do_convert_rgb": True} if getattr(inner, "do_convert_rgb", None) else {}
        values = {**values, **converted}
        made = type(inner).from_dict(values)
        if made.to_dict() in seen:
            continue
        seen.append(made.to_dict())
        if inner is first:
            yield type(inner).from_dict({**values, **entry.passed_on})
            continue
        around = case.published()
        around.image_processor = made
        if getattr(made, "image_seq_length", None):  # Florence-2 reads it when it is made
            around.num_image_tokens = made.image_seq_length
        yield around


def _is_of(entry: Published, kind: type, processor: Any) -> bool:
    """Returns whether a published configuration is for a processor with an image processor of this class."""
    values = entry.image_values or {}
    if type_name(values) != kind.__name__.removesuffix("Pil"):
        return False
    outer = {**values, **entry.files.get("processor_config.json", {})}
    return type(processor) is kind or outer.get("processor_class") == type(processor).__name__


def needs_torchvision(name: str) -> bool:
    """Returns whether an image processor has no PIL backend."""
    return name != "Emu3ImageProcessor" and f"{name}Pil" not in _classes()


def make_processor(values: dict[str, Any]) -> Any:
    """Returns the image processor that transformers' PIL backend makes of the values of a file."""
    name = type_name(values)
    # That of Emu3 has one backend, which is PIL's.
    kind = name if name == "Emu3ImageProcessor" else f"{name}Pil"
    return getattr(import_module(_classes()[kind]), kind).from_dict(values)


@cache
def _classes() -> dict[str, str]:
    """Returns the modules of transformers by the image processors that they define."""
    import transformers.models

    found = {}
    for file in sorted(Path(transformers.models.__path__[0]).glob("*/image_processing_*.py")):
        for name in re.findall(r"^class (\w+ImageProcessor(?:Pil)?)\(", file.read_text(), re.MULTILINE):
            found[name] = f"transformers.models.{file.parent.name}.{file.stem}"
    return found
