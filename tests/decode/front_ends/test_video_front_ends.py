"""Videos as models take them: frames, patches, tokens and text as the processors make them, by both decoders."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from energon_dali import (
    ConfigError,
    DaliDecoder,
    DecodeError,
    FrontEnd,
    SampleDecoder,
    VideoClips,
    VideoFrontEnd,
    VideoInput,
    batch_vision,
)
from energon_dali.decode import Decoded, MediaHandle
from energon_dali.task_encoder.token_counts import count_tokens
from tests.av.corpus import VIDEOS, audio_file, encode_video, video_file
from tests.decode.sample_images import encode, photograph

SMALL = {"shortest_edge": 1000, "longest_edge": 40_000}
QWEN2 = {"video_processor_type": "Qwen2VLVideoProcessor", "do_sample_frames": True, "fps": 2, "size": SMALL}
QWEN3 = {"video_processor_type": "Qwen3VLVideoProcessor", "size": {"shortest_edge": 1000, "longest_edge": 400_000}}
GLM = {"video_processor_type": "Glm4vVideoProcessor", "size": {"shortest_edge": 1000, "longest_edge": 400_000}}
GLM46 = {**GLM, "video_processor_type": "Glm46VVideoProcessor"}
ONEVISION = {"video_processor_type": "LlavaOnevisionVideoProcessor", "do_sample_frames": True, "num_frames": 4}
INTERNVL = {"video_processor_type": "InternVLVideoProcessor", "do_sample_frames": True, "num_frames": 4}
FAMILIES = {
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "glm4v": GLM,
    "glm46v": GLM46,
    "onevision": {**ONEVISION, "size": {"height": 40, "width": 56}},
    "internvl": {**INTERNVL, "size": {"height": 48, "width": 48}},
}
_SPLIT = r"</?[a-z|_]+>| ?[A-Za-z]+|{digits}|[^A-Za-z\d]"
SPLITS = {family: _SPLIT.format(digits=r"\d{1,3}" if family.startswith("glm") else r"\d") for family in FAMILIES}
SPLITS["internvl"] = SPLITS["internvl"].replace("[a-z|_]", "[A-Za-z_]")
"""Where the tokenizers of the published models split the text of a video."""


@pytest.mark.parametrize(
    ("config", "fields", "total", "fps", "expected"),
    [
        (QWEN2, {}, 100, 24.0, [0, 12, 25, 37, 50, 62, 75, 87]),
        (QWEN2, {"num_frames": 7}, 100, 24.0, [0, 12, 25, 37, 50, 62, 75, 87]),
        (QWEN2, {"fps": 1.0, "max_frames": 9}, 1000, 30000 / 1001, [0, 125, 250, 375, 500, 625, 750, 875]),
        ({**QWEN2, "do_sample_frames": False}, {}, 5, 24.0, [0, 1, 2, 3, 4]),
        (QWEN3, {}, 100, 24.0, [0, 14, 28, 42, 57, 71, 85, 99]),
        (QWEN3, {"fps": 0.1}, 50, 25.0, [0, 16, 33, 49]),
        (QWEN3, {"num_frames": 6}, 20, 25.0, [0, 4, 8, 11, 15, 19]),
        (GLM, {}, 100, 24.0, [0, 12, 24, 36, 48, 60, 72, 84]),
        (GLM, {"max_duration": 2.0, "fps": 3.0}, 90, 30.0, [0, 18, 36, 54, 72, 89]),
        (GLM46, {}, 61, 24.0, [0, 3, 6, 9, 12, 16, 19, 22, 25, 28, 32, 35, 38, 41, 45, 45]),
        (GLM46, {}, 400, 10.0, list(range(0, 400, 5))),
        (GLM46, {}, 12, 1.0, list(range(12))),
        (ONEVISION, {"num_frames": 8}, 100, 24.0, [0, 12, 25, 37, 50, 62, 75, 87]),
        (ONEVISION, {"num_frames": None, "fps": 1.0}, 100, 24.0, [0, 25, 50, 75]),
        (INTERNVL, {"num_frames": 8}, 100, 24.0, [6, 18, 31, 43, 56, 68, 81, 93]),
        (INTERNVL, {"num_frames": 5, "initial_shift": False}, 33, 24.0, [0, 6, 13, 19, 26]),
    ],
)
def test_frames_are_those_that_transformers_chose(
    config: dict[str, Any], fields: dict[str, Any], total: int, fps: float, expected: list[int]
) -> None:
    front_end = VideoFrontEnd.from_processor(config, **fields)
    assert list(front_end.layout(320, 240, total, fps).frames) == expected


def written_out(frames: torch.Tensor, front_end: Any, layout: Any) -> torch.Tensor:
    """Returns the values of frames uint8[n, 3, H, W] as the processors compute them, step by step."""
    view, values = layout.views[0], front_end.values
    frames = interpolate(frames, (view.height, view.width), mode="bicubic", antialias=True)
    mean, std = (torch.tensor(triple)[:, None, None] * (1 / values.rescale) for triple in (values.mean, values.std))
    pixels = (frames.float() - mean) / std
    if not hasattr(front_end, "patch_size"):
        return pixels
    time, merge, patch = front_end.temporal_patch_size, front_end.merge_size, front_end.patch_size
    pixels = torch.cat([pixels, pixels[-1:].expand(-len(pixels) % time, -1, -1, -1)])
    rows, columns = view.height // patch // merge, view.width // patch // merge
    cut = pixels.reshape(-1, time, 3, rows, merge, patch, columns, merge, patch)
    return cut.permute(0, 3, 6, 4, 7, 2, 1, 5, 8).reshape(-1, 3 * time * patch * patch)


@pytest.mark.parametrize("family", FAMILIES)
def test_both_decoders_make_what_the_processor_makes(family: str) -> None:
    front_end = VideoFrontEnd.from_processor(FAMILIES[family])
    spec = VideoClips(front_end=front_end)
    raw = video_file("vp9-webm")
    total = VIDEOS["vp9-webm"].frames
    for make in (
        SampleDecoder,
        lambda **given: DaliDecoder(image_decode_device="cpu", video_decode_device="cpu", **given),
    ):
        decoder = make(av_decode=spec)
        handle = pickle.loads(pickle.dumps(decoder.stage("webm", raw)))
        layout = handle.layout
        assert handle.num_tokens == layout.num_tokens > 0
        assert layout.total_frames == total
        (outcome,) = decoder.decode_block([handle])
        assert isinstance(outcome, Decoded)
        assert outcome.route == ("pyav" if make is SampleDecoder else "dali-cpu")
        video = outcome.value
        assert isinstance(video, VideoInput)
        assert video.layout == layout
        assert video.num_tokens == handle.num_tokens
        plain = make(av_decode=VideoClips(frames_per_clip=total))
        (everything,) = (
            plain.decode_block([plain.stage("webm", raw)])
            if make is not SampleDecoder
            else (Decoded(plain.decode("webm", raw), "pyav"),)
        )
        frames = everything.value.frames[0][list(layout.frames)]
        assert torch.equal(video.values, written_out(frames, front_end, layout))
        assert video.timestamps == tuple(everything.value.timestamps[0][list(layout.frames)].tolist())
        if layout.grid[1:]:
            assert len(video.values) == layout.grid[0] * layout.grid[1] * layout.grid[2]


def processor_text(family: str, layout: Any, front_end: Any) -> str:
    """Returns the text of a video from the processor's own method, which needs neither tokenizer nor torchvision."""
    from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
    from transformers.models.glm46v.processing_glm46v import Glm46VProcessor
    from transformers.models.internvl.processing_internvl import InternVLProcessor
    from transformers.models.llava_onevision.processing_llava_onevision import LlavaOnevisionProcessor
    from transformers.models.qwen2_5_vl.processing_qwen2_5_vl import Qwen2_5_VLProcessor
    from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
    from transformers.video_utils import VideoMetadata

    kinds: dict[str, Any] = {
        "qwen2": Qwen2_5_VLProcessor,
        "qwen3": Qwen3VLProcessor,
        "glm4v": Glm4vProcessor,
        "glm46v": Glm46VProcessor,
        "onevision": LlavaOnevisionProcessor,
        "internvl": InternVLProcessor,
    }
    processor = kinds[family].__new__(kinds[family])
    processor.__dict__.update(
        video_processor=SimpleNamespace(
            merge_size=getattr(front_end, "merge_size", 0),
            temporal_patch_size=getattr(front_end, "temporal_patch_size", 0),
        ),
        video_token=front_end.video_token,
        image_token=front_end.image_token,
        vision_start_token="<|vision_start|>",
        vision_end_token="<|vision_end|>",
        start_image_token="<img>",
        end_image_token="</img>",
        image_seq_length=getattr(front_end, "tile_tokens", 0),
        num_image_tokens=getattr(front_end, "num_image_tokens", 0),
    )
    metadata = VideoMetadata(layout.total_frames, fps=layout.fps, frames_indices=list(layout.frames))
    inputs = {
        "video_grid_thw": torch.tensor([layout.grid]),
        "video_metadata": [metadata],
        "pixel_values_videos": [torch.empty(len(layout.frames))],
    }
    text: str = processor.replace_video_token(inputs, 0)
    return text


