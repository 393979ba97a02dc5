# %% [markdown]
# # Several nodes, and data in a bucket
#
# The data is in a bucket, and two machines train on it. Each keeps what it has read on its own disk, and never fetches it again.
#
# You need no cluster: two torchrun commands on this machine act as two nodes, and a small server acts as the bucket.
#
# ```bash
# pip install "energon-dali[cuda12] @ git+https://github.com/energon-dali/energon-dali" "moto[server]"
# ```

# %%
import os
import shlex
import shutil
import socket
import subprocess
from pathlib import Path


def run(command):
    """Runs a command as a terminal does."""
    subprocess.run(shlex.split(command), check=True)


def free_port():
    """Returns the number of a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


for node in range(2):  # of an earlier run of this page
    shutil.rmtree(f"disk-of-node-{node}", ignore_errors=True)
run("energon-dali demo-data data")

# %% [markdown]
# ## A bucket
#
# On a cluster, set the keys of your store, and its endpoint if it is not AWS. Google Cloud, Azure and web servers work too:
# [storage by URL](../storage.md).

# %%
import logging
import urllib.request

from moto.server import ThreadedMotoServer

logging.getLogger("werkzeug").setLevel(logging.ERROR)  # or it prints every request
port = free_port()
server = ThreadedMotoServer("127.0.0.1", port, verbose=False)
server.start()

os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
os.environ["AWS_REGION"] = "us-east-1"
os.environ["AWS_ACCESS_KEY_ID"] = os.environ["AWS_SECRET_ACCESS_KEY"] = "any"
bucket = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
urllib.request.urlopen(bucket).close()

# %% [markdown]
# `pack` writes to a bucket just as it writes to a folder.

# %%
run(
    "energon-dali pack data/photos s3://bucket/shards --max-samples 64 "
    "--sample-type ImageClassificationSample"
)

# %% [markdown]
# ## The training
#
# The program does not mention nodes: `default_worker_config` takes the rank and the number of ranks from torchrun, and each rank
# reads its share of each step. `shard_cache` is a folder on the node's own disk with a limit on its size. All ranks and workers
# of the node share it.

# %%
TRAIN = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

import energon_dali as ed


class Encoder(ed.DefaultTaskEncoder):
    decoder = ed.SampleDecoder(operations=[ed.Resize((32, 32))])


dist.init_process_group("gloo")  # "nccl" on GPUs
rank, ranks = dist.get_rank(), dist.get_world_size()
dataset = ed.get_train_dataset(
    "s3://bucket/shards",
    global_batch_size=32,
    batch_size=32 // ranks,
    shuffle_buffer_size=1000,
    task_encoder=Encoder(),
    worker_config=ed.WorkerConfig.default_worker_config(num_workers=0),
)
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 6))
model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

cache = ed.ShardCache(os.environ["LOCAL_DISK"], max_bytes="1GB")
with ed.get_savable_loader(dataset, shard_cache=cache) as loader:
    for batch in loader:
        loss = cross_entropy(model(batch.image), torch.tensor(batch.label))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if batch.step == 16:  # two epochs of 256 images
            break
    counts = loader.stats().counts

places = ("remote", "local")
read = torch.tensor([counts.get(f"shard_cache.bytes_{place}", 0) for place in places])
dist.all_reduce(read)  # of all ranks
if rank == 0:
    remote, local = (read / 1e6).tolist()
    print(f"{remote:.0f} MB from the bucket, {local:.0f} MB from local disks", flush=True)
dist.barrier()  # else gloo may abort at its end, after all_reduce (PyTorch 2.13)
dist.destroy_process_group()
"""
Path("train.py").write_text(TRAIN)

# %% [markdown]
# ## Two nodes
#
# Each node runs one command. `--node-rank` is the number of the node. `--master-addr` is the address of the first node, and
# `--master-port` a free port on it, where all nodes meet.


# %%
def train_on_two_nodes():
    """Runs the command of both nodes, and returns what they print."""
    command = f"torchrun --nnodes 2 --master-addr 127.0.0.1 --master-port {free_port()}"
    nodes = [
        subprocess.Popen(
            shlex.split(f"{command} --node-rank {node} --nproc-per-node 1 train.py"),
            env={**os.environ, "LOCAL_DISK": f"disk-of-node-{node}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    return "".join(node.communicate()[0] for node in nodes)


first = train_on_two_nodes()
print(first)

# %% [markdown]
# Now the job starts again, as after a failure. The caches are still on the nodes' disks, so nothing is read from the bucket.

# %%
again = train_on_two_nodes()
print(again)
print(again.startswith("0 MB from the bucket"), first.startswith("0 MB"))  # True False

server.stop()

# %% [markdown]
# ## On your cluster
#
# **By hand**, run this on the first node, and the same with `--node-rank 1` on the second:
#
# ```bash
# torchrun --nnodes 2 --node-rank 0 --master-addr node1 --master-port 29500 --nproc-per-node 8 train.py
# ```
#
# **Slurm** starts one task per node, and each task starts torchrun. With `--rdzv-backend c10d` the nodes number themselves, so
# the command is the same on all of them. Save this as `train.slurm`, and run `sbatch train.slurm`:
#
# ```bash
# #!/usr/bin/env bash
# #SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=128 --exclusive
# first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# srun --kill-on-bad-exit=1 torchrun --nnodes "$SLURM_JOB_NUM_NODES" --nproc-per-node 8 \
#     --rdzv-backend c10d --rdzv-endpoint "$first:29500" --rdzv-id "$SLURM_JOB_ID" train.py
# ```
#
# [`examples/eight_gpus`](../../examples/eight_gpus) has a longer script. The torchrun commands are tested; the Slurm scripts have
# not run under Slurm yet.
#
# **Ray** starts the processes itself, and initialises torch.distributed in each. Put the training into a function, and create
# the dataset inside it:
#
# ```py
# from ray.train import ScalingConfig
# from ray.train.torch import TorchTrainer
#
# TorchTrainer(train, scaling_config=ScalingConfig(num_workers=16, use_gpu=True)).fit()
# ```
#
# ## What next
#
# - [Kill a training, and resume it on other ranks](resume.py)
# - How far ahead a bucket is read, and what requests cost: [reading remote data](../remote.md)
# - What a full cache keeps: [shard cache](../shard-cache.md)
# - Tensor, context and pipeline parallelism, with which several ranks take the same batch: [parallelism](../parallelism.md)
# - The cores, memory and network that a node needs: [what a cluster needs](../capacity.md)
