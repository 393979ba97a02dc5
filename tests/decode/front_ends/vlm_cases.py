"""The processors of further vision-language models, with their texts, and tokenizers made of a few words."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.decode.front_ends.case import Case
from tests.decode.front_ends.tile_cases import own_tokens, processor_class, run, run_nested, tokenizer


def texts(processor: Any, made: dict[str, Any], count: int) -> list[str]:
    """Returns the texts of images by the processor's own method."""
    return [processor.replace_image_token(made, number) for number in range(count)]


def image_processor(module: str, name: str, **values: Any) -> Any:
    """Returns an image processor of the PIL backend."""
    return getattr(import_module(f"transformers.models.{module}.image_processing_pil_{module}"), f"{name}Pil")(**values)


def gemma3n(**values: Any) -> Any:
    """Returns the processor of Gemma 3n. Its feature extractor is left out."""
    names = {
        "image_token": "<image_soft_token>",
        "boi_token": "<start_of_image>",
        "eoi_token": "<end_of_image>",
        "audio_token": "<audio_soft_token>",
        "boa_token": "<start_of_audio>",
        "eoa_token": "<end_of_audio>",
    }
    inner = image_processor("siglip", "SiglipImageProcessor", **values)
    return processor_class("gemma3n", "Gemma3nProcessor")(None, inner, tokenizer(**names), image_seq_length=7)


def paligemma(**values: Any) -> Any:
    """Returns the processor of PaliGemma."""
    inner = image_processor("siglip", "SiglipImageProcessor", **values)
    inner.image_seq_length = 9
    return processor_class("paligemma", "PaliGemmaProcessor")(inner, tokenizer(image_token="<image>"))


def florence2(**values: Any) -> Any:
    """Returns the processor of Florence-2."""
    inner = image_processor("clip", "CLIPImageProcessor", **values)
    inner.image_seq_length = values.get("image_seq_length", 577)
    return processor_class("florence2", "Florence2Processor")(inner, tokenizer(image_token="<image>"))


def chameleon(**values: Any) -> Any:
    """Returns the processor of Chameleon."""
    inner = image_processor("chameleon", "ChameleonImageProcessor", **values)
    return processor_class("chameleon", "ChameleonProcessor")(inner, tokenizer("<image>"), image_seq_length=12)


GEMMA4_TOKENS = {
    "image_token": "<|image|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "audio_token": "<|audio|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}


def gemma4(**values: Any) -> Any:
    """Returns the processor of Gemma 4, without those of audio and videos."""
    inner = image_processor("gemma4", "Gemma4ImageProcessor", **values)
    return processor_class("gemma4", "Gemma4Processor")(None, inner, tokenizer(**GEMMA4_TOKENS), None)


def drawn_gemma4(make: Callable[..., Any]) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        return make(
            patch_size=draw.choice((4, 8, 14)),
            pooling_kernel_size=draw.choice((1, 2, 3)),
            max_soft_tokens=draw.choice((70, 140, 280)),
            do_normalize=draw.random() < 0.5,
            image_mean=[0.4, 0.5, 0.6],
            image_std=[0.2, 0.3, 0.4],
            resample=draw.choice((2, 3)),
        )

    return drawn


def torchvision_processor(module: str, name: str, **values: Any) -> Any:
    """Returns an image processor of the torchvision backend."""
    return getattr(import_module(f"transformers.models.{module}.image_processing_{module}"), name)(**values)


def gemma4_unified(**values: Any) -> Any:
    """Returns the processor of Gemma 4 without a vision encoder, without those of audio and videos."""
    inner = torchvision_processor("gemma4_unified", "Gemma4UnifiedImageProcessor", **values)
    return processor_class("gemma4_unified", "Gemma4UnifiedProcessor")(None, inner, tokenizer(**GEMMA4_TOKENS), None)


def aya_vision(**values: Any) -> Any:
    """Returns the processor of Aya Vision."""
    inner = image_processor("got_ocr2", "GotOcr2ImageProcessor", **values)
    tiles = [f"TILE_{number}" for number in range(1, 13)]
    words = tokenizer("<image>", "<|IMG_PATCH|>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE_GLOBAL", *tiles)
    return processor_class("aya_vision", "AyaVisionProcessor")(
        inner, words, patch_size=14, img_size=84, downsample_factor=2
    )


