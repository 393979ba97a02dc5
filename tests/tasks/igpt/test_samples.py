from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.plugins import HalfPrecision
from PIL import Image

from energon_dali.errors import ConfigError
from energon_dali.samples.base import SourceInfo
from energon_dali.tasks.transformers_gpt2 import SequenceGPT2
from energon_dali.tasks.vision import PictureBatch
from energon_dali.tasks.vision.igpt import GPT2, GenerativePixelsTransformer, to_images
from energon_dali.tasks.vision.igpt.samples import image_grid, log_image

PALETTE = [[0, 0, 0], [800, 8, 8], [8, 1600, 2040]]


def task(backbone: torch.nn.Module | None = None, **options: Any) -> GenerativePixelsTransformer:
    model = backbone or GPT2(num_layers=1, num_positions=16, num_vocab=3)
    told = {"palette": PALETTE, "num_pixels": 4, "num_classes": 2}
    return GenerativePixelsTransformer(model, {"_target_": "torch.optim.AdamW"}, **{**told, **options})


@pytest.mark.parametrize("classify", [False, True])
@pytest.mark.parametrize("backbone", [GPT2, SequenceGPT2])
def test_every_trained_weight_gets_a_gradient_as_ddp_asks(backbone: type, classify: bool) -> None:
    model = backbone(num_layers=1, num_positions=16, num_vocab=3, num_classes=2)
    trained = task(backbone=model, classify=classify)
    trained.log_metrics = lambda *_, **__: None  # type: ignore[method-assign]
    pictures = torch.randint(0, 256, (2, 3, 4, 4), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    batch = PictureBatch(__key__=["a", "b"], __restore_key__=(), image=pictures, label=torch.tensor([0, 1]))
    trained.common_step("train", batch).backward()
    without = {name for name, weight in trained.named_parameters() if weight.grad is None and weight.requires_grad}
    assert without == set()


def test_threads_are_given_back_where_a_run_fails() -> None:
    before = torch.get_num_threads()
    trained = task(cpu_threads=before + 1)
    trained.on_fit_start()
    assert torch.get_num_threads() == before + 1
    for callback in trained.configure_callbacks():
        callback.on_exception(None, trained, RuntimeError())  # type: ignore[arg-type]
    assert torch.get_num_threads() == before


def test_a_batch_with_its_sources_can_be_made_bfloat16() -> None:
    source = SourceInfo(dataset_path="data", index=0, shard_name="0.tar", file_names=("a.png",))
    image, label = torch.zeros(1, 3, 4, 4), torch.tensor([0])
    batch = PictureBatch(__key__=["a"], __restore_key__=(), __sources__=(source,), image=image, label=label)
    converted = HalfPrecision("bf16-true").convert_input(batch)
    assert (converted.image.dtype, converted.label.dtype) == (torch.bfloat16, torch.int64)
    assert hash(converted.__sources__[0]) == hash(source)


def test_a_grid_shows_every_pixel_of_every_row() -> None:
    rng = np.random.default_rng(0)
    rows = {
        name: torch.from_numpy(rng.integers(0, 256, (n, 3, 16, 16), dtype=np.uint8)) for name, n in (("a", 2), ("b", 3))
    }
    grid = np.asarray(image_grid(rows))
    assert grid.shape == (4 + 2 * 100, 76 + 3 * 100, 3)
    for row, pictures in enumerate(rows.values()):
        for column, pixels in enumerate(pictures):
            shown = grid[4 + 100 * row :, 76 + 100 * column :][:96, :96]
            assert np.array_equal(shown[::6, ::6], pixels.permute(1, 2, 0).numpy())
            assert np.array_equal(shown[5::6, 5::6], pixels.permute(1, 2, 0).numpy())
    assert (grid[:, :76] < 128).any()  # the names


class Metrics:
    """A logger, or what one writes with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []


class WithLogImage(Metrics):
    def log_image(self, key: str, images: list[Image.Image], step: int) -> None:
        self.calls.append((key, len(images), step))


class WithAddImage(Metrics):
    def add_image(self, name: str, picture: np.ndarray, step: int, dataformats: str) -> None:
        self.calls.append((name, picture.shape, step, dataformats))


def test_loggers_that_take_pictures_get_them() -> None:
    picture = Image.new("RGB", (5, 3))
    first, board, table = WithLogImage(), Metrics(), Metrics()
    board.experiment = WithAddImage()  # type: ignore[attr-defined]
    table.experiment = Metrics()  # type: ignore[attr-defined]
    for logger in (first, board, table, Metrics()):
        log_image(logger, "samples", picture, 7)
    assert first.calls == [("samples", 1, 7)]
    assert board.experiment.calls == [("samples", (3, 5, 3), 7, "HWC")]  # type: ignore[attr-defined]


def test_threads_are_changed_for_a_training_and_given_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        tasks = [task(cpu_threads=1), task()]
        for one, during in zip(tasks, (1, 2), strict=True):
            one.on_fit_start()
            assert torch.get_num_threads() == during
            one.teardown("fit")
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature is above 0"),
        ({"num_samples": -1}, "number of samples at least 0"),
        ({"cpu_threads": 0}, "at least 1 or None"),
        ({"palette": [[1, 2]]}, "palette is not a list of colours"),
        ({"palette": [[1, 2, 9999]]}, "palette is not a list of colours"),
    ],
)
def test_what_cannot_work_is_said_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task(**options)


def test_older_names_are_still_there() -> None:
    tokens = torch.zeros(16, 1, dtype=torch.int64)
    with pytest.warns(DeprecationWarning, match="pictures is now called images"):
        assert torch.equal(task().pictures(tokens), task().images(tokens))
    with pytest.warns(DeprecationWarning, match="to_pictures is now called to_images"):
        from energon_dali.tasks.vision.igpt import to_pictures
    assert to_pictures is to_images
