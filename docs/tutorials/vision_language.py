# %% [markdown]
# # A vision-language model, packed
#
# You fine-tune a model from Hugging Face on images with text. Its processor turns an image into pixel values for the model and a
# number of placeholder tokens in the text. Here the decoder computes both. The header of the file is enough to count the
# tokens, so texts are packed before any image is decoded.
#
# ```bash
# pip install "energon-dali[cuda12,transformers] @ git+https://github.com/energon-dali/energon-dali"
# ```

# %%
import shlex
import subprocess

demo_data = "energon-dali demo-data data"  # makes data/captions: images with captions
subprocess.run(shlex.split(demo_data), check=True)

# %% [markdown]
# ## Use your processor
#
# `FrontEnd.from_processor` takes the processor, or the folder that it was saved to. The front end returns the same values as the
# processor, bit for bit. An unsupported option that would change them raises an error ([supported models](../vlm.md)).
#
# This page runs offline, so its configuration is written out, with few pixels per image. In your program, use
# `AutoProcessor.from_pretrained("Qwen/Qwen2-VL-2B-Instruct")`.

# %%
import energon_dali as ed

IMAGE, END = 256, 257  # the other tokens are bytes

processor = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "min_pixels": 3136,
    "max_pixels": 24 * 28 * 28,
}
front_end = ed.FrontEnd.from_processor(processor, image_token_id=IMAGE)
print(front_end.layout(width=1024, height=768).num_tokens)  # 20


def tokenize(text):  # yours: tokenizer.encode(text)
    pieces = text.split(front_end.image_token)
    return [token for piece in pieces for token in (*piece.encode(), IMAGE)][:-1]


# %% [markdown]
# ## Write the task encoder
#
# A sample passes through these methods in order:
#
# 1. `preencode_sample` makes the tokens. `sample.image` is still encoded: it has a layout (grid and tokens), but no pixels.
#    `expand_text` writes as many placeholders into the text as the image has tokens.
# 2. `select_samples_to_pack` receives many samples and chooses which of them share a row. `SequencePacker` fills rows of 256
#    tokens.
# 3. The images of a row are decoded together, and `postencode_sample` receives each decoded sample.
# 4. `pack_selected_samples` concatenates the samples of a row. It also records where each begins, so that attention stays within
#    each sample.


# %%
class Encoder(ed.TaskEncoder):
    decoder = ed.DaliDecoder(front_end=front_end)
    packer = ed.SequencePacker(256)

    def __init__(self, rope):
        self.rope = rope

    @ed.stateless
    def preencode_sample(self, sample):
        question = f"{front_end.image_token}What is this? "
        prompt = tokenize(front_end.expand_text(question, [sample.image.layout]))
        answer = [*tokenize(sample.caption), END]
        return {
            "__key__": sample.__key__,
            "__restore_key__": sample.__restore_key__,
            "image": sample.image,
            "input_ids": prompt + answer,
            "labels": [-100] * len(prompt) + answer,  # only the answer is learned
        }

    @ed.stateless
    def postencode_sample(self, sample):
        return sample

    def select_samples_to_pack(self, samples):
        return self.packer(samples)

    @ed.stateless
    def pack_selected_samples(self, samples):
        vision = ed.batch_vision(
            [sample["image"] for sample in samples], for_model=True
        )
        return {
            **ed.pack_sequences(samples, position_ids=self.positions).for_model(),
            **vision,
        }

    def positions(self, sample):  # Qwen-VL counts in time, height and width
        return self.rope.positions(
            sample["input_ids"], image_grid_thw=[sample["image"].layout.grid]
        )[0]

    def batch(self, packs):
        return packs[0]


# %% [markdown]
# ## Make the model
#
# This is a tiny Qwen2-VL with random weights, so that the page trains in seconds. In your program, use
# `Qwen2VLForConditionalGeneration.from_pretrained(...)`.

# %%
import torch
from transformers import Qwen2VLConfig, Qwen2VLForConditionalGeneration

text_config = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": None,
    "eos_token_id": END,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10_000.0,
        "mrope_section": [2, 3, 3],
    },
}
config = Qwen2VLConfig(
    text_config=text_config,
    vision_config={
        "depth": 1,
        "embed_dim": 32,
        "num_heads": 2,
        "mlp_ratio": 2,
        "hidden_size": 64,
    },
    image_token_id=IMAGE,
    video_token_id=258,
    vision_start_token_id=259,
)
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = Qwen2VLForConditionalGeneration(config).to(device)

# %% [markdown]
# ## Load packs
#
# Rows are chosen from 64 samples at a time (`packing_buffer_size`). These wait as encoded files and token ids, which take a
# fraction of the memory of decoded images.

# %%
dataset = ed.get_train_dataset(
    "data/captions",
    batch_size=1,
    packing_buffer_size=64,
    shuffle_buffer_size=1000,
    task_encoder=Encoder(ed.MultimodalRope.from_config(config)),
    worker_config=ed.WorkerConfig.default_worker_config(num_workers=2),
)
with ed.get_loader(dataset) as loader:
    batch = next(iter(loader))
print(sorted(batch)[1:4])  # ['cu_seq_lens_q', 'image_grid_thw', 'input_ids']
print(200 < batch["input_ids"].shape[1] <= 256)  # True
print(len(batch["cu_seq_lens_q"]) - 1 == len(batch["image_grid_thw"]) > 1)  # True

# %% [markdown]
# `cu_seq_lens_q` holds the borders between the samples of a row, and `image_grid_thw` the grid of patches of each image. The model
# takes both as they are.
#
# ## Train

# %%
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
with ed.get_savable_loader(dataset) as loader:
    for step, batch in zip(range(30), loader):
        batch = {
            name: value.to(device) if torch.is_tensor(value) else value
            for name, value in batch.items()
        }
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
print(f"loss {losses[0]:.2f}, after {len(losses)} steps {losses[-1]:.2f}")
print(losses[-1] < 0.7 * losses[0])  # True

# %% [markdown]
# ## What next
#
# - All supported processors, and how to add your own: [vision-language models](../vlm.md)
# - `transformers.Trainer`, Accelerate and Lightning with Qwen2-VL, InternVL and LLaVA-OneVision: [examples](../../examples)
# - What to do if ranks wait for the one with the most images: [balance](../balance.md)
# - [Video](video.py): the processor's frames, times and tokens come from `VideoFrontEnd` in the same way
