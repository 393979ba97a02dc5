"""How task encoders of Energon put datasets together themselves: what does it for them while a dataset is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from energon_dali.errors import ConfigError

BUILD_HOOKS = (
    "build_train_datasets",
    "build_val_datasets",
    "build_cook_crude_sample",
    "build_encode_sample",
    "build_batch",
)
"""Methods of a task encoder that put datasets together."""


class DatasetBuilder(Protocol):
    """Puts the datasets of one call of `get_train_dataset` or its counterparts together."""

    def load(self, dataset: Any) -> Any:
        """Returns the loaded samples of one dataset, cooked if they are crude."""

    def cook(self, dataset: Any) -> Any:
        """Returns a dataset whose crude samples are cooked; others pass."""

    def encode(self, dataset: Any) -> Any:
        """Returns a dataset of encoded samples."""

    @property
    def batch(self) -> Callable[..., Any]:
        """Takes a dataset of encoded samples and the options of `build_batch`; returns a dataset of batches."""

    @property
    def train(self) -> Callable[..., Any]:
        """Takes the arguments of `build_train_datasets`; returns the mixture, through all stages."""

    @property
    def validate(self) -> Callable[..., Any]:
        """Takes the arguments of `build_val_datasets`; returns the datasets in turn, through all stages."""


_BUILDER: ContextVar[DatasetBuilder | None] = ContextVar("builder", default=None)


@contextmanager
def builds_with(builder: DatasetBuilder) -> Iterator[None]:
    """Makes the build hooks of task encoders use a builder.

    Args:
        builder: Of the dataset that is being opened.
    """
    token = _BUILDER.set(builder)
    try:
        yield
    finally:
        _BUILDER.reset(token)


def current_builder() -> DatasetBuilder:
    """Returns the builder of the dataset that is being opened.

    Raises:
        ConfigError: None is.
    """
    builder = _BUILDER.get()
    if builder is None:
        raise ConfigError(
            "A build hook of a task encoder (build_batch and so on) was called outside of get_train_dataset, "
            "get_val_dataset and get_val_datasets, which call build_train_datasets or build_val_datasets. Combine "
            "opened datasets with BlendDataset, MapDataset and the other wrappers."
        )
    return builder
