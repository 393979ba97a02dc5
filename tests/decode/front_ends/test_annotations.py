"""Boxes and maps follow the geometry of front ends as those of transformers' processors do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from energon_dali import ConfigError, FrontEnd
from energon_dali.decode.front_ends.padded_batch import PaddedBatch
from tests.decode.front_ends import vision_cases
from tests.decode.front_ends.mixed_cases import processor_class

_DETECTORS = ("Conditional DETR", "Deformable DETR", "DETR", "Grounding DINO", "RT-DETR", "YOLOS")


def _annotation(draw: random.Random, width: int, height: int, number: int) -> dict[str, Any]:
    objects = []
    for _ in range(draw.randrange(5)):
        left, top = draw.uniform(-5, width), draw.uniform(-5, height)
        bbox = [left, top, draw.uniform(-1, width / 2), draw.uniform(-1, height / 2)]
        crowd = {"iscrowd": draw.choice((0, 0, 1))} if draw.random() < 0.7 else {}
        objects.append({"bbox": bbox, "category_id": draw.randrange(90), "area": draw.uniform(1, 900), **crowd})
    return {"image_id": number, "annotations": objects}


@pytest.mark.parametrize("name", _DETECTORS)
def test_labels_of_detection_equal_the_processors(name: str) -> None:
    draw = random.Random(name)
    for _ in range(12):
        processor = vision_cases.drawn_padded(*vision_cases.PADDED[name])(draw)
        processor.do_resize, processor.pad_size = True, None
        processor.do_convert_annotations = draw.random() < 0.7
        sizes = [(draw.randrange(20, 120), draw.randrange(20, 120)) for _ in range(draw.choice((1, 3)))]
        if not processor.do_pad:
            sizes = sizes[:1]
        front_end = FrontEnd.from_processor(processor)
        assert isinstance(front_end, PaddedBatch)
        layouts = [front_end.layout(*size) for size in sizes]
        annotations = [_annotation(draw, *size, number) for number, size in enumerate(sizes)]
        images = [Image.new("RGB", size) for size in sizes]
        theirs = processor(images, annotations=annotations, return_tensors="pt")["labels"]
        padded = front_end.padded_size(layouts) if front_end.pads else None
        for annotation, layout, expected in zip(annotations, layouts, theirs, strict=True):
            ours = front_end.labels(annotation, layout, padded)
            assert ours.keys() == expected.keys()
            for key, value in expected.items():
                assert ours[key].dtype == value.dtype, key
                assert torch.equal(ours[key], value), key


@pytest.mark.parametrize("name", ["SegFormer", "MobileNet V2", "MobileViT"])
def test_maps_of_classes_equal_the_processors(name: str) -> None:
    draw = random.Random(name)
    generator = np.random.default_rng(3)
    for _ in range(15):
        processor = vision_cases.drawn_resized(*vision_cases.RESIZED[name])(draw)
        processor.do_reduce_labels = False
        front_end = FrontEnd.from_processor(processor)
        width, height = draw.randrange(9, 90), draw.randrange(9, 90)
        classes = generator.integers(0, 255, (height, width), dtype=np.uint8)
        image = Image.new("RGB", (width, height))
        theirs = processor([image], segmentation_maps=[classes], return_tensors="pt")["labels"][0]
        ours = front_end.place_map(classes, front_end.layout(width, height))
        assert np.array_equal(ours.astype(np.int64), theirs.numpy())
        wide = front_end.place_map(classes.astype(np.int64), front_end.layout(width, height))
        assert np.array_equal(wide, theirs.numpy())


def test_masks_equal_those_that_detr_resizes_and_pads() -> None:
    draw = random.Random(4)
    processor = processor_class("detr", "DetrImageProcessor")(size={"shortest_edge": 31, "longest_edge": 60})
    front_end = FrontEnd.from_processor(processor)
    for _ in range(8):
        width, height = draw.randrange(9, 90), draw.randrange(9, 90)
        layout = front_end.layout(width, height)
        masks = np.random.default_rng(5).integers(0, 2, (3, height, width), dtype=np.uint8)
        target = layout.views[-1].tile_size
        expected = processor.resize_annotation({"masks": masks}, (height, width), target)["masks"]
        assert np.array_equal(front_end.place_map(masks, layout) > 0, expected)


def test_points_and_boxes_equal_those_of_sams_processor() -> None:
    from transformers.models.sam.image_processing_pil_sam import _normalize_coordinates

    front_end = FrontEnd.from_processor(processor_class("sam", "SamImageProcessor")())
    for width, height in ((640, 427), (99, 1200), (333, 333)):
        layout = front_end.layout(width, height)
        points = np.random.default_rng(6).uniform(0, 99, (5, 2))
        boxes = np.random.default_rng(7).uniform(0, 99, (5, 4))
        expected = _normalize_coordinates(1024, points, (height, width))
        assert np.allclose(front_end.place_boxes(points, layout), expected, rtol=1e-6)
        expected = _normalize_coordinates(1024, boxes, (height, width), is_bounding_box=True)
        assert np.allclose(front_end.place_boxes(boxes, layout), expected.reshape(-1, 4), rtol=1e-6)


def test_boxes_follow_crops_and_borders() -> None:
    config = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 20}, "crop_size": 16}
    front_end = FrontEnd.from_processor(config)
    layout = front_end.layout(80, 40)  # resized to 40 x 20, of which the middle 16 x 16 are kept
    assert front_end.place_boxes([[24, 4, 40, 36]], layout).tolist() == [[0.0, 0.0, 8.0, 16.0]]
    perceiver = FrontEnd.from_processor(
        {"image_processor_type": "PerceiverImageProcessor", "size": {"height": 10, "width": 10}, "crop_size": 20}
    )
    layout = perceiver.layout(80, 40)  # the middle 20 x 20, resized to 10 x 10
    assert perceiver.place_boxes([[30, 10, 50, 30], [40, 20, 44, 24]], layout).tolist() == [
        [0, 0, 10, 10],
        [5, 5, 7, 7],
    ]
    mask = np.zeros((40, 80), np.bool_)
    mask[20:24, 40:44] = True
    placed = perceiver.place_map(mask, layout)
    assert placed.dtype == np.bool_
    assert placed[5:7, 5:7].all()
    assert placed.sum() == 4


def test_a_map_of_another_size_is_refused() -> None:
    front_end = FrontEnd.from_processor({"image_processor_type": "ViTImageProcessor"})
    with pytest.raises(ConfigError, match="The map has 9 x 8 pixels"):
        front_end.place_map(np.zeros((8, 9)), front_end.layout(20, 20))
