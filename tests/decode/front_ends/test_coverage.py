"""The page of covered model types is what its script makes, and each type's outcome is right."""

from __future__ import annotations

from tests.decode.front_ends import coverage


def test_the_page_of_model_types_is_current() -> None:
    assert coverage.PAGE.read_text() == coverage.page(), "run python -m tests.decode.front_ends.coverage"


def test_outcomes_of_some_model_types() -> None:
    found = coverage.coverage()
    assert found.images["vit"] == "equal"
    assert found.images["qwen3_vl"] == "equal through qwen2_vl"
    assert found.images["glm4v_moe"] == "equal through glm4v"  # by its processor: it is in no mapping of images
    assert found.videos["qwen2_5_vl"] == "equal through qwen2_vl"
    assert found.images["fuyu"].startswith("FuyuImageProcessor: ")
    assert found.images["vitpose"].startswith("VitPoseImageProcessor: cuts out")
    assert found.covered_images >= 182
    assert found.covered_videos >= 35


def test_widely_used_models_are_covered() -> None:
    found = coverage.coverage()
    assert [name for name in coverage.NAMED if not found.images[name].startswith("equal")] == []
    for name in ("qwen2_vl", "qwen3_vl", "gemma4", "llava_next_video", "videomae", "vjepa2", "vivit", "timesformer"):
        assert found.videos[name].startswith("equal"), name


def test_models_with_audio_are_covered() -> None:
    found = coverage.coverage().audio
    assert found["gemma3n"] == "equal"
    assert found["seamless_m4t_v2"] == "equal through seamless_m4t"
    assert found["neucodec"].startswith("NeuCodecFeatureExtractor: computes features with torchaudio")
    for name in ("whisper", "qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe", "voxtral", "gemma4", "clap", "wav2vec2"):
        assert found[name] == "equal", name
    for name in ("hubert", "wavlm", "mimi", "moshi", "data2vec-audio"):
        assert found[name].startswith("equal through"), name
    assert coverage.coverage().covered_audio >= 60
