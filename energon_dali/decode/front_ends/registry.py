"""The families of front ends, the choice of one for a processor, and reading its configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from energon_dali.decode.front_ends.aria import Aria
from energon_dali.decode.front_ends.cohere2_vision import Cohere2Vision
from energon_dali.decode.front_ends.computed_values import DinoV3, Owlv2, ZoeDepth
from energon_dali.decode.front_ends.constant_text import FixedText
from energon_dali.decode.front_ends.cropped_video import (
    InstructBlipVideo,
    LlavaNextVideo,
    PerceptionLMVideo,
    Sam2Video,
    VideoLlavaVideo,
)
from energon_dali.decode.front_ends.deepseek_ocr2 import DeepseekOcr2
from energon_dali.decode.front_ends.deepseek_vl import DeepseekVL, DeepseekVLHybrid
from energon_dali.decode.front_ends.documents import Donut, Nougat
from energon_dali.decode.front_ends.emu3 import Emu3
from energon_dali.decode.front_ends.extractor_config import ExtractorConfig
from energon_dali.decode.front_ends.fixed_size import FixedSize
from energon_dali.decode.front_ends.frame_video import InternVLVideo, LlavaOnevisionVideo
from energon_dali.decode.front_ends.front_end import FrontEnd
from energon_dali.decode.front_ends.gemma3 import Gemma3
from energon_dali.decode.front_ends.gemma4 import Gemma4
from energon_dali.decode.front_ends.gemma4_video import Gemma4Video
from energon_dali.decode.front_ends.glm4v import Glm4V, Glm4VVideo, Glm5NextVideo, Glm46VVideo, GlmgaVideo
from energon_dali.decode.front_ends.glm5_next import Glm5Next, MuseGlimmer
from energon_dali.decode.front_ends.granite_docling import GraniteDocling
from energon_dali.decode.front_ends.idefics2 import Idefics2
from energon_dali.decode.front_ends.idefics3 import Idefics3
from energon_dali.decode.front_ends.imagegpt import ImageGPT
from energon_dali.decode.front_ends.internvl import AyaVision, GotOcr2, InternVL
from energon_dali.decode.front_ends.lfm2_vl import Lfm2VL
from energon_dali.decode.front_ends.llama4 import Llama4
from energon_dali.decode.front_ends.llava_next import LlavaNext
from energon_dali.decode.front_ends.llava_onevision import LlavaOnevision
from energon_dali.decode.front_ends.minicpm_v import MiniCpmV
from energon_dali.decode.front_ends.mllama import Mllama
from energon_dali.decode.front_ends.molmo2 import Molmo2
from energon_dali.decode.front_ends.nearest_family import describe_nearest_family
from energon_dali.decode.front_ends.nemotron_omni import NemotronOmni
from energon_dali.decode.front_ends.ovis2 import Ovis2
from energon_dali.decode.front_ends.padded_batch import PaddedBatch
from energon_dali.decode.front_ends.patch_relatives import (
    Cosmos3Edge,
    Ernie45VL,
    HunyuanVL,
    KimiK25,
    MiniMaxM3VL,
    PaddleOcrVL,
    VideoLlama3,
)
from energon_dali.decode.front_ends.patched_video_relatives import Cosmos3EdgeVideo, KimiK25Video
from energon_dali.decode.front_ends.perception_lm import PerceptionLM
from energon_dali.decode.front_ends.phi4_multimodal import Phi4Multimodal
from energon_dali.decode.front_ends.pix2struct import Kosmos25, Pix2Struct
from energon_dali.decode.front_ends.pixel_values import Arithmetic
from energon_dali.decode.front_ends.pixtral import LightOnOcr, Pixtral
from energon_dali.decode.front_ends.processor_config import ProcessorConfig, read_json_object
from energon_dali.decode.front_ends.processor_family import ProcessorFamily
from energon_dali.decode.front_ends.qwen2_vl import Qwen2VL
from energon_dali.decode.front_ends.qwen_video import Qwen2VLVideo, Qwen3VLVideo
from energon_dali.decode.front_ends.resampling import Resampling
from energon_dali.decode.front_ends.resized import FrameSequence, Resized, Sam2
from energon_dali.decode.front_ends.sam import Sam
from energon_dali.decode.front_ends.siglip2 import Siglip2
from energon_dali.decode.front_ends.smolvlm_video import SmolVLMVideo
from energon_dali.decode.front_ends.step3p7 import Step3p7
from energon_dali.decode.front_ends.video_front_end import VideoFrontEnd
from energon_dali.decode.front_ends.vision_video import VisionVideo, VJepa2Video
from energon_dali.decode.spec import ImageDtype
from energon_dali.errors import ConfigError

Made = TypeVar("Made", bound=FrontEnd)

Medium = Literal["image", "video", "audio"]
Family = TypeVar("Family", bound=ProcessorFamily)

_FILES: dict[Medium, tuple[str, ...]] = {
    "audio": ("preprocessor_config.json", "processor_config.json"),
    "image": ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"),
    "video": ("video_preprocessor_config.json", "preprocessor_config.json", "processor_config.json"),
}
"""Files in the order in which they are looked for."""
_INSIDE: dict[Medium, tuple[str, ...]] = {
    "audio": ("feature_extractor", "audio_processor"),
    "image": ("image_processor",),
    "video": ("video_processor",),
}
"""Names of the image, video or audio processor inside a processor."""
_VISUAL = (*_INSIDE["image"], *_INSIDE["video"], "image_processor_type", "video_processor_type")
"""What processors of images or videos have at least one of."""
_NOUNS: dict[Medium, str] = {"audio": "feature extractor"}
_ADVICE = "Give the file of save_pretrained."

_TOKENS = (
    "image_token_id",
    "image_token",
    "audio_token_id",
    "audio_token",
    "boi_token_id",
    "boi_token",
    "eoi_token",
    "boa_token",
    "eoa_token",
)
"""Attributes of tokenizers that front ends take."""

FAMILIES: tuple[type[FrontEnd], ...] = (
    FixedSize,
    FixedText,
    Qwen2VL,
    Glm4V,
    Cosmos3Edge,
    Ernie45VL,
    Glm5Next,
    HunyuanVL,
    KimiK25,
    MiniMaxM3VL,
    MuseGlimmer,
    PaddleOcrVL,
    VideoLlama3,
    Aria,
    Emu3,
    DeepseekVL,
    DeepseekVLHybrid,
    DeepseekOcr2,
    Gemma3,
    Gemma4,
    Idefics2,
    Idefics3,
    ImageGPT,
    InternVL,
    AyaVision,
    GotOcr2,
    GraniteDocling,
    MiniCpmV,
    Step3p7,
    Cohere2Vision,
    Ovis2,
    PerceptionLM,
    Llama4,
    Phi4Multimodal,
    Lfm2VL,
    Molmo2,
    NemotronOmni,
    LlavaNext,
    LlavaOnevision,
    Mllama,
    PaddedBatch,
    Pixtral,
    LightOnOcr,
    DinoV3,
    Donut,
    Nougat,
    Owlv2,
    Pix2Struct,
    Kosmos25,
    ZoeDepth,
    Resized,
    Sam2,
    FrameSequence,
    Sam,
    Siglip2,
)


VIDEO_FAMILIES: tuple[type[VideoFrontEnd], ...] = (
    Qwen2VLVideo,
    Qwen3VLVideo,
    Glm4VVideo,
    Glm46VVideo,
    Glm5NextVideo,
    GlmgaVideo,
    Cosmos3EdgeVideo,
    KimiK25Video,
    Gemma4Video,
    InternVLVideo,
    LlavaOnevisionVideo,
    SmolVLMVideo,
    VisionVideo,
    VJepa2Video,
    InstructBlipVideo,
    LlavaNextVideo,
    PerceptionLMVideo,
    Sam2Video,
    VideoLlavaVideo,
)

registered: list[type[FrontEnd]] = []
"""What `register_front_end` added, in its order; tried after those above."""


def make_front_end(
    kind: type[Made], processor: object, dtype: ImageDtype | None, resampling: Resampling | None, fields: dict[str, Any]
) -> Made:
    """Returns the front end for a processor, or for its video half; see `FrontEnd.from_processor`.

    Raises:
        ConfigError: No family covers the processor, or one of its values.
    """
    config = read_processor(processor, "video" if issubclass(kind, VideoFrontEnd) else "image")
    families = [family for family in (*FAMILIES, *VIDEO_FAMILIES, *registered) if issubclass(family, kind)]
    family = choose_family(families, config)
    if family is not None:
        if config.type_name in family.torchvision_only:
            config.arithmetic = "torch"
        front_end = family.from_config(config)
        config.finish(family.unused_keys)
        fields = {**_known_ids(front_end, config), **fields}
        return front_end.with_fields(
            dtype=dtype or front_end.own_dtype(), resampling=resampling or config.arithmetic, **fields
        )
    known = ", ".join(sorted({name for family in families for name in family.processors}))
    extractor = _extractor_alone(processor)
    if extractor:
        raise ConfigError(
            f"There is no front end of images or videos for {extractor}, a feature extractor. If it is one of audio, "
            f"give it to AudioFrontEnd.from_processor. Covered are {known}."
        )
    if not config.type_name:
        raise ConfigError(
            "There is no front end for a processor that does not name its type: its file has neither "
            "image_processor_type nor video_processor_type. Give the processor that transformers makes of it, or add "
            f"the type. Covered are {known}."
        )
    nearest = describe_nearest_family(families, config)
    raise ConfigError(
        f"There is no front end for {config.type_name}. {nearest}Covered are {known}. "
        "Run this processor in encode_sample on what the decoder gives, or add a front end of your own: "
        "register_front_end (docs/vlm.md)."
    )


def _extractor_alone(processor: object) -> str:
    """Returns the class of the feature extractor of a processor without images and videos; "" for other processors."""
    try:
        config = read_processor(processor, "audio")
    except ConfigError:
        return ""
    if any(getattr(processor, name, None) or config.outer.get(name) or config.take(name) for name in _VISUAL):
        return ""
    return config.type_name if config.type_name.endswith(("FeatureExtractor", "AudioProcessor")) else ""


def choose_family(families: Sequence[type[Family]], config: ProcessorConfig) -> type[Family] | None:
    """Returns the family for a processor: that for the processor around it, if there is one for it."""
    covering = [family for family in families if config.type_name in family.processors]
    around = config.outer.get("processor_class")
    special = [family for family in covering if around in family.around]
    return next(iter(special or [family for family in covering if not family.around]), None)


def _known_ids(front_end: FrontEnd, config: ProcessorConfig) -> dict[str, int]:
    """Returns the ids of placeholders that the processor's tokenizer or the model's folder has."""
    ids = {"image_token_id": config.image_token_id}
    if isinstance(front_end, VideoFrontEnd):
        ids["video_token_id"] = config.video_token_id
    if front_end.separate_placeholder and config.tokenizer is not None:
        to_id = config.tokenizer.convert_tokens_to_ids
        ids["image_token_id"] = to_id(front_end.feature_token)  # type: ignore[attr-defined]
        ids["placeholder_id"] = to_id(front_end.image_token)
    return {name: number for name, number in ids.items() if number is not None}


def read_processor(processor: object, medium: Medium) -> ProcessorConfig:
    """Returns the configuration of a processor of images, videos or audio.

    Args:
        processor: An image or video processor or a feature extractor, or a processor with one; or the path of a folder
            that one was saved to, or of its JSON file. transformers is not needed for a path. A folder from before
            there were video processors has one file for images and videos.
        medium: Which of the three.

    Raises:
        ConfigError: It is none of these.
    """
    if isinstance(processor, Mapping):
        return _from_values(processor, medium)
    if not isinstance(processor, (str, Path)):
        inside = (getattr(processor, name, None) for name in _INSIDE[medium])
        return _from_object(processor, next((inner for inner in inside if inner is not None), None), medium)
    path = Path(processor)
    found = [path / name for name in _FILES[medium] if (path / name).is_file()]
    if not found:
        values = read_json_object(_existing(path, medium), _ADVICE)
        return _from_values(values, "video" if path.name == _FILES["video"][0] else medium)
    whole = path / "processor_config.json"
    outer = {**_token_ids(path), **(read_json_object(whole, _ADVICE) if whole in found else {})}
    # What is inside wins over other files, as in transformers.
    if any(isinstance(outer.get(name), Mapping) for name in _INSIDE[medium]):
        return _from_values(outer, medium)
    return _from_values(read_json_object(found[0], _ADVICE), medium, outer)


def _outer_values(processor: object, medium: Medium) -> dict[str, Any]:
    values: dict[str, Any] = {"processor_class": type(processor).__name__}
    values |= {name: value for name, value in vars(processor).items() if isinstance(value, (int, float, str, bool))}
    sizes = getattr(processor, "size_conversion", None)  # Aria: tokens by side
    if isinstance(sizes, Mapping):
        values["size_conversion"] = dict(sizes)
    passes = "audio_kwargs" if medium == "audio" else "images_kwargs"
    passed = getattr(processor, passes, None)
    if isinstance(passed, Mapping):  # what it passes to its inner processor, over that one's own values
        values[passes] = dict(passed)
    ids = getattr(processor, "image_token_ids", None)  # that of a feature first, which Gemma 3's placeholder is not
    if isinstance(ids, list) and ids and isinstance(ids[0], int):
        values["image_token_id"] = ids[0]
    for name in _TOKENS:
        value = getattr(getattr(processor, "tokenizer", None), name, None)
        if isinstance(value, (int, str)):
            values.setdefault(name, value)
    return values


def _from_object(processor: object, inner: object, medium: Medium) -> ProcessorConfig:
    """Returns the configuration of an inner processor, or of `processor` if there is none inside."""
    outer = {} if inner is None else _outer_values(processor, medium)
    tokenizer = None if inner is None else getattr(processor, "tokenizer", None)
    media_processor: Any = processor if inner is None else inner
    to_dict = getattr(media_processor, "to_dict", None)
    if not callable(to_dict):
        noun = _NOUNS.get(medium, "processor")
        kinds = "feature extractor" if medium == "audio" else "image processor or video processor"
        raise ConfigError(
            f"{type(media_processor).__name__} is not a {noun}. Give a Hugging Face {kinds}, a processor that has one, "
            "or the folder it was saved to."
        )
    values = dict(to_dict())
    if medium == "audio":
        values.setdefault("feature_extractor_type", type(media_processor).__name__)
        config = ExtractorConfig(values, outer=outer, tokenizer=tokenizer)
        config.mel_filters = getattr(media_processor, "mel_filters", None)
        return config
    values.setdefault("image_processor_type", type(media_processor).__name__)
    backend = getattr(media_processor, "backend", "pil")
    arithmetic: Arithmetic = "torch" if backend == "torchvision" else "pil"
    return ProcessorConfig(values, outer=outer, arithmetic=arithmetic, tokenizer=tokenizer)


def _token_ids(folder: Path) -> dict[str, Any]:
    """Returns the ids of placeholders in the config of the model; older ones call an id an index."""
    if not (folder / "config.json").is_file():
        return {}
    model = read_json_object(folder / "config.json", _ADVICE)
    names = [f"{medium}_token_{name}" for medium in ("image", "video", "audio", "boi") for name in ("index", "id")]
    return {name: model[name] for name in names if name in model}


def _existing(path: Path, medium: Medium) -> Path:
    if path.is_dir():
        files = _FILES["audio" if medium == "audio" else "image"]
        raise ConfigError(f"{path} has none of {', '.join(files)}. Give the folder that a processor was saved to.")
    if not path.is_file():
        raise ConfigError(
            f"{str(path)!r} is neither a folder nor a file. Give a folder that a processor was saved to (nothing is "
            "downloaded): AutoProcessor.from_pretrained(...).save_pretrained(folder)."
        )
    return path


def _from_values(values: Mapping[str, Any], medium: Medium, outer: Mapping[str, Any] | None = None) -> ProcessorConfig:
    inner = next((values[name] for name in _INSIDE[medium] if isinstance(values.get(name), Mapping)), None)
    if inner is not None:  # processor_config.json holds the processor of the medium inside
        outer = {**values, **(outer or {})}
        values = inner
    values = dict(values)
    if medium == "video":
        image_type = values.pop("image_processor_type", None)
        if isinstance(image_type, str):
            values.setdefault("video_processor_type", image_type.replace("ImageProcessor", "VideoProcessor"))
    return (ExtractorConfig if medium == "audio" else ProcessorConfig)(values, outer=outer)
