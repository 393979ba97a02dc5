"""Checkpoints as they were before the run had a key of its own."""

from __future__ import annotations

from pathlib import Path

import torch


def rewrite_as_before(checkpoint: Path) -> None:
    """Rewrites a checkpoint in the earlier form: the run next to the arguments, and a task without its groups."""
    content = torch.load(checkpoint, weights_only=True)
    run = content["hyper_parameters"]["run"]
    for name in ("backbone", "optimizer", "scheduler"):
        run["config"]["task"].pop(name)
    content["hyper_parameters"] = run
    content["state_dict"] = {name.replace(".layers.", ".blocks."): each for name, each in content["state_dict"].items()}
    torch.save(content, checkpoint)
