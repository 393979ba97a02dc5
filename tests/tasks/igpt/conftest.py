"""Small models are quicker on one thread, all the more where tests run side by side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.tasks.igpt.archives import write_archive


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of 40 + 10 pictures, four classes."""
    return write_archive(tmp_path_factory.mktemp("cifar"))
