"""Makes the parts of a run out of their configs."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

from energon_dali.calls import describe_nearest
from energon_dali.errors import ConfigError, EnergonDaliError
from energon_dali.tasks.annotated_values import as_annotated, takes_module

if TYPE_CHECKING:
    from lightning import LightningDataModule, LightningModule, Trainer
    from torch import nn
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

Config = Mapping[str, Any]
"""A config with `_target_`: a dict, or what Hydra makes of YAML."""


class Instantiator(Protocol):
    """Makes the parts of a run; a task takes one so that how configs become objects can be swapped."""

    def instantiate(self, cfg: Config, **kwargs: Any) -> Any:
        """Returns what a config describes; keyword arguments win over the config."""

    def tokenizer(self, cfg: Config | None) -> Any:
        """Returns the tokenizer, None where the config names none."""

    def data_module(self, cfg: Config, *, tokenizer: Any = None, decoder: Any = None) -> LightningDataModule:
        """Returns the data module, with the tokenizer and the decoder that it asks for."""

    def backbone(self, cfg: Config, **model_data_kwargs: Any) -> nn.Module:
        """Returns the model, with those of the data module's numbers that it takes and its config leaves open."""

    def task(self, cfg: Config, **given: Any) -> LightningModule:
        """Returns the task, with its backbone, optimizer, scheduler and the data module's numbers."""

    def optimizer(self, model: nn.Module, cfg: Config) -> Optimizer:
        """Returns the optimizer of a model's parameters."""

    def scheduler(self, cfg: Config | None, optimizer: Optimizer) -> LRScheduler | None:
        """Returns the scheduler of an optimizer, None where the config names none."""

    def trainer(self, cfg: Config, **given: Any) -> Trainer:
        """Returns the trainer, with its loggers and callbacks."""