def got_ocr2(**values: Any) -> Any:
    """Returns the processor of GOT-OCR2."""
    inner = image_processor("got_ocr2", "GotOcr2ImageProcessor", **values)
    return processor_class("got_ocr2", "GotOcr2Processor")(inner, tokenizer("<imgpad>"))


def got_texts(processor: Any, made: dict[str, Any], count: int) -> list[str]:
    """Returns the texts of images of GOT-OCR2, each of which is one page."""
    pages = {"num_pages_per_batch": [1] * count, "patch_indices": list(range(1, count + 1)), "num_image_tokens": 256}
    return [processor.replace_image_token(made, number, **pages) for number in range(count)]


def drawn_tiles(make: Callable[..., Any], **more: Callable[[random.Random], Any]) -> Callable[[random.Random], Any]:
    """Returns a function that draws a processor of tiles, with further values."""

    def drawn(draw: random.Random) -> Any:
        return make(
            size={"height": draw.randrange(8, 90), "width": draw.randrange(8, 90)},
            min_patches=draw.randrange(1, 5),
            max_patches=draw.randrange(1, 14),
            resample=draw.choice((2, 3)),
            do_normalize=draw.random() < 0.8,
            **{name: choose(draw) for name, choose in more.items()},
        )

    return drawn


def cohere2_vision(**values: Any) -> Any:
    """Returns the processor of Command A Vision."""
    inner = torchvision_processor("cohere2_vision", "Cohere2VisionImageProcessor", **values)
    names = {
        "image_token": "<|IMG_PATCH|>",
        "boi_token": "<|START_OF_IMG|>",
        "eoi_token": "<|END_OF_IMG|>",
        "img_line_break_token": "<|IMG_LINE_BREAK|>",
    }
    return processor_class("cohere2_vision", "Cohere2VisionProcessor")(inner, tokenizer(**names))


def ovis2(**values: Any) -> Any:
    """Returns the processor of Ovis 2."""
    inner = image_processor("ovis2", "Ovis2ImageProcessor", **values)
    markers = [f"<IMG_{name}>" for name in ("START", "GRID", "COL", "ROW", "END")]
    words = tokenizer("<image>", "<IMG_ATOM>", *markers)
    return processor_class("ovis2", "Ovis2Processor")(inner, words, image_seq_length=5)


def perception_lm(**values: Any) -> Any:
    """Returns the processor of Perception LM, without that of videos."""
    inner = torchvision_processor("perception_lm", "PerceptionLMImageProcessor", **values)
    names = {"image_token": "<|image|>", "video_token": "<|video|>"}
    made = processor_class("perception_lm", "PerceptionLMProcessor")
    return made(None, inner, tokenizer(**names), patch_size=4, pooling_ratio=2)


def drawn_perception_lm(draw: random.Random) -> Any:
    return perception_lm(
        tile_size=draw.randrange(8, 90),
        max_num_tiles=draw.randrange(1, 14),
        vision_input_type=draw.choice(("thumb+tile", "thumb+tile", "vanilla")),
        resample=draw.choice((2, 3)),
        do_normalize=draw.random() < 0.8,
    )


def llama4(**values: Any) -> Any:
    """Returns the processor of Llama 4."""
    inner = torchvision_processor("llama4", "Llama4ImageProcessor", **values)
    made = processor_class("llama4", "Llama4Processor")
    return made(inner, tokenizer("<|image|>", "<|patch|>"), patch_size=7, pixel_shuffle_ratio=0.5)


def drawn_llama4(draw: random.Random) -> Any:
    side = draw.randrange(8, 90)
    return llama4(
        size={"height": side, "width": side},
        max_patches=draw.randrange(1, 20),
        resize_to_max_canvas=draw.random() < 0.5,
        resample=draw.choice((2, 3)),
        image_mean=[draw.random() for _ in range(3)],
        image_std=[draw.choice((0.1, 0.25, 0.5)) for _ in range(3)],
    )