@pytest.mark.parametrize("family", FAMILIES)
def test_text_is_expanded_as_by_the_processor(family: str) -> None:
    front_end: Any = VideoFrontEnd.from_processor(FAMILIES[family])
    for size, total, fps in (((320, 240), 100, 24.0), ((90, 200), 41, 30000 / 1001), ((64, 64), 300, 10.0)):
        layout = front_end.layout(*size, total, fps)
        expected = processor_text(family, layout, front_end)
        assert front_end.expand_text(f"a{front_end.video_token}b", [layout]) == f"a{expected}b"
        feature = front_end.video_token if front_end.video_token in expected else front_end.image_token
        assert expected.count(feature) == layout.num_tokens
        assert front_end.text_tokens(layout) == len(re.findall(SPLITS[family], expected))
    with pytest.raises(ConfigError, match=r"has 1 '<.*video.*>', and there are 0 videos"):
        front_end.expand_text(front_end.video_token, [])


def test_batches_have_the_keys_of_the_processor() -> None:
    images = FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor", "size": SMALL})
    videos = VideoFrontEnd.from_processor({**QWEN2, "processor_class": "Qwen2_5_VLProcessor"})
    decoder = SampleDecoder(front_end=images, av_decode=VideoClips(front_end=videos))
    image = decoder.decode("png", encode(photograph("china", (60, 50)), "png"))
    video = decoder.decode("webm", video_file("vp9-webm"))
    batch = batch_vision([[image, video], [], [video]])
    assert set(batch) == {
        "pixel_values",
        "image_grid_thw",
        "pixel_values_videos",
        "video_grid_thw",
        "second_per_grid_ts",
    }
    assert torch.equal(batch["pixel_values_videos"], torch.cat([video.values, video.values]))
    assert batch["video_grid_thw"].tolist() == [list(video.layout.grid)] * 2
    layout = video.layout
    assert batch["second_per_grid_ts"].tolist() == pytest.approx(
        [2 / (len(layout.frames) / layout.total_frames * layout.fps)] * 2
    )
    older = VideoFrontEnd.from_processor({**QWEN2, "processor_class": "Qwen2VLProcessor"})
    assert set(older.collate([[video]])) == {"pixel_values_videos", "video_grid_thw"}

    tiles = FrontEnd.from_processor(
        {"image_processor_type": "GotOcr2ImageProcessor", "size": {"height": 48, "width": 48}}
    )
    frames = VideoFrontEnd.from_processor(FAMILIES["internvl"])
    decoder = SampleDecoder(front_end=tiles, av_decode=VideoClips(front_end=frames))
    image = decoder.decode("png", encode(photograph("china", (60, 50)), "png"))
    video = decoder.decode("webm", video_file("vp9-webm"))
    ordered = batch_vision([[video, image], [image]], for_model=True)
    assert list(ordered) == ["pixel_values"]
    assert torch.equal(ordered["pixel_values"], torch.cat([video.values, image.values, image.values]))

    onevision = VideoFrontEnd.from_processor(FAMILIES["onevision"])
    video = SampleDecoder(av_decode=VideoClips(front_end=onevision)).decode("webm", video_file("vp9-webm"))
    other = replace(video, pixels=video.pixels[:2])
    assert batch_vision([video, video])["pixel_values_videos"].shape == (2, 4, 3, 40, 56)
    with pytest.raises(ConfigError, match=r"cannot be stacked.*Give the front end num_frames"):
        batch_vision([video, other])


