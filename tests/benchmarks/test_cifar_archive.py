from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.data.cifar_archive import write_cifar_archive
from benchmarks.data.photographs import PHOTOGRAPHS
from energon_dali.tasks.vision.igpt.cifar_archive import read_archive


def test_an_archive_of_photographs_has_the_official_format(tmp_path: Path) -> None:
    path = write_cifar_archive(tmp_path / "a", train=20, test=6)
    content = read_archive(path)
    assert content.train.pixels.shape == (20, 32, 32, 3)
    assert content.test.pixels.shape == (6, 32, 32, 3)
    assert content.classes == tuple(Path(photograph.path).stem for photograph in PHOTOGRAPHS)
    assert len({pixels.tobytes() for pixels in content.train.pixels}) == 20
    photographs = [len(np.unique(pixels.reshape(-1, 3), axis=0)) > 20 for pixels in content.train.pixels]
    assert np.mean(photographs) > 0.9
    assert write_cifar_archive(tmp_path / "b", train=20, test=6).read_bytes() == path.read_bytes()
