# %% [markdown]
# # From images to a trained model
#
# You have a folder of photographs, with a sub-folder for each class. On this page, a model learns to recognise the classes.
# The page runs in a minute, without a GPU. (On a machine without one, install a CPU build of torch first:
# [installation](../installation.md).)
#
# ```bash
# pip install "energon-dali[cuda12] @ git+https://github.com/energon-dali/energon-dali" scikit-image scikit-learn
# ```

# %%
import shlex
import subprocess


def run(command):
    """Runs a command as a terminal does."""
    subprocess.run(shlex.split(command), check=True)


run("energon-dali demo-data data")  # makes data/photos; yours may be anywhere

# %% [markdown]
# The photographs come with scikit-image and scikit-learn. If these are not installed, `demo-data` draws shapes instead.
#
# ## Pack the images
#
# Training reads files in a random order, again and again, and most file systems are slow at that. So `pack` writes the files
# into a few large tar files, called **shards**, and an index of where each sample is.
#
# With `ImageClassificationSample`, each sub-folder is a class. `--split` sets a fifth of the images aside for validation.

# %%
run(
    "energon-dali pack data/photos class-shards --sample-type ImageClassificationSample "
    "--split train=0.8,val=0.2 --shuffle 1"
)

# %% [markdown]
# `energon-dali preview class-shards` shows samples in the terminal, and `energon-dali view class-shards` in the browser.
#
# ## Define what happens to an image
#
# A **task encoder** defines everything that happens between a file and a batch. This one decodes each image, crops a random
# part, and mirrors it half of the time. `DaliDecoder` uses the GPU if there is one, and the CPU otherwise.
#
# Validation uses the whole image: with random crops, its result would be random too.

# %%
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import energon_dali as ed


class TrainEncoder(ed.DefaultTaskEncoder):
    decoder = ed.DaliDecoder(
        operations=[ed.RandomResizedCrop(64, scale=(0.3, 1.0)), ed.HorizontalFlip()]
    )


class ValEncoder(ed.DefaultTaskEncoder):
    decoder = ed.DaliDecoder(operations=[ed.Resize((64, 64))])


# %% [markdown]
# ## Load batches
#
# The training data is shuffled and endless: after the last image it starts again in another order. The validation data ends
# after one pass. Two worker processes read ahead while the model computes. Each has half of the 50 validation images, so a
# validation batch holds 25.

# %%
workers = ed.WorkerConfig.default_worker_config(num_workers=2)
train_set = ed.get_train_dataset(
    "class-shards",
    batch_size=32,
    shuffle_buffer_size=1000,
    task_encoder=TrainEncoder(),
    worker_config=workers,
)
val_set = ed.get_val_dataset(
    "class-shards", batch_size=32, task_encoder=ValEncoder(), worker_config=workers
)

with ed.get_loader(val_set) as loader:
    batch = next(iter(loader))
print(batch.image.shape, batch.image.dtype)  # torch.Size([25, 3, 64, 64]) torch.float32
names = dict(zip(batch.label, batch.label_name))  # such as {0: "astronaut", 1: "cat"}
print(len(names) >= 3)  # True

# %% [markdown]
# Before you train, look at what the model will see. (In a notebook, a cell that ends with `batch`
# [shows it](../reference/notebooks.md).)

# %%
from PIL import Image

with ed.get_loader(train_set) as loader:
    batch = next(iter(loader))
row = torch.cat(list(batch.image[:10]), dim=2)  # ten images next to each other
Image.fromarray((row * 255).byte().permute(1, 2, 0).numpy()).save("batch.png")

# %% [markdown]
# ![Ten random parts of photographs: a cat, cups of coffee, a temple, rockets](../images/tutorial-batch.png)
#
# ## Train
#
# The loader yields batches; the training loop is yours. `.to(device)` moves a tensor to the device of the model. If DALI
# decoded it on that GPU, it is there already, and nothing is copied.

# %%
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(
    nn.Conv2d(3, 16, 5, stride=4),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, stride=2),
    nn.ReLU(),
    nn.Flatten(),
    nn.LazyLinear(6),
).to(device)
model(batch.image.to(device))  # gives the last layer its size
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with ed.get_savable_loader(train_set) as loader:
    for step, batch in zip(range(1, 81), loader):
        labels = torch.tensor(batch.label, device=device)
        loss = cross_entropy(model(batch.image.to(device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.2f}")
    state = loader.state_dict()  # where the loader is in the data; see below

# %% [markdown]
# ## Validate
#
# Each image of the validation part is counted once.

# %%
right = total = 0
with ed.get_loader(val_set) as loader, torch.no_grad():
    for batch in loader:
        labels = torch.tensor(batch.label, device=device)
        right += (model(batch.image.to(device)).argmax(1) == labels).sum().item()
        total += len(labels)
print(f"{right} of {total} are right")
print(right / total > 0.9)  # True

# %% [markdown]
# ## Save the model, and the position in the data
#
# Without the loader's state, the next run would start the data from the beginning, and the model would see some images more
# often than others. With it, the next run continues with the batch that would have come.

# %%
weights, moments = model.state_dict(), optimizer.state_dict()
torch.save({"model": weights, "optimizer": moments, "loader": state}, "checkpoint.pt")

saved = torch.load("checkpoint.pt")
with ed.get_savable_loader(train_set) as loader:
    loader.load_state_dict(saved["loader"])
    batch = next(iter(loader))  # the 81st batch
print(len(batch.image))  # 32

# %% [markdown]
# ## What next
#
# - Captions, tables, Parquet files and LLaVA's conversations: [from images to shards](../pack.md)
# - Your own fields and labels: [task encoders](../task-encoders.md)
# - [Kill a training and resume it](resume.py), on another number of processes
# - [Find out what your training waits for](what_it_waits_for.py)
