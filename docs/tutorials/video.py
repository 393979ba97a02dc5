# %% [markdown]
# # Train on clips of videos
#
# A model sees two seconds of a video at a time. This page packs videos, and loads random clips of them with their audio. Of a
# long video, only the part that a clip needs is read.
#
# ```bash
# pip install "energon-dali[cuda12] @ git+https://github.com/energon-dali/energon-dali"
# ```

# %%
import shlex
import shutil
import subprocess
from pathlib import Path


def run(command):
    """Runs a command as a terminal does."""
    subprocess.run(shlex.split(command), check=True)


run("energon-dali demo-data data")  # data/video.mp4: ten seconds, with audio

# %% [markdown]
# ## Pack the videos
#
# Your videos are files in a folder, perhaps with captions next to them: `a.mp4` and `a.txt`. Here they are copies of one video.

# %%
folder = Path("videos")
folder.mkdir(exist_ok=True)
for number in range(6):
    shutil.copy("data/video.mp4", folder / f"{number}.mp4")
    (folder / f"{number}.txt").write_text(f"video {number}")
run("energon-dali pack videos clips --overwrite")  # what an earlier run wrote

# %% [markdown]
# ## Index them
#
# To start in the middle of a video, a decoder needs the last key frame before that point. `prepare-media` scans every file once
# and records where its packets and key frames are. From an hour of video, a loader then reads only the seconds that it needs.
# (Files below 256 KiB, such as this one, are read whole.)

# %%
run("energon-dali prepare-media clips --media-metadata-by-extension")

# %% [markdown]
# ## Say which clips you want
#
# `VideoClips` describes them: two per video, each of two seconds with eight frames, at random times. The times are drawn from
# the seed, the sample and the epoch, so a resumed run gets the same clips.
#
# The package has no sample type with a video and a caption, so each sample arrives as a dict of its files, called a crude
# sample. A **cooker** is a function that turns it into a sample of your own type.

# %%
import torch

import energon_dali as ed


@ed.edataclass
class Clip(ed.Sample):
    video: object
    caption: str


@ed.stateless
def cook(parts):
    return Clip(**ed.basic_sample_keys(parts), video=parts["mp4"], caption=parts["txt"])


class Encoder(ed.DefaultTaskEncoder):
    cookers = [ed.Cooker(cook)]
    decoder = ed.SampleDecoder(
        av_decode=ed.VideoClips(
            num_clips=2,
            frames_per_clip=8,
            clip_duration_seconds=2.0,
            sampling="random",
            size=(112, 112),
            audio=True,
        )
    )

    def batch(self, samples):
        return {
            "frames": torch.stack([sample.video.frames for sample in samples]),
            "seconds": torch.stack([sample.video.timestamps for sample in samples]),
            "audio": [sample.video.audio for sample in samples],
            "caption": [sample.caption for sample in samples],
        }


# %% [markdown]
# ## Load them

# %%
dataset = ed.get_train_dataset(
    "clips",
    batch_size=3,
    shuffle_buffer_size=100,
    task_encoder=Encoder(),
    worker_config=ed.WorkerConfig.default_worker_config(num_workers=2),
)
with ed.get_loader(dataset) as loader:
    batch = next(iter(loader))
print(batch["frames"].shape)  # torch.Size([3, 2, 8, 3, 112, 112])
print(batch["frames"].dtype)  # torch.uint8
print(batch["audio"][0].shape)  # torch.Size([2, 1, 88200])
print(batch["seconds"].shape)  # torch.Size([3, 2, 8])

# %% [markdown]
# The batch has three videos, two clips per video, and eight frames per clip. `audio` holds the audio of each clip: two seconds of
# one channel, 44,100 values per second. `seconds` holds the time of each frame in its video.
#
# To train, move the frames to the device as bytes, a quarter of the size of floats, and convert them there:

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
frames = batch["frames"].to(device, non_blocking=True).float() / 255
print(float(frames.min()) >= 0 and float(frames.max()) <= 1)  # True

# %% [markdown]
# ## What next
#
# - On a GPU host, `DaliDecoder(av_decode=...)` takes the same options, and decodes on the GPU what its hardware supports. This
#   has run on two GPUs so far ([first runs](../gpu-notes.md)).
# - Clips that your code chooses, formats, and what each costs: [video](../video.md)
# - Frames and tokens as a Hugging Face video processor returns them: `VideoClips(front_end=VideoFrontEnd.from_processor(...))`,
#   as in [a vision-language model, packed](vision_language.py)
# - Videos in a bucket: [several nodes, and data in a bucket](several_nodes.py)
