# ruff: noqa: UP006, UP007, UP035, UP045, B008 (as users of the guide write it)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Union

import torch
from torch.utils.data import random_split

from energon_dali.tasks import TransformerDataConfig, TransformerDataModule
from tests.tasks.walkthrough.pixels.cifar import SmallCIFAR10


@dataclass
class ImageGPTDataConfig(TransformerDataConfig):
    dataset: str = "cifar10"
    data_dir: Optional[Union[str, Path]] = None


def to_small_floats(image):
    """Returns float[3, 8, 8] from -1 to 1, mirrored or not."""
    pixels = torch.from_numpy(image[::4, ::4].copy()).permute(2, 0, 1) / 127.5 - 1
    return pixels.flip(2) if torch.rand(()) < 0.5 else pixels


class ImageGPTDataModule(TransformerDataModule):
    cfg: ImageGPTDataConfig

    def __init__(self, cfg: ImageGPTDataConfig = ImageGPTDataConfig()):
        super().__init__(cfg=cfg)

    @property
    def dataset_cls(self):
        return {"cifar10": SmallCIFAR10}[self.cfg.dataset]

    @property
    def train_transforms(self):
        return to_small_floats

    @property
    def test_transforms(self):
        return to_small_floats

    def prepare_data(self, *args, **kwargs):
        self.dataset_cls(self.cfg.data_dir, train=True, download=True)

    def setup(self, stage: Optional[str] = None):
        whole = self.dataset_cls(self.cfg.data_dir, train=True, download=True, transform=self.train_transforms)
        sizes = [len(whole) - 8, 8]
        self.dataset_train, self.dataset_val = random_split(whole, sizes, generator=torch.Generator().manual_seed(42))
        self.dataset_test = self.dataset_cls(self.cfg.data_dir, train=False, transform=self.test_transforms)

    @property
    def model_data_kwargs(self) -> Dict[str, Any]:
        return {"num_classes": 4}
