from __future__ import annotations

import shutil
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from energon_dali.errors import ConfigError, DatasetFormatError
from energon_dali.tasks.vision.igpt import ImageGPTDataConfig, ImageGPTDataModule
from energon_dali.tasks.vision.igpt.cifar_archive import md5_of, read_archive
from tests.decode.tolerance import Tolerance, explain_difference
from tests.tasks.igpt.archives import CLASSES, write_archive
from tests.tasks.walkthrough.pixels.cifar import SmallCIFAR10


def module(folder: Path, **options: Any) -> ImageGPTDataModule:
    decoder = options.pop("decoder", "pil")
    told = {"data_dir": str(folder), "batch_size": 5, "num_workers": 0, "num_streams": 2, "num_colors": 8}
    return ImageGPTDataModule(ImageGPTDataConfig(**{**told, **options}), decoder=decoder)


def ready(folder: Path, **options: Any) -> ImageGPTDataModule:
    made = module(folder, **options)
    made.prepare_data()
    made.setup("fit")
    return made


@pytest.fixture
def folder(archive: Path, tmp_path: Path) -> Path:
    shutil.copy(archive, tmp_path)
    return tmp_path


def everything(loader: Any) -> dict[str, tuple[int, bytes]]:
    """Returns class and pixels of each key."""
    return {
        key: (int(label), image.numpy().tobytes())
        for batch in loader
        for key, label, image in zip(batch.__key__, batch.label, batch.image, strict=True)
    }


def test_the_split_keeps_every_picture_with_its_class(archive: Path, folder: Path) -> None:
    data = ready(folder, image_size=32, flip=0.0, val_fraction=0.2)
    try:
        train, val = everything(data.train_dataloader()), everything(data.val_dataloader())
        test = everything(data.test_dataloader())
    finally:
        data.close()
    assert (len(train), len(val), len(test)) == (32, 8, 10)
    content = read_archive(archive)
    together = {**train, **val}
    assert sorted(together) == [f"train-{index:06d}" for index in range(40)]
    for index, key in enumerate(sorted(together)):
        pixels = np.ascontiguousarray(content.train.pixels[index].transpose(2, 0, 1))
        assert together[key] == (content.train.labels[index], pixels.tobytes())
    assert data.classes == CLASSES
    told = data.model_data_kwargs
    assert {name: told[name] for name in ("num_classes", "num_pixels", "num_positions", "num_vocab")} == {
        "num_classes": 4,
        "num_pixels": 32,
        "num_positions": 1024,
        "num_vocab": 8,
    }
    assert told["palette"] == [list(color) for color in data.palette.units]


def test_every_decoder_gives_the_same_small_mirrored_pictures(folder: Path) -> None:
    found = []
    for decoder in ("pil", "dali_cpu"):
        data = ready(folder, image_size=8, flip=1.0, decoder=decoder)
        try:
            batch = next(iter(data.train_dataloader()))
        finally:
            data.close()
        assert batch.image.shape == (5, 3, 8, 8)
        assert batch.image.dtype == torch.uint8
        assert batch.label.dtype == torch.int64
        # Pictures run from dark to bright downwards, not across: mirrored or not, rows grow.
        assert (batch.image.float().mean((1, 3)).diff(dim=1) > 0).all()
        found.append(batch)
    assert found[0].__key__ == found[1].__key__
    for pixels in zip(*(batch.image.permute(0, 2, 3, 1).numpy() for batch in found), strict=True):
        assert explain_difference(*pixels, Tolerance(inside=1, anywhere=4, border_px=4, psnr_db=40)) is None


def shards(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("cifar10-*/*.tar"))}