class HydraInstantiator:
    """Makes the parts by Hydra: `_target_` names a class or function, the other keys are its arguments.

    What a config sets wins over what the run gives; what a target does not take is not given to it. An argument in a
    config that its target does not take is an error naming the nearest one.
    """

    def instantiate(self, cfg: Config, **kwargs: Any) -> Any:
        """Returns what a config describes, such as a backbone inside a task that gets its config.

            backbone = instantiator.instantiate(backbone, num_positions=num_pixels * num_pixels)

        Args:
            cfg: `_target_` and arguments.
            **kwargs: Arguments that win over those of the config.

        Raises:
            ConfigError: The config cannot be made into an object, or the target takes no argument of that name.
        """
        place = str(getattr(cfg, "_get_full_key", lambda _: "")(None)) or "config"
        return make(place, {**plain_config(cfg), **kwargs})

    def tokenizer(self, cfg: Config | None) -> Any:
        """Returns the tokenizer, None where the config names none.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        return make("tokenizer", cfg) if cfg is not None and has_target(cfg) else None

    def data_module(self, cfg: Config, *, tokenizer: Any = None, decoder: Any = None) -> LightningDataModule:
        """Returns the data module, with the tokenizer and the decoder that it asks for.

        Args:
            cfg: `_target_` and arguments, such as `cfg`, a dataclass with a `_target_` of its own.
            tokenizer: A tokenizer, or None.
            decoder: A decoder, what makes one of image options, or the config of either.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        if isinstance(decoder, Mapping):
            decoder = make("decoder", decoder)
        return cast("LightningDataModule", make("dataset", cfg, tokenizer=tokenizer, decoder=decoder))

    def backbone(self, cfg: Config, **model_data_kwargs: Any) -> nn.Module:
        """Returns the model, with those of the data module's numbers that it takes and its config leaves open.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        return cast("nn.Module", make("backbone", cfg, **model_data_kwargs))

    def task(self, cfg: Config, **given: Any) -> LightningModule:
        """Returns the task, with its backbone, optimizer, scheduler and the data module's numbers.

        Args:
            cfg: `_target_` and arguments. Its keys `backbone`, `optimizer` and `scheduler` are configs and stay
                configs; where they are missing, those in `given` are taken.
            **given: `backbone`, a module or its config: a task whose parameter is annotated with a module class gets a
                module, any other gets the config. `optimizer`, `scheduler`, and what the data module supplies.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        given = {"instantiator": self, **given}
        parts: dict[str, Any] = {}
        for name in ("backbone", "optimizer", "scheduler"):
            part = cfg.get(name) if name != "backbone" or given.get(name) is None else None
            part = given.pop(name, None) if part is None else part
            parts[name] = attribute_config(part) if isinstance(part, Mapping) else part
        rest = {str(name): cfg[name] for name in cfg if name not in parts}
        target, _, _ = _resolve("task", {"_target_": rest.get("_target_")})
        if isinstance(parts["backbone"], Mapping):
            numbers = {name: value for name, value in given.items() if name != "instantiator"}
            if takes_module(target, "backbone"):
                parts["backbone"] = self.backbone(parts["backbone"], **numbers)
            else:
                backbone: Any = parts["backbone"]
                left_open = [name for name in numbers if name in backbone and backbone[name] is None]
                backbone.update({name: numbers[name] for name in left_open})
        return cast("LightningModule", make("task", rest, strict=True, **{**given, **parts}))

    def optimizer(self, model: nn.Module, cfg: Config) -> Optimizer:
        """Returns the optimizer of a model's parameters; norms, biases and embeddings have no weight decay.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        groups = parameter_groups(model, float(cfg.get("weight_decay") or 0.0))
        return cast("Optimizer", make("optimizer", cfg, params=groups))

    def scheduler(self, cfg: Config | None, optimizer: Optimizer) -> LRScheduler | None:
        """Returns the scheduler of an optimizer, None where the config names none.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        if cfg is None or not has_target(cfg):
            return None
        return cast("LRScheduler", make("scheduler", cfg, optimizer=optimizer))

    def trainer(self, cfg: Config, **given: Any) -> Trainer:
        """Returns the trainer; loggers and callbacks may be given in its config as a dict by name.

        Args:
            cfg: `_target_` and arguments; a logger or callback that is null is left out.
            **given: Arguments that the config does not have.

        Raises:
            ConfigError: The config cannot be made into an object.
        """
        plain = dict(cfg)
        for name in ("logger", "callbacks"):
            if isinstance(plain.get(name), Mapping) and not has_target(plain[name]):
                parts = {key: part for key, part in plain[name].items() if part is not None}
                plain[name] = [make(f"trainer.{name}.{key}", part) for key, part in parts.items()]
        return cast("Trainer", make("trainer", plain, **given))


def has_target(cfg: Config) -> bool:
    """Returns whether a config names something to make."""
    return cfg.get("_target_") is not None


def make(place: str, cfg: Config, *, strict: bool = False, **given: Any) -> Any:
    """Returns what a config's target makes of the config's arguments and the given ones that it takes.

    Args:
        place: The place of the config, for messages, such as "backbone".
        cfg: `_target_` and arguments, which may hold such configs again; `_args_` lists those by position.
        strict: Where a class takes any argument by `**`, its config may still set only those that it or a base class
            names, and given ones.
        **given: Arguments that the config may leave out or leave null; the config's own win.

    Raises:
        ConfigError: There is no target, it cannot be imported, a value is missing, an argument is unknown, or the
            target raised TypeError or ValueError.
        EnergonDaliError: What the target itself raised.
    """
    target, positional, arguments = _resolve(place, cfg)
    taken = _taken(target)
    settable = {*_named(target), *given} if taken is None and strict and isinstance(target, type) else taken
    for name in arguments:
        if settable is not None and name not in settable:
            raise ConfigError(
                f"{place}.{name} is not an argument of {_name(target)}. {describe_nearest(name, settable)}"
            )
    set_already = _positional_names(target)[: len(positional)]
    given = {
        name: value for name, value in given.items() if (taken is None or name in taken) and name not in set_already
    }
    open_names = [name for name, value in arguments.items() if value is None and name in given]
    of_config = {
        name: as_annotated(f"{place}.{name}", target, name, value)
        for name, value in arguments.items()
        if name not in open_names
    }
    arguments = {**given, **of_config}
    if cfg.get("_partial_", False):
        return partial(target, *positional, **arguments)
    try:
        inspect.signature(target).bind(*positional, **arguments)
    except TypeError as error:
        raise ConfigError(f"{place} cannot make {_name(target)}: {error}. Set it as {place}.NAME=VALUE.") from error
    except ValueError:
        pass  # a builtin without a signature
    try:
        return target(*positional, **arguments)
    except EnergonDaliError:
        raise
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{place} cannot make {_name(target)}: {type(error).__name__}: {error} Change a value under {place}; "
            "HYDRA_FULL_ERROR=1 shows where it came from."
        ) from error


