"""The train command of energon_dali, for a checkout: `python train.py +task=vision/igpt +dataset=vision/igpt/cifar`."""

from __future__ import annotations

from energon_dali.tasks.train import command

if __name__ == "__main__":
    command()
