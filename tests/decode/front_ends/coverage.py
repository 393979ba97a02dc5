"""Which model types of transformers have front ends, as the page docs/model-types.md lists them.

    python -m tests.decode.front_ends.coverage [--check]

Writes the page; with --check, exits with 1 if it is out of date. It goes over all model types of the mappings of image
processors, video processors, processors and feature extractors in transformers. A type is covered if a front end
stands for its class and a case of the tests compares that class with transformers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from energon_dali.decode.front_ends.registry import FAMILIES, VIDEO_FAMILIES
from tests.decode.audio_front_ends.coverage import audio_outcomes
from tests.decode.front_ends import video_sweep
from tests.decode.front_ends.cases import CASES
from tests.decode.front_ends.torchvision_records import PATH as RECORDS

PAGE = Path(__file__).parents[3] / "docs" / "model-types.md"
_DRAWS = 12
"""Configurations of a case that are drawn to see which classes it compares."""
_MISSING = "no front end yet"
_PARTS = {"ColModernVBertProcessor": "idefics3"}
"""By processor that only types without an image processor of their own have: the type whose image processor it has."""
REASONS = {
    "EfficientLoFTRImageProcessor": "takes pairs of images",
    "LightGlueImageProcessor": "takes pairs of images",
    "SuperGlueImageProcessor": "takes pairs of images",
    "Sapiens2ImageProcessor": "cuts out boxes of people, which callers pass with the image",
    "SegGptImageProcessor": "takes prompts of images and masks with the image",
    "TimmWrapperImageProcessor": "runs the transforms of timm, which it needs",
    "TvpImageProcessor": "takes videos as lists of images",
    "Ernie4_5_VLMoeVideoProcessor": "draws timestamps into the frames",
    "VideoLlama3VideoProcessor": "drops tokens of frames that differ little, so that their number depends on pixels",
    "VitMatteImageProcessor": "takes a trimap with the image, as a fourth channel",
    "VitPoseImageProcessor": "cuts out boxes of people, which callers pass with the image",
}
"""Why a class has no front end, where it is not that nobody has written one yet."""
NAMED = (
    *("aria", "glm46v", "glm5_next", "granite_docling", "minicpmv4_6"),
    *("aya_vision", "blip", "blip-2", "clip", "convnext", "deepseek_vl", "deit", "detr", "dinov2", "dinov3_vit"),
    *("donut-swin", "florence2", "gemma3", "gemma3n", "gemma4", "glm4v", "grounding-dino", "idefics2", "idefics3"),
    *("internvl", "janus", "kimi_k25", "layoutlmv3", "llama4", "llava", "llava_next", "llava_onevision"),
    *("mask2former", "mistral3", "mllama", "molmo2", "nougat", "ovis2", "owlv2", "paligemma", "phi4_multimodal"),
    *("pix2struct", "pixtral", "qwen2_5_omni", "qwen2_5_vl", "qwen2_vl", "qwen3_omni_moe", "qwen3_vl", "resnet"),
    *(
        "rt_detr",
        "sam",
        "sam2",
        "sam3",
        "segformer",
        "siglip",
        "siglip2",
        "smolvlm",
        "swin",
        "trocr",
        "videomae",
        "vit",
    ),
)
"""Widely used types, which must all be covered."""
_HEAD = """# Model types of transformers

In transformers {version}, [front ends](vlm.md) cover {images} of the {all_images} model types with an image processor,
and {videos} of the {all_videos} with a video processor. [Audio front ends](audio.md) cover {audio} of the {all_audio}
with a feature extractor for audio.

- **equal**: the tests compare the front end with the processor of this model, bit for bit.
- **equal through** another type: transformers uses the processor of that type here, and the tests compare it.
- Other entries name the class, and say why it has no front end.

`python -m tests.decode.front_ends.coverage` writes this page from transformers' mappings and the cases of the tests.

| model type | images | videos | audio |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Coverage:
    """What front ends cover of transformers."""

    images: dict[str, str]
    """Outcome by model type, for each type that has an image processor; some have it only as part of a processor."""
    videos: dict[str, str]
    """Likewise for video processors."""
    audio: dict[str, str]
    """Likewise for feature extractors of audio."""
    mapped_images: frozenset[str]
    """The types in transformers' mapping of image processors."""

    @property
    def covered_images(self) -> int:
        """Types in the mapping of image processors that are covered."""
        return sum(self.images[name].startswith("equal") for name in self.mapped_images)

    @property
    def covered_videos(self) -> int:
        """Types in the mapping of video processors that are covered."""
        return sum(outcome.startswith("equal") for outcome in self.videos.values())

    @property
    def covered_audio(self) -> int:
        """Types with audio that are covered."""
        return sum(outcome.startswith("equal") for outcome in self.audio.values())

    @property
    def all_audio(self) -> int:
        """Types with a feature extractor for audio."""
        return sum("feature extractor of its own" not in outcome for outcome in self.audio.values())


