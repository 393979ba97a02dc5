"""Outputs of a GPU pipeline, with CPU memory instead of a GPU's: nothing else runs that branch without a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.images.engine import take_values
from energon_dali.decode.dali.runtime.blocks import count_bytes
from energon_dali.decode.dali.runtime.device import load_backend
from tests.fake_cuda import TensorListGPU

SHAPES = {"one": [(3, 4, 5)], "equal": [(3, 4, 5)] * 3, "ragged": [(3, 4, 5), (3, 2, 7), (3, 1, 1)]}


@pytest.mark.parametrize("in_one_piece", [True, False])
@pytest.mark.parametrize("shapes", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "bfloat16"])
def test_images_of_a_gpu_are_what_dali_made(
    dtype: Any, shapes: list[tuple[int, ...]], in_one_piece: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[object] = []

    def enter(stream: object) -> contextlib.AbstractContextManager[None]:
        entered.append(stream)
        return contextlib.nullcontext()

    monkeypatch.setattr(torch.cuda, "stream", enter)
    backend, rng, stream = load_backend(), np.random.default_rng(3), object()
    made = np.float32 if dtype == "bfloat16" else np.dtype(dtype)  # DALI has no bfloat16
    arrays = [(200 * rng.random(shape)).astype(made) for shape in shapes]
    images = TensorListGPU(
        backend.TensorListCPU([backend.TensorCPU(array, "") for array in arrays], contiguous=in_one_piece)
    )
    assert count_bytes(images) == sum(array.nbytes for array in arrays)
    values = take_values(images, DaliDecoder(image_decode="torchrgb", image_dtype=dtype).spec, stream)
    assert entered == [stream]
    for value, array in zip(values, arrays, strict=True):
        assert torch.equal(value, torch.from_numpy(array).to(getattr(torch, dtype)))
    if in_one_piece and dtype != "bfloat16":  # one memory: stacking them again needs no copy
        assert len({value.untyped_storage().data_ptr() for value in values}) == 1
    if dtype != "bfloat16":
        values = take_values(images, DaliDecoder(image_decode="rgb", image_dtype=dtype).spec, stream)
        for value, array in zip(values, arrays, strict=True):
            assert isinstance(value, np.ndarray)
            assert np.array_equal(value, array)
