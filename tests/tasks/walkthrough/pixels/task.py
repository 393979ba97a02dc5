# ruff: noqa: UP045 (as users of the guide write it)
from typing import Any, Optional

import torch
import torch.nn.functional as F

from energon_dali.tasks import Instantiator, OptimizerConfig, SchedulerConfig, TaskTransformer
from energon_dali.tasks.vision.igpt.model import _to_sequence, quantize


class ImageGPT(TaskTransformer):
    def __init__(
        self,
        num_pixels: int,
        backbone: Any,
        optimizer: OptimizerConfig,
        scheduler: SchedulerConfig,
        instantiator: Optional[Instantiator] = None,
        classify: bool = False,
    ):
        backbone = instantiator.instantiate(backbone, num_positions=num_pixels * num_pixels)
        super().__init__(backbone, optimizer, scheduler, instantiator)
        self.save_hyperparameters()
        self.classify = classify
        two, four = torch.tensor([-0.6, 0.4]), torch.tensor([-0.9, -0.4, 0.1, 0.6])
        self.register_buffer("centroids", torch.cartesian_prod(two, four, two))

    def common_step(self, prefix, batch):
        x, y = batch
        x = _to_sequence(quantize(x, self.centroids))
        if self.classify:
            clf_logits, logits = self.model(x, classify=True)
        else:
            logits = self.model(x)
        generative = F.cross_entropy(logits.flatten(0, 1), x.flatten())
        if not self.classify:
            return {"loss": generative, "log": {"generative": generative}}
        logs = {"generative": generative, "accuracy": (clf_logits.argmax(dim=1) == y).float().mean()}
        return {"loss": generative + F.cross_entropy(clf_logits, y), "log": logs}