_DEEPSEEK = {
    "Janus": ("janus", "Janus"),
    "DeepSeek-VL": ("deepseek_vl", "DeepseekVL"),
    "DeepSeek-VL hybrid": ("deepseek_vl_hybrid", "DeepseekVLHybrid"),
}


def deepseek_vl(model: str, **values: Any) -> Any:
    """Returns the processor of Janus or DeepSeek-VL, which converts images to RGB."""
    module, name = _DEEPSEEK[model]
    inner = image_processor(module, f"{name}ImageProcessor", **{"do_convert_rgb": True, **values})
    names = {"boi_token": "<begin_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_placeholder>"}
    return processor_class(module, f"{name}Processor")(inner, tokenizer(**names), num_image_tokens=11)


def drawn_deepseek_vl(model: str) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        side, high = draw.randrange(8, 200), draw.randrange(8, 300)
        more: dict[str, Any] = {}
        if model == "DeepSeek-VL hybrid":
            more = {
                "high_res_size": {"height": high, "width": high},
                "high_res_image_mean": [draw.random() for _ in range(3)],
                "high_res_image_std": [0.2, 0.3, 0.4],
                "high_res_resample": draw.choice((2, 3)),
            }
        return deepseek_vl(
            model,
            size={"height": side, "width": side},
            min_size=draw.choice((1, 7, 14, 50)),
            image_mean=[draw.random() for _ in range(3)],
            resample=draw.choice((2, 3)),
            do_normalize=draw.random() < 0.9,
            do_convert_rgb=draw.random() < 0.9,
            **more,
        )

    return drawn


def _patched(model: str, module: str, name: str, **values: Any) -> Any:
    """Returns a processor with images as patches, without that of videos.

    Args:
        model: Class of the processor, without the suffix.
        module: Of the processor and of its image processor.
        name: Class of the image processor, likewise.
        **values: Of the image processor.
    """
    make = torchvision_processor if name in TORCHVISION else image_processor
    inner = make(module, f"{name}ImageProcessor", **values)
    token = "]<]image[>[" if name == "MiniMaxM3VL" else "<image>"
    words = tokenizer(
        image_token=token,
        video_token="<video>",
        image_start_token="<start>",
        image_end_token="<end>",
        video_start_token="<vstart>",
        video_end_token="<vend>",
    )
    options: dict[str, Any] = {"image_processor": inner, "tokenizer": words}
    if name != "HunYuanVL":
        options["video_processor"] = None
    return processor_class(module, f"{model}Processor")(**options)


TORCHVISION = ("Kimi_K25", "MiniMaxM3VL")
PATCHED = {
    "Cohere Compass": ("CohereCompass", "cohere_compass", "CohereCompass"),
    "Cosmos 3 Edge": ("Cosmos3Edge", "cosmos3_edge", "Cosmos3Edge"),
    "ERNIE 4.5 VL": ("Ernie4_5_VLMoe", "ernie4_5_vl_moe", "Ernie4_5_VLMoe"),
    "Hunyuan-VL": ("HunYuanVL", "hunyuan_vl", "HunYuanVL"),
    "Kimi-K2.5": ("Kimi_K25", "kimi_k25", "Kimi_K25"),
    "MiniMax M3 VL": ("MiniMaxM3VL", "minimax_m3_vl", "MiniMaxM3VL"),
    "PaddleOCR-VL": ("PaddleOCRVL", "paddleocr_vl", "PaddleOCRVL"),
    "VideoLLaMA 3": ("VideoLlama3", "video_llama_3", "VideoLlama3"),
}


def drawn_patched(model: str) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        longest = draw.choice((20_000, 60_000, 150_000))
        values: dict[str, Any] = {
            "size": {"shortest_edge": draw.choice((1, 28 * 28, 112 * 112)), "longest_edge": longest},
            "temporal_patch_size": draw.choice((1, 2)),
        }
        if model == "Kimi-K2.5":
            side = draw.choice((5, 20, 300))
            most = draw.choice((12, 200, 5000))
            values = {"size": {"max_height": side, "max_width": side}, "max_patches": most}
        return _patched(
            *PATCHED[model],
            **values,
            patch_size=draw.choice((8, 14, 16)),
            merge_size=draw.choice((1, 2, 3)),
            resample=draw.choice((2, 3)),
            do_normalize=draw.random() < 0.9,
        )

    return drawn


