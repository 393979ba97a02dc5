"""Trains a multimodal model with Accelerate.

    torchrun --nproc-per-node=2 examples/vlm/with_accelerate.py --model models/internvl --data data/captions --packed

Run it again, and it continues after the last checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, send_to_device
from conversations import make_dataset, read_options
from transformers import AutoModelForMultimodalLM

from energon_dali import GlobalLoaderState, get_savable_loader


def main(arguments: Sequence[str] | None = None) -> list[float]:
    """Runs the command line; returns the losses of its steps."""
    options = read_options(__doc__, arguments)
    # LLaVA-OneVision does not use the last layer of its vision tower.
    accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
    model: Any = AutoModelForMultimodalLM.from_pretrained(options.model)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)
    loader: Any = get_savable_loader(make_dataset(options))
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(GlobalLoaderState(loader))
    checkpoint, progress = options.out / "checkpoint", options.out / "progress.json"
    step, losses = 0, []
    if progress.exists():
        accelerator.load_state(str(checkpoint))
        step = json.loads(progress.read_text())["step"]
    model.train()
    for batch in loader if step < options.steps else ():
        loss = model(**send_to_device(batch, accelerator.device)).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        losses.append(float(accelerator.reduce(loss.detach(), "mean")))
        if accelerator.is_main_process and (step % 10 == 0 or step == options.steps):
            print(f"step {step}: loss {losses[-1]:.3f}", flush=True)
        if step % options.save_steps == 0:
            accelerator.save_state(str(checkpoint))
            if accelerator.is_main_process:
                progress.write_text(json.dumps({"step": step}))
        if step == options.steps:
            break
    loader.close()
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        accelerator.unwrap_model(model).save_pretrained(options.out / "final")
        print(f"step {step} of {options.steps}: the model is in {options.out / 'final'}")
    # Free DDP before the process group ends. As its last owner, DDP would destroy it, and torch can deadlock then.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.end_training()
    return losses


if __name__ == "__main__":
    main()
