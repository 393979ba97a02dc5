"""Compares the Triton kernels with their references, bit for bit, on the given device. Runs as a separate program.

python -m tests.kernels.check_triton cuda
TRITON_INTERPRET=1 python -m tests.kernels.check_triton cpu            (slow, needs no GPU)
TRITON_INTERPRET=1 python -m tests.kernels.check_triton cpu --sample   (half of the slow combinations)
"""

from __future__ import annotations

import sys
import traceback
from functools import partial

from tests.kernels.comparisons import (
    color_matrix,
    color_quantize,
    merge_patches,
    operations,
    pack_tokens,
    pad_stack,
    patchify,
)

CHECKS = {
    "color_matrix": color_matrix.compare,
    "color_quantize": color_quantize.compare,
    "merge_patches": merge_patches.compare,
    "operations": operations.compare,
    "pack_tokens": pack_tokens.compare,
    "pad_stack": pad_stack.compare,
    "patchify": patchify.compare,
}
"""The comparison of each operation."""
SAMPLES = CHECKS | {
    name: partial(compare, sampled=True)
    for name, compare in {
        "color_matrix": color_matrix.compare,
        "pad_stack": pad_stack.compare,
        "patchify": patchify.compare,
    }.items()
}
"""Likewise, with half of the combinations where they take Triton's interpreter seconds."""


def main(device: str, *, sampled: bool = False) -> int:
    """Prints a line per operation, and returns how many of them differ."""
    wrong = 0
    for name, check in (SAMPLES if sampled else CHECKS).items():
        try:
            print(f"{name}: {check(device)} comparisons, all equal", flush=True)
        except Exception:  # continue with the other operations
            wrong += 1
            print(f"{name}: WRONG\n{traceback.format_exc()}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sampled="--sample" in sys.argv[2:]))
