"""`energon-dali demo-data` writes what the README's examples read, with and without installed photographs."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

import energon_dali
from energon_dali.cli import demo_data
from energon_dali.cli.main import main


def make(folder: Path, *options: str) -> str:
    done = CliRunner().invoke(main, ["demo-data", str(folder), *options])
    assert done.exit_code == 0, done.output
    return done.output


def samples_of(folder: Path) -> list[energon_dali.CaptioningSample]:
    encoder = energon_dali.DefaultTaskEncoder()
    encoder.decoder = energon_dali.SampleDecoder(image_decode="torchrgb")
    dataset = energon_dali.get_train_dataset(
        folder / "captions",
        worker_config=energon_dali.WorkerConfig(rank=0, world_size=1, num_workers=0),
        batch_size=None,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        repeat=False,
        task_encoder=encoder,
    )
    with energon_dali.get_loader(dataset) as loader:
        return list(loader)


@pytest.mark.parametrize("photographs", [True, False], ids=["photographs", "drawn"])
def test_it_makes_images_a_prepared_dataset_and_a_video(
    photographs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not photographs:
        monkeypatch.setattr(demo_data, "find_spec", lambda _: None)
    tmp_path /= "a:b"  # a path, not a URL
    output = make(tmp_path / "data", "--samples", "22")
    assert ("22 crops of photographs" if photographs else "22 drawn images") in output
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        "captions",
        "photo.jpg",
        "photos",
        "video.mp4",
    ]

    samples = samples_of(tmp_path / "data")
    assert len({sample.__key__ for sample in samples}) == len(samples) == 22
    assert all(sample.image.shape[0] == 3 and min(sample.image.shape[1:]) >= 200 for sample in samples)
    assert all(len(sample.caption) > 10 for sample in samples)
    assert min(float(sample.image.float().std()) for sample in samples) > 0.01

    files = [file for file in (tmp_path / "data" / "photos").rglob("*.*") if file.is_file()]
    assert sorted(file.stem for file in files) == sorted(sample.__key__ for sample in samples)
    classes = {"astronaut", "cat", "coffee", "flower", "rocket", "temple"}
    assert {file.parent.name for file in files} == (classes if photographs else {"circle", "square", "triangle"})

    with Image.open(tmp_path / "data" / "photo.jpg") as photo:  # the size that pages of the documentation print
        assert (photo.format, photo.mode, photo.size) == ("JPEG", "RGB", (640, 427))

    with av.open(str(tmp_path / "data" / "video.mp4")) as video:
        assert sum(1 for _ in video.decode(video=0)) == 250
    with av.open(str(tmp_path / "data" / "video.mp4")) as video:
        seconds = sum(frame.samples for frame in video.decode(audio=0)) / 44_100
        assert seconds == pytest.approx(10, abs=0.1)


def test_the_same_packages_give_the_same_samples(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make(tmp_path / name, "--samples", "8")
    one, two = samples_of(tmp_path / "one"), samples_of(tmp_path / "two")
    assert [sample.__key__ for sample in one] == [sample.__key__ for sample in two]
    assert all(torch.equal(a.image, b.image) and a.caption == b.caption for a, b in zip(one, two, strict=True))


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    name = str(tmp_path / ("x" * 300))
    done = CliRunner().invoke(main, ["demo-data", name])
    assert done.exit_code == 1
    assert f"Error: {name}: File name too long. Check the path." in done.output


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "captions").mkdir()
    (tmp_path / "captions" / "mine.txt").write_text("mine")
    (tmp_path / "video.mp4").write_bytes(b"mine")
    (tmp_path / "photos").mkdir()
    output = make(tmp_path)
    assert output.count("already exists") == 3
    assert not list((tmp_path / "photos").iterdir())
    assert [path.name for path in (tmp_path / "captions").iterdir()] == ["mine.txt"]
    assert (tmp_path / "video.mp4").read_bytes() == b"mine"
