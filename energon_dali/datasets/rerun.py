"""Runs a hook again, to make the element of a restore key."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.hooks import hook_context
from energon_dali.datasets.restore_key import expect_name, key_from_json
from energon_dali.errors import StateError
from energon_dali.samples.base import Key, set_restore_key

if TYPE_CHECKING:
    from energon_dali.datasets.base import SavableDataset


def input_key(owner: SavableDataset[Any], function: Callable[..., Any], key: Key) -> Key:
    """Returns the key of the input from which a hook of `owner` made the output with a key.

    Raises:
        StateError: The key is not of this dataset.
    """
    numbers = 2 if inspect.isgeneratorfunction(function) else 1
    return expect_name(key, type(owner).__name__, numbers)[1 + numbers :]


def rerun(owner: SavableDataset[Any], function: Callable[..., Any], key: Key, remake: Callable[[Key], Any]) -> Any:
    """Returns the output that a hook gave for a key, by running it again.

    Args:
        owner: The dataset of the hook.
        function: The hook.
        key: The key of the output.
        remake: Makes the hook's input from the inner part of the key.

    Raises:
        StateError: The key is not of this dataset, or the hook gives fewer outputs than before.
    """
    argument = remake(input_key(owner, function, key))
    key = key_from_json(key)
    num_streams, samples_per_batch = owner.worker_config.layout.num_streams, getattr(owner, "samples_per_batch", None)
    with hook_context(key[1], owner.hook_seed, samples_per_batch, num_streams, owner.global_batches):
        if not inspect.isgeneratorfunction(function):
            return set_restore_key(function(argument), key)
        offset = key[2]
        for number, result in enumerate(function(argument)):
            if number == offset:
                return set_restore_key(result, key)
    raise StateError(
        f"{type(owner).__name__} gave fewer than {offset + 1} outputs when its hook ran again for {key!r}. A generator "
        "hook that is to be restored must give the same outputs each time: mark it @stateless(restore_seeds=True) if "
        "it draws random numbers."
    )