def patch_texts(processor: Any, made: dict[str, Any], count: int) -> list[str]:
    """Likewise for a processor that wants whole numbers of patches."""
    return texts(processor, {**made, "image_grid_thw": made["image_grid_thw"].numpy()}, count)


def emu3(**values: Any) -> Any:
    """Returns the processor of Emu3."""
    inner = import_module("transformers.models.emu3.image_processing_emu3").Emu3ImageProcessor(**values)
    words = tokenizer(
        image_token="<image>",
        boi_token="<|image start|>",
        eoi_token="<|image end|>",
        image_wrapper_token="<|image token|>",
        eof_token="<|extra_201|>",
    )
    return processor_class("emu3", "Emu3Processor")(inner, words)


def run_emu3(processor: Any, images: list[Any]) -> dict[str, Any]:
    """Runs Emu3's processor, except on images of 1 or 3 rows, which it takes for channels."""
    if any(image.height in (1, 3) for image in images):
        raise ValueError("Rows would be taken for channels")
    return run(processor, images)


def drawn_emu3(draw: random.Random) -> Any:
    return emu3(
        min_pixels=draw.choice((1, 1000, 30_000)),
        max_pixels=draw.choice((40_000, 150_000)),
        spatial_factor=draw.choice((4, 8, 16)),
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def idefics2(**values: Any) -> Any:
    """Returns the processor of Idefics 2."""
    inner = image_processor("idefics2", "Idefics2ImageProcessor", **values)
    return processor_class("idefics2", "Idefics2Processor")(inner, tokenizer(), image_seq_len=6)


def drawn_idefics2(draw: random.Random) -> Any:
    short = draw.randrange(1, 120)
    return idefics2(
        size=draw.choice(
            (
                {"shortest_edge": short, "longest_edge": short + draw.randrange(200)},
                {"height": draw.randrange(9, 200), "width": draw.randrange(9, 200)},
            )
        ),
        do_image_splitting=draw.random() < 0.5,
        do_resize=draw.random() < 0.9,
        do_normalize=draw.random() < 0.9,
        resample=draw.randrange(6),
    )


def lighton_ocr(**values: Any) -> Any:
    """Returns the processor of LightOnOCR."""
    inner = image_processor("pixtral", "PixtralImageProcessor", **values)
    words = tokenizer(image_token="<|image_pad|>", image_break_token="<|vision_pad|>", image_end_token="<|vision_end|>")
    return processor_class("lighton_ocr", "LightOnOcrProcessor")(inner, words, patch_size=7, spatial_merge_size=2)


def drawn_lighton_ocr(draw: random.Random) -> Any:
    return lighton_ocr(
        size={"longest_edge": draw.choice((64, 200, 500))},
        patch_size={"height": 14, "width": 14},
        resample=draw.randrange(6),
    )


def phi4_multimodal(**values: Any) -> Any:
    """Returns the processor of Phi-4 multimodal, without that of audio."""
    inner = torchvision_processor("phi4_multimodal", "Phi4MultimodalImageProcessor", **values)
    names = {"image_token": "<|endoftext10|>", "audio_token": "<|endoftext11|>"}
    return processor_class("phi4_multimodal", "Phi4MultimodalProcessor")(inner, None, tokenizer(**names))


def drawn_phi4_multimodal(draw: random.Random) -> Any:
    patch = draw.choice((4, 7))
    side = patch * draw.randrange(3, 12)
    return phi4_multimodal(
        size={"height": side, "width": side},
        patch_size=patch,
        dynamic_hd=draw.randrange(1, 40),
        resample=draw.choice((2, 3)),
        do_normalize=draw.random() < 0.9,
    )


def lfm2_vl(**values: Any) -> Any:
    """Returns the processor of LFM2-VL."""
    inner = torchvision_processor("lfm2_vl", "Lfm2VlImageProcessor", **{"do_convert_rgb": True, **values})
    return processor_class("lfm2_vl", "Lfm2VlProcessor")(inner, tokenizer("<image>"))


def drawn_lfm2_vl(draw: random.Random) -> Any:
    patch, fewest = draw.choice((4, 8)), draw.randrange(1, 12)
    tokens = draw.randrange(4, 40)
    return lfm2_vl(
        encoder_patch_size=patch,
        tile_size=patch * 2 * draw.randrange(3, 8),
        downsample_factor=draw.choice((1, 2)),
        do_image_splitting=draw.random() < 0.9,
        min_tiles=fewest,
        max_tiles=fewest + draw.randrange(6),
        use_thumbnail=draw.random() < 0.8,
        min_image_tokens=tokens,
        max_image_tokens=tokens + draw.randrange(20, 200),
        max_pixels_tolerance=draw.choice((0.5, 1.0, 2.0)),
        resample=draw.choice((2, 3)),
        do_normalize=draw.random() < 0.9,
    )


def lfm2_texts(processor: Any, made: dict[str, Any], count: int) -> list[str]:
    """Returns the texts of images of LFM2-VL, with its markers."""
    own = {"use_image_special_tokens": True}
    sizes = made["image_sizes"].tolist()
    return [processor.replace_image_token({**made, "image_sizes": sizes}, number, **own) for number in range(count)]


def molmo2(**values: Any) -> Any:
    """Returns the processor of Molmo 2, without that of videos."""
    inner = torchvision_processor("molmo2", "Molmo2ImageProcessor", **values)
    special = ("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<im_end>")
    words = tokenizer(*special, image_token="<|image|>", video_token="<|video|>")
    return processor_class("molmo2", "Molmo2Processor")(inner, None, words)


def drawn_molmo2(draw: random.Random) -> Any:
    patch, margins = draw.choice((4, 7)), [draw.randrange(3), draw.randrange(3)]
    side = patch * (sum(margins) + draw.randrange(1, 8))
    return molmo2(
        size={"height": side, "width": side},
        patch_size=patch,
        max_crops=draw.randrange(1, 12),
        overlap_margins=margins,
        pooling_size=[draw.randrange(1, 4), draw.randrange(1, 4)],
        resample=draw.choice((2, 3)),
        do_normalize=draw.random() < 0.9,
    )


def deepseek_ocr2(**values: Any) -> Any:
    """Returns the processor of DeepSeek-OCR 2."""
    inner = image_processor("deepseek_ocr2", "DeepseekOcr2ImageProcessor", **values)
    return processor_class("deepseek_ocr2", "DeepseekOcr2Processor")(inner, tokenizer("<image>"))


def drawn_deepseek_ocr2(draw: random.Random) -> Any:
    side, fewest = draw.randrange(20, 200), draw.randrange(1, 4)
    return deepseek_ocr2(
        size={"height": side, "width": side},
        tile_size=draw.randrange(10, 200),
        crop_to_patches=draw.random() < 0.8,
        min_patches=fewest,
        max_patches=fewest + draw.randrange(6),
        background_color=[draw.randrange(256) for _ in range(3)],
        resample=draw.randrange(6),
        do_normalize=draw.random() < 0.9,
    )


def drawn_square(make: Callable[..., Any]) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        return make(
            size={"height": draw.randrange(8, 260), "width": draw.randrange(8, 260)},
            resample=draw.randrange(6),
            do_normalize=draw.random() < 0.9,
            do_convert_rgb=True,
        )

    return drawn


def drawn_crop(make: Callable[..., Any]) -> Callable[[random.Random], Any]:
    def drawn(draw: random.Random) -> Any:
        return make(
            size={"shortest_edge": draw.randrange(8, 200)},
            crop_size={"height": draw.randrange(8, 200), "width": draw.randrange(8, 200)},
            do_center_crop=draw.random() < 0.8,
            do_normalize=draw.random() < 0.9,
        )

    return drawn


_768 = {"size": {"height": 768, "width": 768}, "do_center_crop": False}
_364 = {"size": {"height": 364, "width": 364}}
_1024 = {"size": {"height": 1024, "width": 1024}}
_448 = {"size": {"height": 448, "width": 448}, "do_convert_rgb": True}

CASES = (
    Case("Gemma 3n", drawn_square(gemma3n), gemma3n, own_tokens, run, texts=texts),
    Case("PaliGemma", drawn_square(paligemma), lambda: paligemma(**_448), own_tokens, run, texts=texts),
    Case("Florence-2", drawn_square(florence2), lambda: florence2(**_768), own_tokens, run, texts=texts, slow=True),
    Case("Chameleon", drawn_crop(chameleon), chameleon, own_tokens, run, texts=texts, largest_ratio=110, slow=True),
    Case("Gemma 4", drawn_gemma4(gemma4), gemma4, own_tokens, run, texts=texts, slow=True),
    Case(
        "Gemma 4 unified",
        drawn_gemma4(gemma4_unified),
        gemma4_unified,
        own_tokens,
        run,
        texts=texts,
        torchvision=True,
    ),
    Case("Aya Vision", drawn_tiles(aya_vision), lambda: aya_vision(**_364), own_tokens, run, texts=texts, slow=True),
    Case("GOT-OCR2", drawn_tiles(got_ocr2), lambda: got_ocr2(**_1024), None, run, texts=got_texts, slow=True),
    Case(
        "Cohere 2 Vision",
        drawn_tiles(cohere2_vision, crop_to_patches=lambda draw: draw.random() < 0.9),
        cohere2_vision,
        own_tokens,
        run,
        texts=texts,
        torchvision=True,
    ),
    Case(
        "Ovis 2",
        drawn_tiles(
            ovis2,
            crop_to_patches=lambda draw: draw.random() < 0.9,
            use_covering_area_grid=lambda draw: draw.random() < 0.7,
        ),
        lambda: ovis2(size={"height": 448, "width": 448}, crop_to_patches=True, max_patches=9),
        None,
        run,
        texts=texts,
    ),
    Case(
        "Perception LM",
        drawn_perception_lm,
        perception_lm,
        own_tokens,
        run,
        texts=texts,
        torchvision=True,
        most_in_a_batch=1,
    ),
    Case("Llama 4", drawn_llama4, llama4, None, run, texts=texts, torchvision=True),
    *(
        Case(
            name,
            drawn_deepseek_vl(name),
            lambda name=name: deepseek_vl(name),  # type: ignore[misc]
            None,
            run,
            texts=texts,
            slow=name == "DeepSeek-VL hybrid",
        )
        for name in _DEEPSEEK
    ),
    *(
        Case(
            name,
            drawn_patched(name),
            lambda where=where: _patched(*where),  # type: ignore[misc]
            own_tokens if name != "PaddleOCR-VL" else None,
            run,
            texts=patch_texts,
            torchvision=where[2] in TORCHVISION,
            slow=True,
        )
        for name, where in PATCHED.items()
    ),
    Case("Emu3", drawn_emu3, emu3, own_tokens, run_emu3, texts=texts, slow=True),
    Case("Idefics 2", drawn_idefics2, lambda: idefics2(do_image_splitting=True), None, run_nested, slow=True),
    Case(
        "LightOnOCR",
        drawn_lighton_ocr,
        lambda: lighton_ocr(size={"longest_edge": 1540}, patch_size={"height": 14, "width": 14}),
        own_tokens,
        run,
        texts=texts,
    ),
    Case(
        "Phi-4 multimodal",
        drawn_phi4_multimodal,
        phi4_multimodal,
        None,
        run,
        texts=texts,
        torchvision=True,
        largest_ratio=200,
    ),
    Case(
        "LFM2-VL",
        drawn_lfm2_vl,
        lfm2_vl,
        None,
        run,
        lambda processor: {"returns_rows": True},
        texts=lfm2_texts,
        torchvision=True,
    ),
    Case("Molmo 2", drawn_molmo2, molmo2, own_tokens, run, texts=texts, torchvision=True),
    Case("DeepSeek-OCR 2", drawn_deepseek_ocr2, deepseek_ocr2, None, run, texts=texts, slow=True),
)