def test_narrow_types_are_rounded_from_float32_and_bytes_are_normalised_by_the_model() -> None:
    full = VideoFrontEnd.from_processor(QWEN2)
    values = SampleDecoder(av_decode=VideoClips(front_end=full)).decode("webm", video_file("vp9-webm")).values
    for dtype in ("bfloat16", "float16", "uint8"):
        front_end = VideoFrontEnd.from_processor(QWEN2, dtype=dtype)  # type: ignore[arg-type]
        narrow = SampleDecoder(av_decode=VideoClips(front_end=front_end)).decode("webm", video_file("vp9-webm")).values
        if dtype != "uint8":
            assert torch.equal(narrow, values.to(getattr(torch, dtype)))
            continue
        scale, shift = (torch.tensor(part)[:, None] for part in front_end.normalization())
        expected = values.unflatten(1, (3, -1))
        assert torch.allclose(narrow.unflatten(1, (3, -1)) * scale + shift, expected, atol=1e-6)


def test_a_folder_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    images = {
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": 8,
        "min_pixels": 100,
        "max_pixels": 9000,
    }
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(images))
    found: Any = VideoFrontEnd.from_processor(tmp_path)
    assert (found.family, found.patch_size, found.min_pixels, found.max_pixels) == ("qwen2_vl_video", 8, 100, 9000)
    assert (found.resampling, found.values.arithmetic) == ("torch", "torch")
    (tmp_path / "video_preprocessor_config.json").write_text(json.dumps({**QWEN3, "patch_size": 10}))
    found = VideoFrontEnd.from_processor(tmp_path)
    assert (found.family, found.patch_size) == ("qwen3_vl_video", 10)
    assert FrontEnd.from_processor(tmp_path / "video_preprocessor_config.json") == found
    (tmp_path / "config.json").write_text(json.dumps({"image_token_id": 5, "video_token_id": 6}))
    nested = {"video_processor": GLM, "image_processor": images, "processor_class": "Glm4vProcessor"}
    (tmp_path / "processor_config.json").write_text(json.dumps(nested))
    found = VideoFrontEnd.from_processor(tmp_path)
    assert (found.family, found.image_token_id, found.video_token_id) == ("glm4v_video", 5, 6)
    assert FrontEnd.from_processor(tmp_path).family == "qwen2_vl"


