"""Learning rates against their formulas, and which parameters decay."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from energon_dali.errors import ConfigError
from energon_dali.tasks.instantiator import parameter_groups
from energon_dali.tasks.schedules import cosine_with_warmup, linear_with_warmup

RATE = 2.0


def rates(schedule: object, steps: int, **options: float) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=RATE)
    scheduler = schedule(optimizer, **options)  # type: ignore[operator]
    seen = []
    for _ in range(steps):
        seen.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return seen


@given(steps=st.integers(1, 30), warmup=st.integers(0, 30), min_ratio=st.floats(0, 1), beyond=st.integers(0, 3))
def test_rates_rise_in_a_line_and_fall_to_the_last_one(steps: int, warmup: int, min_ratio: float, beyond: int) -> None:
    warmup = min(warmup, steps)
    shapes = {cosine_with_warmup: lambda x: (1 + math.cos(math.pi * x)) / 2, linear_with_warmup: lambda x: 1 - x}
    for schedule, shape in shapes.items():
        options = {"num_training_steps": steps, "num_warmup_steps": warmup, "min_ratio": min_ratio}
        seen = rates(schedule, steps + 1 + beyond, **options)
        rise = [RATE * (step + 1) / (warmup + 1) for step in range(warmup)]
        falling = [shape(step / (steps - warmup)) for step in range(steps - warmup)]
        fall = [RATE * (min_ratio + (1 - min_ratio) * share) for share in falling]
        assert seen == pytest.approx([*rise, *fall, *[RATE * min_ratio] * (1 + beyond)])


def test_a_warmup_below_one_is_a_share() -> None:
    shared = rates(linear_with_warmup, 20, num_training_steps=20, num_warmup_steps=0.25)
    assert shared == rates(linear_with_warmup, 20, num_training_steps=20, num_warmup_steps=5)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"num_training_steps": 0}, "num_training_steps=0 leaves nothing to train"),
        ({"num_training_steps": 5, "num_warmup_steps": 6}, "num_warmup_steps=6 does not fit"),
        ({"num_training_steps": 5, "min_ratio": 1.5}, "min_ratio=1.5 is not a share"),
    ],
)
def test_impossible_schedules_are_refused(options: dict[str, float], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        rates(cosine_with_warmup, 1, **options)


class Tied(nn.Module):
    """Has one parameter of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(7, 3)
        self.conv = nn.Conv2d(2, 2, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.start = nn.Parameter(torch.zeros(3))
        self.head = nn.Linear(3, 7, bias=False)
        self.head.weight = self.embeddings.weight
        self.mix = nn.Linear(3, 3)


def test_matrices_decay_and_nothing_else_does() -> None:
    model = Tied()
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups = [
        ([names[id(each)] for each in group["params"]], group["weight_decay"]) for group in parameter_groups(model, 0.1)
    ]
    still = ["start", "embeddings.weight", "conv.bias", "norm.weight", "norm.bias", "mix.bias"]
    assert groups == [(["conv.weight", "mix.weight"], 0.1), (still, 0.0)]
    ((_, decay),) = [(group["params"], group["weight_decay"]) for group in parameter_groups(model, 0.0)]
    assert decay == 0.0
