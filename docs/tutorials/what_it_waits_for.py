# %% [markdown]
# # Find out what your training waits for
#
# Training is slower than you hoped. Is it the data? If so, is it the disk, the decoding, or your own code? This page slows a
# loader down on purpose, and finds the cause with six tools.
#
# ```bash
# pip install "energon-dali[cuda12] @ git+https://github.com/energon-dali/energon-dali"
# ```

# %%
import shlex
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import energon_dali as ed


def run(command):
    """Runs a command as a terminal does."""
    subprocess.run(shlex.split(command), check=True)


run("energon-dali demo-data data")

# %% [markdown]
# ## 1. What this machine has
#
# `energon-dali doctor` checks the driver, DALI, codecs and cores. It says what is missing, and how to install it.
#
# ## 2. How fast the data could be
#
# `bench` runs your task encoder without a model. It first measures reading, decoding and your hooks (the methods of the encoder)
# separately, then the whole loader with several numbers of workers. It ends with a sentence of advice.
#
# The encoder of this page sleeps for 20 ms per sample, like code that waits for a server.

# %%
ENCODER = """
import time

import energon_dali as ed


class Encoder(ed.DefaultTaskEncoder):
    decoder = ed.SampleDecoder(operations=[ed.Resize((64, 64))])

    def encode_sample(self, sample):
        time.sleep(0.02)
        return sample
"""
Path("encoder.py").write_text(ENCODER)
run(
    "energon-dali bench data/captions --encoder encoder:Encoder --batch-size 8 "
    "--num-workers 1 --decoder own --seconds 0.5"
)

# %% [markdown]
# It prints, among other lines:
#
# ```text
# reading alone                                    38,640.9 samples/s, 972.4 MiB/s
# decoding alone                                      319.8 samples/s
# hooks alone                                          47.2 samples/s
# own, 1 worker, prefetch_factor=2                     32.6 samples/s, first batch 0.36 s
# Your hook encode_sample takes most of it: 92% of the work, and it sleeps or waits for something 100% of that time.
# It needs no core while it waits: more workers help.
# ```
#
# Compare the last rate with the samples that your training takes per second. If the training takes fewer, it does not wait for
# data, and you can stop here.
#
# ## 3. Whether the training waits now
#
# Run the training inside a `LoaderPanel`. In a terminal or a notebook, the panel shows twice per second what the loader is doing;
# in the log of a cluster it prints a line every 30 seconds. Here, a step of the "model" takes 10 ms.

# %%
sys.path.insert(0, ".")  # encoder.py is in the current folder
from encoder import Encoder


def train(num_workers, trace_path=None):
    """Trains for 40 steps, and returns the loader's statistics."""
    dataset = ed.get_train_dataset(
        "data/captions",
        batch_size=4,
        shuffle_buffer_size=100,
        task_encoder=Encoder(),
        worker_config=ed.WorkerConfig.default_worker_config(
            num_workers, num_streams=8, trace_path=trace_path
        ),
    )
    with ed.get_loader(dataset) as loader, ed.LoaderPanel(loader):
        for batch in islice(loader, 40):
            time.sleep(0.01)  # the model
        return loader.stats()


before = train(num_workers=1, trace_path="trace.json")

# %% [markdown]
# ## 4. What it waited for
#
# `loader.stats()` returns the same numbers to your program. `blocked_share` is the share of the time that the training waited for
# batches. Below 0.02, a faster loader gains next to nothing. `stage_seconds` is the time that the loader's processes spent in
# each stage, and `cpu_seconds` how much of it they computed.

# %%
print(before.blocked_share > 0.3)  # True
slowest = max(before.hooks, key=before.stage_seconds.get)
print(slowest)  # encode_sample
print(before.cpu_seconds[slowest] < 0.2 * before.stage_seconds[slowest])  # True

# %% [markdown]
# The hook takes most of the time, but it waits instead of computing. So more workers help, even without more cores. If it
# computed, you would have to make the hook itself faster.

# %%
after = train(num_workers=8)
print(after.blocked_share < before.blocked_share)  # True

# %% [markdown]
# ## 5. What happened before it waited
#
# If waits come and go, look at a trace: it shows every wait of the training, and what each process did at that time. Open
# `trace.json` at [ui.perfetto.dev](https://ui.perfetto.dev): the file stays in your browser. The mark in the lane `advice` says
# what limited the run.

# %%
print(Path("trace.json").stat().st_size > 10_000)  # True

# %% [markdown]
# ## 6. What a faster loader could bring
#
# Before you spend a week on the data, measure the most that you could gain. `UpperBoundLoader` loads a few batches, and yields
# them again and again.

# %%
dataset = ed.get_train_dataset("data/captions", batch_size=4, task_encoder=Encoder())
with ed.UpperBoundLoader(ed.get_loader(dataset), num_batches=4) as loader:
    batches = islice(loader, 40)
    next(batches)
    start = time.perf_counter()
    for batch in batches:
        time.sleep(0.01)  # the model
    seconds = time.perf_counter() - start
print(f"{39 / seconds:.0f} steps per second with perfect data")

# %% [markdown]
# ## What next
#
# - Prometheus, Grafana, TensorBoard, and every number: [observing a run](../observing.md)
# - `energon-dali tune` finds the number of workers and the decoder for you: [measure and tune](../bench.md)
# - Ranks that wait for each other rather than for data: [balance](../balance.md)
# - A slow bucket: [reading remote data](../remote.md) and the [shard cache](../shard-cache.md)
