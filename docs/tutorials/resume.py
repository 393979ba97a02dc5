# %% [markdown]
# # Kill a training, and resume it on other ranks
#
# A node fails, and your job has to continue on the others. No image may be repeated or lost, and each step must have the images
# that it would have had. This page kills a training with `kill -9` and continues it on another number of processes. Then it
# compares every step with an undisturbed run.
#
# ```bash
# pip install "energon-dali[cuda12] @ git+https://github.com/energon-dali/energon-dali"
# ```

# %%
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import torch


def run(command):
    """Runs a command as a terminal does."""
    subprocess.run(shlex.split(command), check=True)


for folder in ("killed", "undisturbed"):  # of an earlier run of this page
    shutil.rmtree(folder, ignore_errors=True)
run("energon-dali demo-data data")
run(
    "energon-dali pack data/photos photo-shards --sample-type ImageClassificationSample"
)

# %% [markdown]
# ## The training
#
# This is an ordinary DistributedDataParallel training. Three things make it resumable:
#
# - **`global_batch_size=24`**: a step of the job is a fixed set of 24 images, on any number of ranks (processes). Two ranks take
#   12 images each, three take 8.
# - **The loader's state is in the checkpoint**, next to the weights and the optimizer. The state of one rank is enough, so rank 0
#   saves it for all.
# - **The checkpoint is never half-written**: it is saved under another name and then renamed. If the process is killed while it
#   writes, the previous checkpoint is still there.
#
# ![A sequence of images; each step is a range of it, dealt to four ranks, then to three](../images/global-batches.svg)
#
# Only this page needs the files with process ids, and the log of each step's images.

# %%
TRAIN = """
import json, os, sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import energon_dali as ed


class Encoder(ed.DefaultTaskEncoder):
    decoder = ed.SampleDecoder(operations=[ed.RandomResizedCrop(32)])


steps, folder = int(sys.argv[1]), Path(sys.argv[2])
folder.mkdir(exist_ok=True)
dist.init_process_group("gloo")  # "nccl" on GPUs
rank, ranks = dist.get_rank(), dist.get_world_size()
(folder / f"pid-{rank}").write_text(str(os.getpid()))

dataset = ed.get_train_dataset(
    "photo-shards",
    global_batch_size=24,
    batch_size=24 // ranks,
    shuffle_buffer_size=1000,
    task_encoder=Encoder(),
    worker_config=ed.WorkerConfig.default_worker_config(num_workers=0),
)
torch.manual_seed(0)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

with ed.get_savable_loader(dataset) as loader:
    checkpoint = folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    for batch in loader:
        loss = cross_entropy(model(batch.image), torch.tensor(batch.label))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        seen = [None] * ranks
        dist.all_gather_object(seen, batch.__key__)
        if rank == 0:
            parts = {"model": model, "optimizer": optimizer, "loader": loader}
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state, folder / "checkpoint.new")
            os.replace(folder / "checkpoint.new", checkpoint)
            with open(folder / "log.jsonl", "a") as log:
                keys = sorted(key for part in seen for key in part)
                line = {"step": batch.step, "ranks": ranks, "images": keys}
                print(json.dumps(line), file=log, flush=True)
        if batch.step + 1 == steps:
            break
dist.barrier()  # else gloo may hang at its end, after all_gather_object (PyTorch 2.13)
dist.destroy_process_group()
"""
Path("train.py").write_text(TRAIN)


# %% [markdown]
# ## Kill it
#
# Two ranks start. After the fifth step, rank 1 gets `SIGKILL`. No program can catch this signal, so the rank saves nothing, as
# if its machine had lost power. torchrun notices, and stops the other rank.


# %%
def read_log(folder):
    """Returns the lines of a log by step; if a step was repeated, its last line."""
    path = Path(folder, "log.jsonl")
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["step"]: line for line in map(json.loads, lines)}


job = subprocess.Popen(
    shlex.split("torchrun --standalone --nproc-per-node 2 train.py 100000 killed")
)
log = Path("killed", "log.jsonl")
while job.poll() is None and not (log.exists() and log.read_text().count("\n") >= 5):
    time.sleep(0.1)
os.kill(int(Path("killed", "pid-1").read_text()), signal.SIGKILL)
print(job.wait() != 0)  # True
print(len(read_log("killed")) >= 5)  # True

# %% [markdown]
# ## Continue on three ranks
#
# Run the same program on three ranks instead of two. It finds the checkpoint and continues with the step after it. Four more
# steps are enough here.

# %%
steps = len(read_log("killed")) + 4
run(f"torchrun --standalone --nproc-per-node 3 train.py {steps} killed")

# %% [markdown]
# ## Compare
#
# One rank runs the same number of steps, undisturbed. Every step has the same images, and the weights agree up to rounding:
# three ranks add their gradients in another order than one.

# %%
run(f"torchrun --standalone --nproc-per-node 1 train.py {steps} undisturbed")

killed, undisturbed = read_log("killed"), read_log("undisturbed")
print(sorted({line["ranks"] for line in killed.values()}))  # [2, 3]
same = [line["images"] == undisturbed[step]["images"] for step, line in killed.items()]
print(len(same) == steps, all(same))  # True True

parts = [torch.load(f"{name}/checkpoint.pt") for name in ("killed", "undisturbed")]
weights = [part["model"]["module.1.weight"] for part in parts]
print(torch.allclose(*weights, atol=1e-5))  # True

# %% [markdown]
# ## In your training
#
# - Save every few minutes, not after each step. Steps after the last checkpoint are computed again, with the same images.
# - `torchrun --max-restarts 10` restarts failed ranks for you; with `--nnodes 1:4`, on one to four nodes, as available.
# - Without `global_batch_size`, a state restores onto any number of ranks and workers that divides the number of streams:
#   [state](../state.md).
# - If a batch is too large for a GPU, give a smaller `batch_size`: a rank then takes several micro-batches per step, and
#   `batch.is_last_of_step` is true when it is time to call the optimizer ([global batches](../global-batches.md)).
# - FSDP2, Accelerate, `transformers.Trainer`, Lightning and Ray: [other trainers](../trainers.md)
