"""The modules that the guide of custom tasks imports from hold the names of the package."""

from __future__ import annotations

from omegaconf import OmegaConf

from energon_dali.tasks import HydraInstantiator
from energon_dali.tasks.vision import gpt2, igpt
from energon_dali.tasks.vision.igpt import data, model


def test_data_and_model_hold_the_names_of_the_package() -> None:
    assert data.ImageGPTDataConfig is igpt.ImageGPTDataConfig
    assert data.ImageGPTDataModule is igpt.ImageGPTDataModule
    assert model.GenerativePixelsTransformer is igpt.GenerativePixelsTransformer
    assert model.quantize is igpt.quantize
    assert model._to_sequence.__name__ == "_to_sequence"
    assert gpt2.GPT2 is igpt.GPT2
    assert isinstance(igpt.GPT2(num_layers=1).layers[0], gpt2.Block)


def test_a_config_may_name_these_modules() -> None:
    cfg = OmegaConf.create({"_target_": "energon_dali.tasks.vision.gpt2.GPT2", "embed_dim": 8, "num_layers": 1})
    assert type(HydraInstantiator().instantiate(cfg)) is igpt.GPT2
