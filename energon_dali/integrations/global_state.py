"""The position of all ranks under the two names that checkpointing tools call."""

from __future__ import annotations

import json
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError, StateError
from energon_dali.loader.savable_loader import SavableDataLoader
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.documents.state_entries import MAX_STATE_DEPTH

_KEY = "loader"


@explain_call
class GlobalLoaderState:
    """The state of a loader on all ranks, for tools that save an object by `state_dict()` from one process alone.

    Accelerate's `register_for_checkpointing`, Lightning Fabric's `save` and `torch.distributed.checkpoint` write what
    the first rank gives them. This object gives all of them the same: the positions of all ranks. It restores onto any
    number of ranks x workers that divides the number of streams.

    Args:
        loader: The loader of this rank.

    Raises:
        ConfigError: It is not a loader that can save its state.
    """

    def __init__(self, loader: SavableDataLoader[Any]) -> None:
        if not isinstance(loader, SavableDataLoader):
            raise ConfigError(
                f"GlobalLoaderState was given a {type(loader).__name__}, which has no state. Give what "
                "get_savable_loader returns."
            )
        self.loader = loader

    def state_dict(self) -> dict[str, str]:
        """Returns the positions of all ranks after their last delivered batch, as one text. A collective call.

        Raises:
            StateError: There are several ranks, but torch.distributed is not initialised, or the data-parallel group
                does not have `world_size` ranks.
        """
        config = self.loader.worker_config
        if config.world_size == 1:
            return {_KEY: json.dumps(self.loader.save_state_global(0))}
        import torch.distributed as dist

        group = config.data_parallel_group
        ready = dist.is_available() and dist.is_initialized()
        first = dist.get_global_rank(group, 0) if ready and group is not None else 0
        box: list[Any] = [self.loader.save_state_global(first)]
        dist.broadcast_object_list(box, src=first, group=group)
        return {_KEY: json.dumps(box[0])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the positions that `state_dict` returned. Call it before the first batch is taken.

        Args:
            state: What `state_dict` returned, on this or another number of ranks.

        Raises:
            StateError: Iteration has begun, or the state is not one of `state_dict`, or is of another dataset.
            LayoutError: The state does not fit this layout of ranks and workers.
        """
        text = state.get(_KEY) if isinstance(state, dict) else None
        if not isinstance(text, str):
            raise StateError(
                "This is not what GlobalLoaderState.state_dict() returned. The state of a single rank is restored with "
                "loader.restore_state_rank(state)."
            )
        try:
            value = parse_json(text.encode(), max_depth=MAX_STATE_DEPTH, any_number=True)
        except ValueError as error:
            raise StateError(f"The state is damaged: {str(error)[:200]}. Restore another one.") from error
        self.loader.restore_state_global(value)