def test_shards_are_made_once_and_the_same_again(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with ThreadPoolExecutor(3) as pool:  # as ranks do
        list(pool.map(lambda _: module(folder).prepare_data(), range(3)))
    (made,) = folder.glob("cifar10-*")
    assert sorted(path.name for path in folder.iterdir()) == sorted([made.name, "cifar-10-python.tar.gz"])
    before = made.stat().st_mtime_ns, shards(folder)
    other = tmp_path_factory.mktemp("other")
    shutil.copy(folder / "cifar-10-python.tar.gz", other)
    module(other).prepare_data()
    assert shards(other) == before[1]
    begun = ready(folder)
    next(iter(begun.train_dataloader()))
    state = begun.state_dict()
    following = [list(batch.__key__) for batch in begun.train_dataloader()]
    begun.close()
    elsewhere = ready(other)  # where a run goes on whose folder is not there
    elsewhere.load_state_dict(state)
    assert [list(batch.__key__) for batch in elsewhere.train_dataloader()] == following
    elsewhere.close()
    (folder / "cifar-10-python.tar.gz").unlink()  # what was made stays of use
    assert ready(folder, download=False).classes == CLASSES
    assert (made.stat().st_mtime_ns, shards(folder)) == before
    with tarfile.open(made / "train-0000.tar") as tar:
        assert len(tar.getnames()) == 72


def test_another_seed_or_share_is_another_split(folder: Path) -> None:
    ready(folder)
    ready(folder, split_seed=1)
    ready(folder, val_fraction=0.25)
    names = sorted(path.name.partition("-")[2][9:] for path in folder.glob("cifar10-*"))
    assert names == ["val0.1-seed0", "val0.1-seed1", "val0.25-seed0"]
    contents = [path.read_bytes() for path in sorted(folder.glob("cifar10-*/val-0000.tar"))]
    assert len(set(contents)) == 3


def test_the_archive_comes_by_download_or_by_name(archive: Path, tmp_path: Path) -> None:
    fetched = ready(tmp_path / "fetched", url=archive.as_uri(), md5=md5_of(archive))
    named = ready(tmp_path / "named", archive=str(archive))
    assert shards(tmp_path / "fetched") == shards(tmp_path / "named")
    assert fetched.palette == named.palette
    assert not (tmp_path / "named" / archive.name).exists()
    with pytest.raises(DatasetFormatError, match="and c58f30108f718f92721af3b95e74349a is expected"):
        module(tmp_path / "official", url=archive.as_uri()).prepare_data()


def test_archives_are_told_apart(folder: Path) -> None:
    ready(folder)
    write_archive(folder, readme=b"another one")
    ready(folder)
    assert len(list(folder.glob("cifar10-*"))) == 2
    (folder / "cifar-10-python.tar.gz").unlink()
    with pytest.raises(ConfigError, match="holds datasets of different archives"):
        module(folder).prepare_data()


def test_a_failure_leaves_nothing_behind(folder: Path) -> None:
    with pytest.raises(ConfigError, match="training and validation need at least one image"):
        module(folder, val_fraction=0.001).prepare_data()
    assert [path.name for path in folder.iterdir()] == ["cifar-10-python.tar.gz"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "mnist"}, "dataset='mnist' is unknown. There is: cifar10"),
        ({"data_dir": None}, r"data_dir was not given.*dataset\.cfg\.data_dir="),
        ({"image_size": 64}, "image_size=64 pixels: images of CIFAR can have 2 to 32"),
        ({"num_colors": 1}, "num_colors=1"),
        ({"image_size": 8.5}, r"image_size=8\.5 is not a whole number"),
        ({"val_fraction": "abc"}, "val_fraction=abc leaves nothing"),
        ({"download": False}, r"There is no archive .*cifar-10-python\.tar\.gz"),
        ({"archive": "/no/such/file"}, "There is no archive /no/such/file"),
        ({"val_fraction": 1.0}, "val_fraction=1.0 leaves nothing"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_work_is_said_in_words(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        module(tmp_path, **options).prepare_data()


def test_without_arguments_data_is_missed_only_when_it_is_asked_for() -> None:
    assert ImageGPTDataConfig().data_dir is None
    data = ImageGPTDataModule()
    with pytest.raises(ConfigError, match="data_dir was not given"):
        data.prepare_data("what", older="callers gave")
    with pytest.raises(ConfigError, match="known after prepare_data"):
        _ = data.model_data_kwargs


def test_the_binary_archive_is_taken_where_there_is_no_other(tmp_path: Path) -> None:
    cfg = ImageGPTDataConfig(data_dir=tmp_path)
    assert cfg.archive_path.name == "cifar-10-python.tar.gz"
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    assert cfg.archive_path.name == "cifar-10-binary.tar.gz"
    (tmp_path / "cifar-10-python.tar.gz").touch()
    assert cfg.archive_path.name == "cifar-10-python.tar.gz"


def test_numbers_are_known_after_setup(folder: Path) -> None:
    data = module(folder)
    with pytest.raises(ConfigError, match="known after prepare_data"):
        _ = data.model_data_kwargs
    (folder / "cifar-10-python.tar.gz").unlink()
    with pytest.raises(ConfigError, match="Call prepare_data"):
        data.setup("fit")


class OfAClass(ImageGPTDataModule):
    dataset_cls = SmallCIFAR10


def of_a_class(folder: Path, **options: Any) -> OfAClass:
    told = {"data_dir": str(folder), "batch_size": 5, "num_workers": 0, "num_streams": 2, "num_colors": 8}
    return OfAClass(ImageGPTDataConfig(**{**told, "image_size": 32, "flip": 0.0, **options}), decoder="pil")


def test_a_dataset_class_takes_the_place_of_the_archive(archive: Path, tmp_path: Path) -> None:
    data = of_a_class(tmp_path)
    with pytest.raises(ConfigError, match="Call prepare_data"):
        data.setup("fit")
    shutil.copy(archive, tmp_path)
    with ThreadPoolExecutor(2) as pool:  # as ranks do
        list(pool.map(lambda _: of_a_class(tmp_path).prepare_data(), range(2)))
    data.setup("fit")
    (made,) = tmp_path.glob("from-SmallCIFAR10-*")
    try:
        together = {**everything(data.train_dataloader()), **everything(data.val_dataloader())}
        test = everything(data.test_dataloader())
    finally:
        data.close()
    content = read_archive(archive)
    for prefix, part, found in (("train", content.train, together), ("test", content.test, test)):
        assert sorted(found) == [f"{prefix}-{index:06d}" for index in range(len(part.labels))]
        for index, key in enumerate(sorted(found)):
            pixels = np.ascontiguousarray(part.pixels[index].transpose(2, 0, 1))
            assert found[key] == (part.labels[index], pixels.tobytes())
    assert data.model_data_kwargs["num_classes"] == 4
    assert data.model_data_kwargs["palette"] == [list(color) for color in data.palette.units]
    (tmp_path / "cifar-10-python.tar.gz").unlink()  # what was made stays of use
    again = of_a_class(tmp_path, download=False)
    again.prepare_data()
    again.setup("fit")
    assert again.cfg.train == str(made)


def test_other_images_of_a_class_are_refused(tmp_path: Path) -> None:
    data = of_a_class(tmp_path)
    data.dataset_cls = lambda *_, **__: [(np.zeros((28, 28), np.uint8), 3)]
    with pytest.raises(
        ConfigError, match=r"Item 0 of <lambda> is an image of values\.shape = \(28, 28\).*set dataset_train"
    ):
        data.prepare_data()
    data.dataset_cls = lambda *_, **__: [(np.zeros((32, 32, 3), np.uint8), -1)]
    with pytest.raises(ConfigError, match="has the class -1"):
        data.prepare_data()
    assert not list(tmp_path.iterdir())
