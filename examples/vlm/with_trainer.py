"""Trains a multimodal model with transformers.Trainer.

    torchrun --nproc-per-node=2 examples/vlm/with_trainer.py --model models/qwen2_vl --data data/captions --packed

Run it again, and it continues after the last checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from conversations import make_dataset, read_options
from transformers import AutoModelForMultimodalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from energon_dali.integrations.transformers import LoaderTrainerMixin


class ConversationTrainer(LoaderTrainerMixin, Trainer):
    """Takes its batches from a dataset of energon_dali."""


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Runs the command line; returns the losses of its steps."""
    options = read_options(__doc__, arguments)
    training: dict[str, Any] = {
        "max_steps": options.steps,
        "save_steps": options.save_steps,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": [],
        "disable_tqdm": True,
    }
    last = get_last_checkpoint(options.out) if options.out.is_dir() else None
    trainer = ConversationTrainer(
        # Weights of the checkpoint: the Trainer misses those whose names a model converts (transformers issue 43701).
        model=AutoModelForMultimodalLM.from_pretrained(last or options.model),
        args=TrainingArguments(str(options.out), **training),
        train_dataset=make_dataset(options),
    )
    trainer.train(resume_from_checkpoint=last)
    trainer.save_model(str(options.out / "final"))
    start = int(last.rpartition("-")[2]) if last else 0
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry and entry["step"] > start]


if __name__ == "__main__":
    main()
