"""Processors of chat models with tiny tokenizers, their front ends, and random conversations with random media."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from energon_dali import FrontEnd, VideoFrontEnd
from energon_dali.decode.audio_front_ends import AudioFrontEnd
from tests.decode.front_ends.tile_cases import processor_class

PATCHES = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 12}}
SQUARE = {"height": 28, "width": 28}
CORPUS = (
    "the quick brown fox jumps over the lazy dog. What is in this image? It is a cat, the second one.",
    "user assistant system\n\nYou are a helpful assistant.\n Ångström naïve 東京 🙂🙂 the the the\n\n",
)
TEXTS = (
    *CORPUS,
    "",
    " ",
    "\n",
    " the cat",
    "It is.\n",
    "naïve 🙂",
    "東京",
    "a\n\nb",
    "<b>not a token</b>",
    "e\u0301",
    "The answer: 42",
)


@lru_cache
def _bytes(merges: bool) -> str:
    """Returns the JSON of a byte-level tokenizer; with merges, tokens cross the borders of words and turns."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400 if merges else 256, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([text.replace(".", ".\n") for text in CORPUS] * 3, trainer)
    return tokenizer.to_str()


def chat_tokenizer(
    *special: str, begin: str | None = None, adds_begin: bool = False, merges: bool = True, **named: Any
) -> Any:
    """Returns a fast tokenizer.

    Args:
        *special: Tokens that are never cut.
        begin: Its bos_token.
        adds_begin: Whether it adds that in front of a text, as those of Llama and Gemma do.
        merges: Whether it has tokens of several bytes.
        **named: Special tokens with a name.
    """
    from tokenizers import Tokenizer, processors
    from transformers import PreTrainedTokenizerFast

    make: Any = PreTrainedTokenizerFast
    made = make(
        tokenizer_object=Tokenizer.from_str(_bytes(merges)),
        pad_token="<pad>",
        bos_token=begin,
        extra_special_tokens=named,
    )
    made.add_tokens(["<|im_start|>", "<|im_end|>", *special], special_tokens=True)
    if adds_begin:
        pair = (begin, made.bos_token_id)
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(f"{begin} $A", None, [pair])
    return made


def pil_processor(module: str, name: str, **values: Any) -> Any:
    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{name}Pil")(**values)


@dataclass(frozen=True)
class ChatCase:
    """A processor, and the front ends that stand for its parts."""

    processor: Any
    image: FrontEnd | None = None
    video: VideoFrontEnd | None = None
    audio: AudioFrontEnd | None = None
    media: dict[str, str] = field(default_factory=dict)
    """What the template writes for a medium of each kind."""
    begin: str = ""
    """What the template writes first."""
    several_images: bool = False
    """Whether layouts of several images differ from those of one."""

    def front_ends(self) -> dict[str, Any]:
        """Returns the front ends as arguments of a ChatEncoder."""
        return {"image": self.image, "video": self.video, "audio": self.audio}


class StandInVideos:
    """Answers as a video processor does, from the layouts of a front end: torchvision, which they need, is missing."""

    def __init__(self, front_end: VideoFrontEnd) -> None:
        self.front_end = front_end
        self.merge_size = getattr(front_end, "merge_size", 1)
        self.temporal_patch_size = getattr(front_end, "temporal_patch_size", 1)
        self.model_input_names: list[str] = []

    def __call__(self, videos: Any, **_: Any) -> dict[str, Any]:
        from transformers.video_utils import VideoMetadata

        flat = [video for row in videos for video in row] if isinstance(videos[0], list) else videos
        layouts = [video_layout(self.front_end, video) for video in flat]
        made: dict[str, Any] = {
            "video_metadata": [
                VideoMetadata(total_num_frames=one.total_frames, fps=one.fps, frames_indices=list(one.frames))
                for one in layouts
            ]
        }
        if hasattr(self.front_end, "merge_size"):
            made["video_grid_thw"] = np.array([one.grid for one in layouts])
        else:
            shape = len(layouts), len(layouts[0].frames), 3, *SQUARE.values()
            made["pixel_values_videos"] = Flattening(np.zeros(shape, np.float32))
        return made