def coverage() -> Coverage:
    """Returns what front ends cover of the transformers that is installed."""
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING_NAMES

    image_classes = {
        name: (backends.get("torchvision") or backends["pil"]).removesuffix("Pil")
        for name, backends in IMAGE_PROCESSOR_MAPPING_NAMES.items()
    }
    images = _outcomes(image_classes, _compared_images())
    videos = _outcomes(_video_classes(), _compared_videos())
    audio = audio_outcomes()
    processors: Mapping[str, str] = PROCESSOR_MAPPING_NAMES
    first_of = {kind: name for name, kind in reversed(processors.items()) if name in images} | _PARTS
    for name, kind in processors.items():
        if name not in images and name not in videos and kind in first_of:
            through = images[first_of[kind]]
            images[name] = f"equal through {first_of[kind]}" if through == "equal" else through
    for name in processors.keys() - images.keys() - videos.keys() - audio.keys():
        audio[name] = f"{processors[name]}: no feature extractor of its own, or takes any"
    return Coverage(images, videos, audio, frozenset(image_classes))


def _outcomes(classes: Mapping[str, str], compared: frozenset[str]) -> dict[str, str]:
    families = (*FAMILIES, *VIDEO_FAMILIES)
    covered = {kind for family in families for kind in family.processors}
    owners = _owners()
    outcomes = {}
    for name, kind in classes.items():
        owner = owners.get(kind)
        if kind not in covered:
            outcomes[name] = f"{kind}: {REASONS.get(kind, _MISSING)}"
        elif kind not in compared:
            outcomes[name] = f"{kind}: has a front end that no test compares"
        elif owner in (None, _module(name)):
            outcomes[name] = "equal"
        else:
            named = next((other for other in classes if _module(other) == owner), owner)
            outcomes[name] = f"equal through {named}"
    return outcomes


def _module(model_type: str) -> str:
    from transformers.models.auto.configuration_auto import model_type_to_module_name

    module: str = model_type_to_module_name(model_type)
    return module


def _models() -> Path:
    import transformers.models

    return Path(transformers.models.__path__[0])


@cache
def _owners() -> dict[str, str]:
    """Returns the folder of transformers.models that defines each image or video processor."""
    owners = {}
    for kind in ("image_processing", "video_processing"):
        for file in sorted(_models().glob(f"*/{kind}_*.py")):
            for name in re.findall(r"^class (\w+Processor)(?:Pil)?\(", file.read_text(), re.MULTILINE):
                owners[name] = file.parent.name
    return owners


def _video_classes() -> dict[str, str]:
    """Returns the video processor of each type, from the source: without torchvision the mapping has none."""
    auto = _models() / "auto"
    text = (auto / "auto_mappings.py").read_text() + (auto / "video_processing_auto.py").read_text()
    return dict(re.findall(r'\("([\w.-]+)", \{"torchvision": "(\w+VideoProcessor)"\}\)', text))


def _compared_images() -> frozenset[str]:
    recorded = [record["config"] for record in json.loads(RECORDS.read_text())]
    names = {config.get("image_processor", config)["image_processor_type"] for config in recorded}
    for case in CASES:
        if case.torchvision:  # it cannot be made without torchvision
            continue
        draw = random.Random(0)
        for processor in (case.published(), *(case.make(draw) for _ in range(_DRAWS))):
            inner: Any = getattr(processor, "image_processor", processor)
            names.add(type(inner).__name__.removesuffix("Pil"))
    return frozenset(names)


def _compared_videos() -> frozenset[str]:
    return frozenset(kind for _, kind in video_sweep.FAMILIES.values())


def page() -> str:
    """Returns the text of the page."""
    import transformers

    found = coverage()
    head = _HEAD.format(
        images=found.covered_images,
        all_images=len(found.mapped_images),
        videos=found.covered_videos,
        all_videos=len(found.videos),
        audio=found.covered_audio,
        all_audio=found.all_audio,
        version=transformers.__version__,
    )
    rows = []
    for name in sorted(found.images.keys() | found.videos.keys() | found.audio.keys()):
        cells = [_cell(outcomes.get(name, "")) for outcomes in (found.images, found.videos, found.audio)]
        rows.append(f"| {name} | {' | '.join(cells)} |\n")
    return head + "".join(rows)


def _cell(outcome: str) -> str:
    kind, colon, reason = outcome.partition(":")
    return f"`{kind}`:{reason}" if colon else outcome


def main() -> int:
    """Writes or checks the page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="writes nothing; exits with 1 if the page is out of date")
    options = parser.parse_args()
    made = page()
    if options.check:
        return int(PAGE.read_text() != made)
    PAGE.write_text(made)
    print(*made.splitlines()[2:5])
    return 0


if __name__ == "__main__":
    sys.exit(main())
