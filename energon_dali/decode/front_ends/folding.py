"""Folds rescaling and normalisation into the first layer of a model, which then takes bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from energon_dali.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


def fold_into(
    layer: torch.nn.Module, scale: Sequence[float], shift: Sequence[float], *, channels_last: bool = False
) -> None:
    """Changes the weights of a layer so that bytes give the results that their values gave before.

    Args:
        layer: torch.nn.Conv2d, Conv3d or Linear without padding, over patches of three channels. It gets a bias if it
            has none.
        scale: Per channel: value = byte * scale + shift.
        shift: Likewise.
        channels_last: Whether a Linear takes patches whose fastest axis is the channel, and not the slowest.

    Raises:
        ConfigError: It is another layer, has other inputs, or pads with values that bytes do not have.
    """
    import torch
    from torch import nn

    if not isinstance(layer, (nn.Conv2d, nn.Conv3d, nn.Linear)):
        raise ConfigError(
            f"A normalisation cannot be folded into a {type(layer).__name__}. Give the model's patch embedding: its "
            "Conv2d, Conv3d or Linear."
        )
    channels = len(scale)
    if not isinstance(layer, nn.Linear):
        if layer.in_channels != channels or layer.groups != 1:
            raise ConfigError(f"{layer} does not take all of {channels} channels at once, as a patch embedding does.")
        if _pads(layer):
            raise ConfigError(
                f"The layer pads with zeros (padding={layer.padding!r}), which are not zero as bytes. Give a patch "
                "embedding without padding, or a front end with a dtype other than uint8."
            )
    elif layer.in_features % channels:
        raise ConfigError(f"{layer} does not take patches of {channels} channels. Give the model's patch embedding.")
    weight = layer.weight.detach().double()
    last = channels_last and isinstance(layer, nn.Linear)
    parts = weight.view(len(weight), -1, channels) if last else weight.view(len(weight), channels, -1)
    by_channel = parts if last else parts.transpose(1, 2)  # [outputs, pixels of a patch, channels]
    scales, shifts = (torch.tensor(values, dtype=torch.float64, device=weight.device) for values in (scale, shift))
    added = (by_channel * shifts).flatten(1).sum(1)
    by_channel *= scales  # a view of `weight`
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is None:
            layer.bias = nn.Parameter(added.to(layer.weight.dtype))
        else:
            layer.bias.copy_(layer.bias.double() + added)


def _pads(layer: torch.nn.Conv2d | torch.nn.Conv3d) -> bool:
    if layer.padding == "same":
        return any(side > 1 for side in layer.kernel_size)
    return layer.padding != "valid" and any(layer.padding)
