"""Which parameters decay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Returns the trained parameters of a model as groups for an optimizer, in the model's order.

    Norms, biases, other vectors and embeddings do not decay: decay would pull a scale to zero, and an embedding that is
    seldom read would shrink each step. A weight that is shared with an embedding counts as one.

    Args:
        model: Parameters that need no gradient are left out.
        weight_decay: Of the matrices; 0 gives one group.

    Returns:
        Groups with "params" and "weight_decay"; none is empty.
    """
    from torch.nn import Embedding

    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    embeddings = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, Embedding)
        for parameter in module.parameters()
    }
    decayed = [p for p in trained if weight_decay and p.ndim >= 2 and id(p) not in embeddings]
    chosen = {id(parameter) for parameter in decayed}
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": [p for p in trained if id(p) not in chosen], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