def test_turned_videos_have_the_layout_of_what_is_shown() -> None:
    raw = encode_video(replace(VIDEOS["h264-mp4"], rotation=90))
    front_end = VideoFrontEnd.from_processor(QWEN2)
    for turns in (False, True):
        decoder = SampleDecoder(av_decode=VideoClips(front_end=front_end, apply_rotation=turns))
        handle = decoder.stage("mp4", raw)
        width, height = (handle.height, handle.width) if turns else (handle.width, handle.height)
        assert (handle.layout.width, handle.layout.height) == (width, height)
        whole = SampleDecoder(av_decode=VideoClips(frames_per_clip=handle.frame_count, apply_rotation=turns))
        frames = whole.decode("mp4", raw).frames[0][list(handle.layout.frames)]
        assert torch.equal(handle.decode().values, written_out(frames, front_end, handle.layout))


def test_videos_count_in_packs_before_they_are_decoded() -> None:
    front_end = VideoFrontEnd.from_processor(QWEN2, video_token_id=9)
    handle = SampleDecoder(av_decode=VideoClips(front_end=front_end)).stage("webm", video_file("vp9-webm"))
    assert isinstance(handle, MediaHandle)
    for text, added in (([1, 9, 2], -1), ([1, 2], 0), ([9] * handle.num_tokens, -handle.num_tokens)):
        assert count_tokens({"tokens": text, "video": handle}) == len(text) + handle.num_tokens + added


def test_mistakes_say_what_to_do() -> None:
    videos = VideoFrontEnd.from_processor(QWEN2)
    images = FrontEnd.from_processor({"image_processor_type": "Qwen2VLImageProcessor"})
    with pytest.raises(ConfigError, match=r"is not a front end for videos. Make one with VideoFrontEnd.from_processor"):
        VideoClips(front_end=images)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="given frames_per_clip=8, size=224 with a front end"):
        VideoClips(frames_per_clip=8, size=224, front_end=videos)
    with pytest.raises(ConfigError, match=r"is for videos. Give it to the clips: av_decode=VideoClips\(front_end="):
        SampleDecoder(front_end=videos)
    with pytest.raises(ConfigError, match="GLM-4V chooses frames by rate alone"):
        VideoFrontEnd.from_processor(GLM, num_frames=8)
    with pytest.raises(ConfigError, match=r"no front end for ViTImageProcessor. .*Covered are .*InternVLVideo"):
        VideoFrontEnd.from_processor({"video_processor_type": "ViTImageProcessor"})
    with pytest.raises(ConfigError, match="It sets do_sharpen=True, which this front end does not know"):
        VideoFrontEnd.from_processor({**QWEN2, "do_sharpen": True})
    with pytest.raises(ConfigError, match=r"fps=0 is invalid"):
        VideoFrontEnd.from_processor(QWEN2, fps=0)
    decoder = SampleDecoder(av_decode=VideoClips(front_end=videos))
    with pytest.raises(DecodeError, match="no video stream, and clips of its frames are wanted"):
        decoder.stage("wav", audio_file("alaw-wav"))
    with pytest.raises(DecodeError, match="takes 40 frames of this video"):
        SampleDecoder(av_decode=VideoClips(front_end=videos.with_fields(num_frames=40))).stage(
            "mp4", encode_video(replace(VIDEOS["h264-mp4"], frames=10))
        )
    plain = DaliDecoder(av_decode=VideoClips(), image_decode_device="cpu", video_decode_device="cpu")
    handle = plain.stage("webm", video_file("vp9-webm"))
    with pytest.raises(ConfigError, match="This video's VideoClips has no front end"):
        _ = handle.num_tokens


def test_the_config_names_the_front_end_and_stays_as_it_was_without() -> None:
    front_end = VideoFrontEnd.from_processor(QWEN2)
    config = SampleDecoder(av_decode=VideoClips(front_end=front_end)).config()["av_decode"]
    assert config["front_end"]["family"] == "qwen2_vl_video"
    assert "front_end" not in SampleDecoder(av_decode=VideoClips()).config()["av_decode"]
    json.dumps(config)