def _resolve(place: str, cfg: Config) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Returns the target of a config, and its arguments by position and by name, with inner configs made.

    Raises:
        ConfigError: There is no target, it cannot be imported, or a value is missing or cannot be made.
        EnergonDaliError: What an inner target itself raised.
    """
    from hydra.errors import HydraException
    from hydra.utils import instantiate
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    config = cfg if OmegaConf.is_config(cfg) else OmegaConf.create(dict(cfg), flags={"allow_objects": True})
    missing = sorted(OmegaConf.missing_keys(config))
    if missing:
        key = missing[0] if missing[0].startswith(f"{place}.") else f"{place}.{missing[0]}"
        raise ConfigError(f"{key} has no value, and nothing can be assumed for it. Add {key}=... to the command.")
    if not has_target(cfg):
        raise ConfigError(
            f"{place} has no _target_: nothing says what to make. Choose one with {place}=NAME, or +{place}=NAME "
            f"where the command has none yet, or set {place}._target_ to a class."
        )
    try:
        made = instantiate(config, _partial_=True, _convert_="all")
    except (HydraException, OmegaConfBaseException) as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, EnergonDaliError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from error
        raise ConfigError(f"{place} cannot be made: {_reason(error)}") from error
    return made.func, made.args, dict(made.keywords)


def _reason(error: BaseException) -> str:
    """Returns what went wrong, where Hydra says only what it was doing."""
    lines = [str(error).partition("\n")[0].replace(", set env var HYDRA_FULL_ERROR=1 to see chained exception.", ".")]
    causes = []
    while error.__cause__ is not None:
        error = error.__cause__
        causes.append(error)
    if causes:
        lines.append(f"{type(error).__name__}: {error}")
    return " ".join(lines)


def plain_config(cfg: Any) -> dict[str, Any]:
    """Returns a config, a dataclass or a mapping as a dict of plain values, interpolations resolved."""
    from omegaconf import OmegaConf

    if dataclasses.is_dataclass(cfg) and not isinstance(cfg, type):
        return {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    if OmegaConf.is_config(cfg):
        return cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True))
    return {str(name): value for name, value in cfg.items()}


def attribute_config(cfg: Config) -> Any:
    """Returns a config of its own whose keys are attributes too, interpolations resolved."""
    from omegaconf import OmegaConf

    return OmegaConf.create(plain_config(cfg), flags={"allow_objects": True})


_VARIADIC = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _taken(target: Callable[..., Any]) -> set[str] | None:
    """Returns the names of the arguments of a target; None if it takes any."""
    parameters = _parameters(target)
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return {parameter.name for parameter in parameters if parameter.kind not in _VARIADIC}


def _positional_names(target: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in _parameters(target) or () if parameter.kind in kinds]


def _named(target: type) -> set[str]:
    """Returns the arguments that a class and its base classes name."""
    functions = [vars(base)["__init__"] for base in inspect.getmro(target) if "__init__" in vars(base)]
    parameters = [parameter for function in functions for parameter in _parameters(function) or ()]
    return {parameter.name for parameter in parameters if parameter.kind not in _VARIADIC} - {"self"}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Returns the parameters of a function; None of a builtin without a signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _name(target: Callable[..., Any]) -> str:
    return getattr(target, "__qualname__", None) or repr(target)


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
