"""For all tests of tasks: one thread, and no heed of warnings of Lightning that say nothing of the code here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

_IGNORED = (
    "ignore:.*isinstance.treespec, LeafSpec:",  # what Lightning calls in torch is deprecated there
    "ignore:Experiment logs directory .* exists and is not empty:UserWarning",
    "ignore:The .*_dataloader.* does not have many workers:UserWarning",
    "ignore:The number of training batches .* is smaller than the logging interval:UserWarning",
    "ignore:GPU available but not used:UserWarning",
    "ignore:The dirpath has changed from:UserWarning",  # a run that goes on in a new folder
    "ignore:You are using `torch.load` with `weights_only=False`:FutureWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of this folder."""
    here = __file__.rpartition("/")[0] + "/"
    for item in items:
        if str(item.path).startswith(here):
            for text in _IGNORED:
                item.add_marker(pytest.mark.filterwarnings(text), append=False)


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Small models are quicker on one thread, all the more where tests run side by side."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
