"""What becomes of configs: whose arguments win, and what is said of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch

from energon_dali.errors import ConfigError, DeviceError
from energon_dali.tasks import HydraInstantiator, Instantiator, OptimizerConfig, SchedulerConfig, TaskTransformer
from energon_dali.tasks.instantiator import make
from tests.tasks.tiny import TinyBackbone, TinyConfig, TinyData

HERE = "tests.tasks.test_instantiator"
SGD = {"_target_": "torch.optim.SGD", "lr": 0.5}


def target(a: int, b: int = 2, **more: Any) -> dict[str, Any]:
    return {"a": a, "b": b, **more}


def refuse() -> None:
    raise DeviceError("There is none.")


def test_a_config_wins_over_what_the_run_gives_and_the_rest_is_left_out() -> None:
    cfg = {"_target_": "tests.tasks.tiny.TinyBackbone", "width": 6}
    backbone: Any = HydraInstantiator().backbone(cfg, num_vocab=9, width=3, num_classes=4)
    assert isinstance(backbone, TinyBackbone)
    assert backbone.embeddings.weight.shape == (9, 6)


def test_what_takes_anything_is_given_everything() -> None:
    assert make("part", {"_target_": f"{HERE}.target", "a": 1}, b=3, c=4) == {"a": 1, "b": 3, "c": 4}


def test_arguments_by_position_arrive_and_win_over_what_the_run_gives() -> None:
    layer = {"_target_": "torch.nn.Linear", "_args_": [2, 3]}
    network = make("backbone", {"_target_": "torch.nn.Sequential", "_args_": [layer, layer]})
    assert [part.weight.shape for part in network] == [(3, 2), (3, 2)]
    cfg = {"_target_": f"{HERE}.target", "_args_": [1]}
    assert make("part", cfg, a=9, b=3) == {"a": 1, "b": 3}
    assert make("part", {**cfg, "_partial_": True}, a=9)(b=4) == {"a": 1, "b": 4}


def test_given_objects_arrive_as_they_are() -> None:
    tokenizer = {"a": [1, (2,)]}
    cfg = {"_target_": "tests.tasks.tiny.TinyData", "cfg": {"_target_": "tests.tasks.tiny.TinyConfig", "batches": 9}}
    decoder = {"_target_": "energon_dali.SampleDecoder", "_partial_": True, "max_pixels": 77}
    data: Any = HydraInstantiator().data_module(cfg, tokenizer=tokenizer, decoder=decoder)
    assert isinstance(data, TinyData)
    assert data.cfg == TinyConfig(batches=9)
    assert data.tokenizer is tokenizer
    assert isinstance(data.decoder, partial)
    assert data.decoder(image_decode="rgb8").spec.max_pixels == 77


def test_no_target_is_no_tokenizer_and_no_scheduler() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    assert HydraInstantiator().tokenizer({"_target_": None}) is None
    assert HydraInstantiator().scheduler({"_target_": None}, optimizer) is None


class MakesItsBackbone(TaskTransformer):
    """A task that receives the config of its backbone, and logs more than the loss."""

    def __init__(
        self,
        num_pixels: int,
        backbone: Any,
        optimizer: OptimizerConfig,
        scheduler: SchedulerConfig,
        instantiator: Instantiator | None = None,
        classify: bool = False,
    ) -> None:
        assert optimizer.lr == 0.5
        assert instantiator is not None
        backbone = instantiator.instantiate(backbone, num_vocab=num_pixels * num_pixels)
        super().__init__(backbone, optimizer, scheduler, instantiator)
        self.save_hyperparameters()

    def common_step(self, prefix: Any, batch: torch.Tensor) -> Any:
        return {"loss": self.model(batch).square().mean(), "log": {"half": 0.5}}


def test_a_task_makes_its_backbone_of_the_config_and_logs_beside_the_loss() -> None:
    cfg = {"_target_": f"{HERE}.MakesItsBackbone", "num_pixels": 3}
    backbone = {"_target_": "tests.tasks.tiny.TinyBackbone", "num_vocab": None, "width": None}
    task: Any = HydraInstantiator().task(cfg, backbone=backbone, optimizer=SGD, scheduler={"_target_": None}, width=6)
    assert task.model.embeddings.weight.shape == (9, 6)
    assert dict(task.hparams) == {"num_pixels": 3, "classify": False, "optimizer": SGD, "scheduler": {"_target_": None}}
    logged: dict[str, Any] = {}
    task.log_dict = lambda named, **options: logged.update(named)
    loss = task.validation_step(torch.arange(4)[None])
    assert logged == {"val_loss": loss, "val/half": 0.5}
    task.common_step = lambda prefix, batch: {"los": loss}
    with pytest.raises(ConfigError, match=r'returned a mapping with \[.los.\]\. Return the loss, or {"loss": loss'):
        task.training_step(torch.arange(4)[None])
    with pytest.raises(ConfigError, match=r"gave TaskTransformer a dict as its backbone, which is not a module"):
        TaskTransformer({}, SGD)  # type: ignore[arg-type]


@dataclass
class Inner:
    """A part of a config."""

    depth: int = 1


@dataclass
class Outer:
    """A config that holds another."""

    inner: Inner
    name: str = "outer"


def of_dataclass(cfg: Outer | None = None) -> Outer | None:
    return cfg


def test_a_mapping_becomes_the_dataclass_that_the_parameter_is_annotated_with() -> None:
    cfg = {"_target_": f"{HERE}.of_dataclass", "cfg": {"inner": {"depth": 3}}}
    assert make("dataset", cfg) == Outer(Inner(3))
    for wrong, says in (
        ({"inner": {}, "nam": 1}, r"dataset\.cfg\.nam is not a field of Outer\. Did you mean name\?"),
        ({"inner": {"dept": 1}}, r"dataset\.cfg\.inner\.dept is not a field of Inner\. Did you mean depth\?"),
        ({}, r"dataset\.cfg cannot make Outer: .*'inner'"),
    ):
        with pytest.raises(ConfigError, match=says):
            make("dataset", {**cfg, "cfg": wrong})


@pytest.mark.parametrize(
    ("cfg", "says"),
    [
        ({}, r"part has no _target_: nothing says what to make\. Choose one with part=NAME"),
        ({"_target_": "no.such.Class"}, r"part cannot be made: (.|\n)*no\.such\.Class"),
        ({"_target_": "tests.tasks.tiny.TinyConfig", "bathes": 1}, r"part\.bathes .*TinyConfig\. Did you mean batches"),
        ({"_target_": f"{HERE}.target"}, r"part cannot make target: missing a required argument: 'a'"),
        ({"_target_": f"{HERE}.target", "_args_": [1], "a": 1}, r"part cannot make target: multiple values for .*'a'"),
        ({"_target_": f"{HERE}.target", "_args_": [1, 2, 3]}, r"part cannot make target: too many positional"),
        ({"_target_": f"{HERE}.target", "a": "???"}, r"part\.a has no value"),
        ({"_target_": f"{HERE}.target", "a": {"x": "???"}}, r"part\.a\.x has no value"),
    ],
)
def test_a_wrong_config_says_what_to_change(cfg: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make("part", cfg)


def test_an_error_of_this_package_comes_through_as_it_is() -> None:
    inner = {"_target_": f"{HERE}.target", "a": {"_target_": f"{HERE}.refuse"}}
    for cfg in (inner, {"_target_": f"{HERE}.refuse"}):
        with pytest.raises(DeviceError, match=r"^There is none\.$"):
            make("part", cfg)
