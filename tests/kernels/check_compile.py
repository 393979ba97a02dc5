"""Compiles every kernel to machine code for GPUs that need not be present. Runs as a separate program.

    python -m tests.kernels.check_compile [--sample]

With --sample, every kernel is compiled for one of the GPUs.

It first runs every operation on the CPU, and fails if one of them loads Triton.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

ARCHITECTURES = (80, 90)
"""Compute capabilities: A100, H100 and H200."""

PAD = {"CHANNELS": 3, "CHANNELS_FIRST": True, "ROWS": 16, "COLUMNS": 64}
CUT = {"LENGTH": 3 * 2 * 14**2, "TIMES": 2, "PATCH": 14, "TOKENS": 16, "ELEMENTS": 128}
MERGE = {"CHANNELS": 3, "TIMES": 2, "MERGE": 2, "ELEMENTS": 1024}
MERGED = "i64 i64 i64 i32 i32 i32 i32 i32 i32 i32 i32 i32"
COLORS = {"CHANNELS_FIRST": True, "BITS": 14, "BLOCK": 512}
VARIANTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("pad_stack", "_pad_stack", "*i64 *i64 *u8 i32 i32 i32 i32", {**PAD, "TO_BYTES": True, "WIDE": True}),
    ("pad_stack", "_pad_stack", "*i64 *i16 *i16 i32 i32 i32 i32", {**PAD, "TO_BYTES": False, "WIDE": False}),
    ("patchify", "_patchify", "*i64 *i64 *i32 *u8 *i32", {**CUT, "TO_BYTES": True, "WIDE": True}),
    ("patchify", "_patchify", "*i64 *i16 *i32 *i16 *i32", {**CUT, "TO_BYTES": False, "WIDE": False}),
    ("merge_patches", "_merge_patches", f"*u8 *u8 *u8 {MERGED}", {**MERGE, "CHANNELS_LAST": True, "TO_BYTES": True}),
    (
        "merge_patches",
        "_merge_patches",
        f"*u8 *i16 *i16 {MERGED}",
        {**MERGE, "CHANNELS_LAST": False, "TO_BYTES": False},
    ),
    ("color_matrix", "_convert", "*u8 *i32 *i32 *i32 i32 i32 i32", {**COLORS, "TO_BYTES": False}),
    ("color_matrix", "_convert_words", "*i32 *i32 *i16 *i64 i32 i32 i32", {**COLORS, "WORDS": 2}),
    ("color_quantize", "_color_quantize", "*u8 *fp32 *i16 i32 i32", {"BLOCK": 1024}),
    ("pack_tokens", "_pack_tokens", "*i64 *i32 *i64 *i32", {"BLOCK": 1024}),
]
"""Operation, kernel, types of its arguments (Triton's notation), constants."""


def run_on_the_cpu() -> None:
    """Calls every operation with CPU tensors."""
    from energon_dali.kernels.color_matrix import IDENTITY, convert_colors
    from energon_dali.kernels.color_quantize import Palette, color_quantize
    from energon_dali.kernels.merge_patches import merge_patches
    from energon_dali.kernels.pack_tokens import pack_tokens
    from energon_dali.kernels.pad_stack import pad_stack
    from energon_dali.kernels.patchify import patchify

    image = torch.zeros((5, 4, 3), dtype=torch.uint8)
    pad_stack([image])
    patchify([image], 2)
    convert_colors(image[None, None], [IDENTITY])
    color_quantize(image, Palette.from_levels([[0, 0, 0]]))
    merge_patches(image.permute(2, 0, 1)[None, None, :, :4], (2, 2))
    pack_tokens([torch.arange(3)], 4)


def compile_all(*, sampled: bool = False) -> None:
    """Prints a line per kernel, type and architecture; the sample takes each kernel and type with one of them in turn.

    Raises:
        AssertionError: A kernel has no machine code.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    for number, (operation, name, types, constants) in enumerate(VARIANTS):
        kernel = getattr(import_module(f"energon_dali.kernels.{operation}.kernel"), name)
        kinds = [*types.split(), *["constexpr"] * len(constants)]
        signature = dict(zip(kernel.arg_names, kinds, strict=True))
        for architecture in ARCHITECTURES[number % 2 :: 2] if sampled else ARCHITECTURES:
            compiled = triton.compile(
                ASTSource(fn=kernel, signature=signature, constexprs=constants),
                target=GPUTarget("cuda", architecture, 32),
                options={"enable_fp_fusion": False},
            )
            assert len(compiled.asm["cubin"]) > 0
            print(f"{operation} {types} sm_{architecture}: {len(compiled.asm['cubin'])} bytes", flush=True)


if __name__ == "__main__":
    run_on_the_cpu()
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "triton")
    if loaded:
        sys.exit(f"The CPU path loaded {', '.join(loaded[:5])}.")
    compile_all(sampled="--sample" in sys.argv[1:])
