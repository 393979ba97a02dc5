"""Which codec decodes on a GPU, as far as libraries and graphs tell without one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from energon_dali.decode import DaliDecoder
from energon_dali.decode.dali.images import codecs, graph
from energon_dali.decode.dali.images.engine import DaliImageEngine, take_values
from energon_dali.decode.dali.images.graph import ImageBatch, ImageGraph, define_pipeline
from energon_dali.decode.dali.runtime.blocks import DeviceMemory
from energon_dali.decode.dali.runtime.device import Device, load_dali
from energon_dali.decode.dali.runtime.pipeline import build_pipeline
from energon_dali.decode.dali.tuning import DaliTuning
from energon_dali.decode.geometry import handle_geometry
from energon_dali.decode.operations import RandomResizedCrop
from tests.decode.sample_images import sample_images


@pytest.mark.parametrize(
    ("version", "fancy", "regions"),
    [
        ((13, 2), True, True),
        ((13, 1), True, False),
        ((12, 4), True, False),
        ((12, 4), False, True),
        (None, True, False),
    ],
)
def test_a_region_is_asked_for_only_where_the_gpu_decodes_it(
    version: tuple[int, int] | None, fancy: bool, regions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvImageCodec refuses a region of a JPEG with interpolated chroma below nvJPEG 13.2, and CPU threads decode it."""
    monkeypatch.setattr(codecs, "nvjpeg_version", lambda: version)
    decoder = DaliDecoder(
        operations=[RandomResizedCrop(32)], image_decode_device=0, tuning=DaliTuning(jpeg_fancy_upsampling=fancy)
    )
    options = decoder.engine_options.on(Device("gpu", 0))
    pipeline = load_dali().Pipeline(batch_size=4, num_threads=1, device_id=None)
    with pipeline:
        node = define_pipeline(ImageGraph.from_spec(decoder.spec), options)
    kinds = operators_before(node)
    assert ("ImageSlice" in kinds) is regions, kinds
    assert ({"Image", "Slice"} <= kinds) is not regions, kinds


def operators_before(node: Any) -> set[str]:
    """Returns the names of the operators that a node is made by."""
    found, waiting, seen = set(), [node], set()
    while waiting:
        source = waiting.pop().source
        if source is None or id(source) in seen:
            continue
        seen.add(id(source))
        found.add(source.name.strip("_").rpartition("_")[0])
        waiting.extend(source.inputs)
    return found


@pytest.mark.parametrize("upright", [False, True])
def test_a_part_of_the_whole_is_the_region(upright: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where both run: the same pixels, for every subsampling, orientation and format."""
    decoder = DaliDecoder(
        image_decode="rgb8",
        operations=[RandomResizedCrop(24)],
        image_decode_device="cpu",
        apply_exif_orientation=upright,
    )
    names = ["jpeg-420", "jpeg-422", "jpeg-444", "jpeg-440", "jpeg-gray", "jpeg-exif-6", "jpeg-exif-3", "png-rgb"]
    handles = [decoder.make_handle("part", sample_images()[name], seed=seed) for name in names for seed in range(4)]
    batch = ImageBatch(handles, [handle_geometry(handle) for handle in handles])
    image_graph = ImageGraph.from_spec(decoder.spec)
    options = decoder.engine_options.on(Device("cpu"))
    engine = DaliImageEngine(image_graph, options, DeviceMemory(options.device))
    made = []
    for whole in (False, True):
        define = lambda whole=whole: (define_node(image_graph, options, whole, monkeypatch),)  # noqa: E731
        pipeline = build_pipeline(options, define)
        engine.set_inputs(pipeline, batch)
        pipeline.schedule_run()
        made.append(take_values(pipeline.outputs()[0], decoder.spec))
    for region, part in zip(*made, strict=True):
        np.testing.assert_array_equal(region, part)


def define_node(image_graph: ImageGraph, options: Any, whole: bool, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(graph, "decodes_whole", lambda options: whole)
    return define_pipeline(image_graph, replace(options))


def test_the_version_of_nvjpeg_is_read_from_the_library_that_dali_takes() -> None:
    version = codecs.nvjpeg_version()
    assert version is not None  # DALI's packages include it
    assert version[0] >= 12