class Flattening(np.ndarray):
    """An array with the method of tensors that InternVL's processor calls."""

    def __new__(cls, values: Any) -> Flattening:
        return np.asarray(values).view(cls)

    def flatten(self, first: int = 0, last: int = 0) -> Any:  # type: ignore[override]
        return np.asarray(self).reshape(-1, *self.shape[last + 1 :])


def video_layout(front_end: VideoFrontEnd, video: np.ndarray[Any, Any]) -> Any:
    """Returns the layout of a video [frames, height, width, 3] of 8 frames per second."""
    return front_end.layout(video.shape[2], video.shape[1], len(video), 8.0)


def qwen(module: str, name: str, video: str, **options: Any) -> ChatCase:
    patch = 16 if module == "qwen3_vl" else 14
    tokens = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    values = {**PATCHES, "patch_size": patch}
    config = {"video_processor_type": video, "do_sample_frames": True, "fps": 2.0, **values}
    config["size"] = {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * (40 if module == "qwen3_vl" else 6)}
    videos = VideoFrontEnd.from_processor(config)
    processor = processor_class(module, name)(
        pil_processor("qwen2_vl", "Qwen2VLImageProcessor", **values), chat_tokenizer(*tokens), StandInVideos(videos)
    )
    media = {kind: f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video")}
    return ChatCase(processor, FrontEnd.from_processor(processor), videos, media=media)


def llava_onevision() -> ChatCase:
    values = {"size": SQUARE, "image_grid_pinpoints": [[28, 28], [28, 56], [56, 28], [56, 56]]}
    text = {"num_image_tokens": 4, "vision_feature_select_strategy": "full"}
    config = {
        "video_processor_type": "LlavaOnevisionVideoProcessor",
        "do_sample_frames": True,
        "num_frames": 3,
        "size": SQUARE,
    }
    videos = VideoFrontEnd.from_processor(config, num_image_tokens=4)
    processor = processor_class("llava_onevision", "LlavaOnevisionProcessor")(
        pil_processor("llava_onevision", "LlavaOnevisionImageProcessor", **values),
        chat_tokenizer("<image>", "<video>"),
        StandInVideos(videos),
        **text,
    )
    image = FrontEnd.from_processor(processor)
    return ChatCase(processor, image, videos, media={"image": "<image>\n", "video": "<video>\n"}, several_images=True)


def internvl() -> ChatCase:
    names: dict[str, Any] = {
        "start_image_token": "<img>",
        "end_image_token": "</img>",
        "context_image_token": "<IMG_CONTEXT>",
        "video_token": "<video>",
    }
    config = {"video_processor_type": "InternVLVideoProcessor", "do_sample_frames": True, "num_frames": 3}
    videos = VideoFrontEnd.from_processor({**config, "size": SQUARE}, tile_tokens=3)
    processor = processor_class("internvl", "InternVLProcessor")(
        pil_processor("got_ocr2", "GotOcr2ImageProcessor", size=SQUARE, max_patches=4),
        chat_tokenizer(**names),
        StandInVideos(videos),
        image_seq_length=3,
    )
    return ChatCase(
        processor, FrontEnd.from_processor(processor), videos, media={"image": "<IMG_CONTEXT>\n", "video": "<video>\n"}
    )


def smolvlm() -> ChatCase:
    module = import_module("transformers.models.smolvlm.processing_smolvlm")
    module.num2words = str  # type: ignore[attr-defined]  # a package that only the texts of videos need
    tags = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
    tokens = ("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>", *tags)
    inner = pil_processor(
        "smolvlm", "SmolVLMImageProcessor", max_image_size={"longest_edge": 28}, size={"longest_edge": 84}
    )
    stand_in = SimpleNamespace(num_frames=4, fps=1, model_input_names=[])
    processor = processor_class("smolvlm", "SmolVLMProcessor")(
        inner, chat_tokenizer(*tokens), stand_in, image_seq_len=3
    )
    return ChatCase(processor, FrontEnd.from_processor(processor), media={"image": "<image>"}, begin="<|im_start|>")


def gemma3() -> ChatCase:
    names: dict[str, Any] = {
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "image_token": "<image_soft_token>",
    }
    inner = pil_processor("gemma3", "Gemma3ImageProcessor", size=SQUARE)
    inner.do_pan_and_scan = False
    tokenizer = chat_tokenizer(begin="<bos>", adds_begin=True, **names)
    processor = processor_class("gemma3", "Gemma3Processor")(inner, tokenizer, image_seq_length=4)
    return ChatCase(processor, FrontEnd.from_processor(processor), media={"image": "<start_of_image>"}, begin="<bos>")


def whisper_features() -> Any:
    from transformers import WhisperFeatureExtractor

    make: Any = WhisperFeatureExtractor
    return make(feature_size=8, chunk_length=3)


def qwen2_audio() -> ChatCase:
    tokens = chat_tokenizer("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    processor = processor_class("qwen2_audio", "Qwen2AudioProcessor")(whisper_features(), tokens)
    media = {"audio": "Audio: <|audio_bos|><|AUDIO|><|audio_eos|>\n"}
    return ChatCase(processor, audio=AudioFrontEnd.from_processor(processor), media=media)


class HearsVideos:
    """Part of a processor: takes the audio of videos from a list, as torchcodec, which decodes it, may be missing."""

    heard: list[Any]

    def _resolve_audio_from_video(self, videos: Any, audio: Any = None, audio_from_video_indices: Any = None) -> Any:
        slots = audio_from_video_indices or []
        alone = iter(audio or [])
        found = [next(alone) if slot is None else self.heard[slot] for slot in slots]
        return found or None, [slots.index(number) for number in range(len(self.heard))]


def omni(module: str, name: str) -> ChatCase:
    newer = module == "qwen3_omni_moe"
    names: dict[str, Any] = {
        **{f"{kind}_token": f"<|{kind.upper()}|>" for kind in ("image", "video", "audio")},
        **{f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")},
    }
    values = {**PATCHES, "patch_size": 16 if newer else 14}
    config = {"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": True, "fps": 2.0, **values}
    videos = VideoFrontEnd.from_processor(config, video_token=names["video_token"])
    bare = processor_class(module, name)
    processor = type(name, (HearsVideos, bare), {})(
        pil_processor("qwen2_vl", "Qwen2VLImageProcessor", **values),
        StandInVideos(videos),
        whisper_features(),
        chat_tokenizer(**names),
    )
    media = {kind: f"<|vision_bos|>{names[f'{kind}_token']}<|vision_eos|>" for kind in ("image", "video")}
    return ChatCase(
        processor,
        FrontEnd.from_processor(processor),
        videos,
        AudioFrontEnd.from_processor(processor),
        {**media, "audio": f"<|audio_bos|>{names['audio_token']}<|audio_eos|>"},
    )


CASES: dict[str, Callable[[], ChatCase]] = {
    "Qwen2-VL": lambda: qwen("qwen2_vl", "Qwen2VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen2.5-VL": lambda: qwen("qwen2_5_vl", "Qwen2_5_VLProcessor", "Qwen2VLVideoProcessor"),
    "Qwen3-VL": lambda: qwen("qwen3_vl", "Qwen3VLProcessor", "Qwen3VLVideoProcessor"),
    "LLaVA-OneVision": llava_onevision,
    "InternVL": internvl,
    "SmolVLM": smolvlm,
    "Gemma 3": gemma3,
    "Qwen2-Audio": qwen2_audio,
    "Qwen2.5-Omni": lambda: omni("qwen2_5_omni", "Qwen2_5OmniProcessor"),
    "Qwen3-Omni": lambda: omni("qwen3_omni_moe", "Qwen3OmniMoeProcessor"),
}


def chat_template(case: ChatCase, draw: random.Random, *, marked: bool, whole: bool = False) -> str:
    """Returns a chat template, with or without `{% generation %}` around what the assistant says.

    Args:
        case: Says how media are written.
        draw: Draws where the markers begin and end, and how a turn does.
        marked: Whether there are markers.
        whole: Whether the end of a turn is between them.
    """
    branches = "".join(f"{{% elif block.type == '{kind}' %}}{{{{ {text!r} }}}}" for kind, text in case.media.items())
    content = (
        "{% if message.content is string %}{{ message.content }}{% else %}{% for block in message.content %}"
        "{% if block.type == 'text' %}{{ block.text }}" + branches + "{% endif %}{% endfor %}{% endif %}"
    )
    begin, end = draw.choice((("<|im_start|>", "<|im_end|>\n"), ("<|im_start|>", "<|im_end|>"), ("### ", "\n\n")))
    middle = draw.choice(("\n", ": ", ""))
    said = content + "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}"
    if whole:
        said = "{% generation %}" + said + end + "{% endgeneration %}"
    elif marked:
        said = draw.choice(
            (
                "{% generation %}" + said + "{% endgeneration %}" + end,
                "{% generation %}" + said + end + "{% endgeneration %}",
                "{% generation %}" + said + "{% endgeneration %}{% generation %}" + end + "{% endgeneration %}",
            )
        )
    else:
        said += end
    tools = "{% if tools %}" + begin + "system{{ tools | tojson }}" + end + "{% endif %}"
    return (
        f"{{{{ {case.begin!r} }}}}"
        + tools
        + "{% for message in messages %}"
        + begin
        + "{{ message.role }}"
        + middle
        + "{% if message.role == 'assistant' %}"
        + said
        + "{% else %}"
        + content
        + end
        + "{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}" + begin + "assistant" + middle + "{% endif %}"
    )


def conversation(case: ChatCase, draw: random.Random) -> list[dict[str, Any]]:
    """Returns a random conversation, with media as arrays and images in its blocks."""
    messages: list[dict[str, Any]] = []
    if draw.random() < 0.4:
        messages.append({"role": "system", "content": draw.choice(TEXTS)})
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": content(case, draw)})
        if draw.random() < 0.2:
            call = {"name": "look", "arguments": {"at": draw.choice(TEXTS)}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            messages.append({"role": "tool", "content": content(case, draw) if draw.random() < 0.3 else "seen"})
        messages.append({"role": "assistant", "content": content(case, draw, likely=0.1)})
    if draw.random() < 0.2:
        messages.append({"role": "user", "content": draw.choice(TEXTS)})
    return [{**message, "content": message["content"] or ""} for message in messages]


def content(case: ChatCase, draw: random.Random, likely: float = 0.45) -> Any:
    """Returns a text, or a list of texts and media in random order."""
    if draw.random() < 0.3:
        return draw.choice(TEXTS)
    blocks: list[dict[str, Any]] = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.choice(list(case.media))
        if draw.random() >= likely:
            blocks.append({"type": "text", "text": draw.choice(TEXTS)})
        elif kind == "image":
            size = draw.randint(20, 120), draw.randint(20, 120)
            blocks.append({"type": "image", "image": Image.new("RGB", size)})
        elif kind == "video":
            shape = draw.randint(8, 40), draw.choice((40, 60, 100)), draw.choice((40, 80)), 3
            blocks.append({"type": "video", "video": np.zeros(shape, np.uint8)})
        elif kind == "audio":
            blocks.append({"type": "audio", "audio": recording(draw)})
    return blocks


def recording(draw: random.Random) -> np.ndarray[Any, Any]:
    """Returns whole frames of silence of up to 3 seconds, at 16 kHz."""
    return np.zeros(160 * draw.randint(10, 300), np.float32)


def blocks_of(messages: Sequence[dict[str, Any]], kind: str) -> list[Any]:
    """Returns the media of one kind in the order of a conversation."""
    lists = [message["content"] for message in messages if isinstance(message["content"], list)]
    return [block[kind] for blocks in lists for block in blocks if block["type"] == kind]


def layouts_of(case: ChatCase, messages: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Returns the arguments of a ChatEncoder for the media of a conversation."""
    images, videos, audio = (blocks_of(messages, kind) for kind in ("image", "video", "audio"))
    front_end = case.image
    if case.several_images and len(images) > 1:
        assert front_end is not None
        front_end = front_end.with_fields(several_images=True)
    given: dict[str, list[Any]] = {}
    if images:
        assert front_end is not None
        given["images"] = [front_end.layout(*image.size) for image in images]
    if videos:
        assert case.video is not None
        given["videos"] = [video_layout(case.video, video) for video in videos]
    if audio:
        assert case.audio is not None
        given["audio"] = [case.audio.layout(len(samples)) for samples in audio]
    return given
