"""The captioning task: the loss on the tokens of captions, and captions written for images, shown with them."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn import functional

from energon_dali.errors import ConfigError
from energon_dali.shards.storage.atomic_file import atomic_file
from energon_dali.tasks.captioning.backbone import PatchPrefix, PrefixBackbone
from energon_dali.tasks.captioning.rows import IGNORED, CaptioningBatch, packed_causal_mask
from energon_dali.tasks.task import Prefix, TaskTransformer, first_rank_can_run
from energon_dali.tasks.tokenizers import TextCodec

if TYPE_CHECKING:
    import torch

COLUMNS = 4
TILE_PX, TEXT_PX = 200, 84

log = logging.getLogger(__name__)


def images_of(batch: CaptioningBatch, count: int, patch_size: int) -> list[torch.Tensor]:
    """Returns the first images of a batch, put together from their patches: uint8[H, W, 3] on the CPU.

    Args:
        batch: The batch.
        count: Images at most.
        patch_size: Pixels along each side of a patch; sides are multiples of it.
    """
    import torch

    images, start = [], 0
    for rows, columns in batch.grids[:count]:
        patches = batch.patches[start : start + rows * columns].float().cpu()
        start += rows * columns
        cut = patches.view(rows, columns, 3, patch_size, patch_size).permute(0, 3, 1, 4, 2)
        levels = (cut.reshape(rows * patch_size, columns * patch_size, 3) + 1) * 127.5
        images.append(levels.round().clamp(0, 255).to(torch.uint8))
    return images


def write_captions(images: Sequence[torch.Tensor], written: Sequence[str], true: Sequence[str], path: Path) -> None:
    """Writes a PNG with each image, below it the caption that was written (black) and its own (grey).

    Args:
        images: uint8[H, W, 3] each, on the CPU.
        written: Captions of the model.
        true: Captions of the dataset, at least as many.
        path: File; its folder is made.
    """
    from PIL import Image, ImageDraw, ImageFont

    lines = -(-len(images) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * TILE_PX, lines * (TILE_PX + TEXT_PX)), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(10)
    for number, (image, text, own) in enumerate(zip(images, written, true, strict=False)):
        left, top = number % COLUMNS * TILE_PX, number // COLUMNS * (TILE_PX + TEXT_PX)
        photo = Image.fromarray(image.numpy())
        scale = (TILE_PX - 8) / max(photo.size)
        size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
        place = (left + (TILE_PX - size[0]) // 2, top + TILE_PX - 4 - size[1])
        sheet.paste(photo.resize(size, Image.Resampling.BICUBIC), place)
        for row, (words, colour) in enumerate(((text, "black"), (own, "grey"))):
            shown = "\n".join(textwrap.wrap(" ".join(words.split()), 38)[:3])
            draw.multiline_text((left + 4, top + TILE_PX + row * 40), shown, fill=colour, font=font, spacing=1)
    with atomic_file(path) as unfinished:
        sheet.save(unfinished, "PNG")


def show_captions(loggers: Iterable[Any], written: Sequence[str], true: Sequence[str], path: Path, step: int) -> None:
    """Gives captions and the image to loggers that take them (as those of W&B and TensorBoard do), and to Python's log.

    Args:
        loggers: Lightning loggers.
        written: Captions of the model.
        true: Captions of the dataset, at least as many.
        path: The image.
        step: Optimizer steps so far.
    """
    pairs = list(zip(written, true, strict=False))
    log.info("Captions after %d steps, written and true:\n%s", step, "\n".join(f"{w!r} | {t!r}" for w, t in pairs))
    for logger in loggers:
        if hasattr(logger, "log_text"):
            logger.log_text("captions", columns=["written", "true"], data=[list(pair) for pair in pairs], step=step)
        elif hasattr(logger.experiment, "add_text"):
            text = "\n".join(f"- {ours} — *{own}*" for ours, own in pairs)
            logger.experiment.add_text("captions", text, step)
        if hasattr(logger, "log_image"):
            logger.log_image("captions", images=[str(path)], step=step)


class CaptioningTransformer(TaskTransformer):
    """Learns to write the caption after the patches of an image.

    After each validation it writes captions for the first images, greedily, to samples/step*.png in the trainer's
    folder, and to loggers that take text, if the trainer's data module has a `codec` or a `tokenizer`.

    Args:
        backbone: A PrefixBackbone.
        patch_dim: Values of a patch.
        patch_size: Pixels along each side of a patch.
        max_patches_along: Patches along a side of an image at most.
        num_positions: Positions of a text.
        begin_token: Begins a text.
        end_token: Ends a text.
        num_samples: Images that get a caption after each validation; 0 writes none.
        **options: As for TaskTransformer.

    Raises:
        ConfigError: The backbone is of another task.
    """

    backbone: PrefixBackbone  # type: ignore[assignment]

    def __init__(
        self,
        backbone: torch.nn.Module,
        *,
        patch_dim: int,
        patch_size: int,
        max_patches_along: int,
        num_positions: int,
        begin_token: int,
        end_token: int,
        num_samples: int = 12,
        **options: Any,
    ) -> None:
        missing = [name for name in ("embed_dim", "embed") if not hasattr(backbone, name)]
        if missing:
            raise ConfigError(
                f"{type(backbone).__name__} has no {' and no '.join(missing)}: it takes no images before a text. "
                "Choose backbone=multimodal/captioning/gpt, or one with the protocol of PrefixBackbone."
            )
        super().__init__(backbone, **options)
        self.patch_size = patch_size
        self.num_positions = num_positions
        self.begin_token = begin_token
        self.end_token = end_token
        self.num_samples = num_samples
        self.prefix = PatchPrefix(patch_dim, self.backbone.embed_dim, max_patches_along)
        self._shown: list[CaptioningBatch] = []

    def forward(self, batch: CaptioningBatch) -> torch.Tensor:
        """Returns the logits float[R, L, V] of the token that follows each place."""
        rows, length = batch.tokens.shape
        vectors = self.backbone.embed(batch.tokens)
        patches = self.prefix(batch.patches.to(vectors.dtype), batch.patch_positions).to(vectors.dtype)
        vectors = vectors.flatten(0, 1).index_copy(0, batch.patch_places, patches).view(rows, length, -1)
        return self.backbone(vectors, batch.position_ids, packed_causal_mask(batch.cu_seqlens, rows, length))

    def common_step(self, prefix: Prefix, batch: CaptioningBatch) -> torch.Tensor:
        """Returns the mean loss of the tokens of all captions in the batch; logs their accuracy."""
        if prefix == "val" and sum(len(shown.captions) for shown in self._shown) < self.num_samples:
            self._shown.append(batch)
        logits, targets = self(batch).flatten(0, 1), batch.targets.flatten()
        hits = ((logits.argmax(-1) == targets).sum() / batch.num_targets).detach()
        self.log_metrics(prefix, batch, accuracy=hits)
        return functional.cross_entropy(logits.float(), targets, ignore_index=IGNORED)

    def training_step(self, batch: CaptioningBatch, batch_idx: int = 0) -> torch.Tensor:
        """Returns the loss of a training batch and logs it, with several ranks by its share of their tokens.

        DDP takes the mean of the gradients of all ranks, whose batches differ in tokens; by these shares it is that of
        all tokens. A collective call with several ranks.

        Args:
            batch: A batch of the data module.
            batch_idx: Its number in the epoch.
        """
        loss = super().training_step(batch, batch_idx)
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return loss
        of_all = torch.tensor(float(batch.num_targets), device=loss.device)
        dist.all_reduce(of_all)
        return loss * (batch.num_targets * dist.get_world_size() / of_all)

    def batch_size_of(self, batch: CaptioningBatch) -> int:
        """Returns the number of tokens that are predicted, so that means over batches are means over tokens."""
        return batch.num_targets

    @torch.no_grad()
    def write(self, batch: CaptioningBatch, count: int) -> list[list[int]]:
        """Returns captions for the first images of a batch, each token the likeliest, with beginning and end.

        Args:
            batch: Any batch; its own captions are not looked at.
            count: Images at most.
        """
        sizes = [rows * columns for rows, columns in batch.grids[:count]]
        alone = _without_captions(batch, sizes, self.num_positions, self.begin_token)
        prefixes = torch.tensor(sizes, device=alone.tokens.device)
        numbers = torch.arange(len(sizes), device=alone.tokens.device)
        ended = torch.zeros(len(sizes), dtype=torch.bool, device=alone.tokens.device)
        for place in range(self.num_positions - 1):
            shown = _cut(alone, max(sizes) + place + 1)
            following = self(shown)[numbers, prefixes + place].argmax(-1).masked_fill(ended, self.end_token)
            alone.tokens[numbers, prefixes + place + 1] = following
            ended |= following == self.end_token
            if ended.all():
                break
        rows = [tokens[size:] for tokens, size in zip(alone.tokens.tolist(), sizes, strict=True)]
        return [row[: row.index(self.end_token, 1) + 1] if self.end_token in row[1:] else row for row in rows]

    def on_validation_epoch_start(self) -> None:
        """Forgets the images of a validation that was interrupted."""
        self._shown = []

    def on_validation_epoch_end(self) -> None:
        """Writes captions for the first images of the validation, on one rank."""
        batches, self._shown = self._shown, []
        if not batches or self.trainer.sanity_checking or not self.trainer.is_global_zero:
            return
        if not first_rank_can_run(self.trainer):
            return
        codec = self._codec()
        if codec is None:
            return
        images: list[torch.Tensor] = []
        written: list[str] = []
        for batch in batches:
            tokens = self.write(batch, self.num_samples - len(written))
            images += images_of(batch, len(tokens), self.patch_size)
            written += [codec.decode(each) for each in tokens]
        true = [caption for batch in batches for caption in batch.captions]
        path = Path(self.trainer.default_root_dir) / "samples" / f"step{self.global_step}.png"
        write_captions(images, written, true, path)
        show_captions(self.loggers, written, true, path, self.global_step)

    def _codec(self) -> TextCodec | None:
        """Returns what makes texts of tokens: that of the data module, or its tokenizer; None without either."""
        data_module = getattr(self.trainer, "datamodule", None)
        codec: TextCodec | None = getattr(data_module, "codec", None)
        tokenizer = getattr(data_module, "tokenizer", None)
        return TextCodec(tokenizer) if codec is None and tokenizer is not None else codec


def _without_captions(batch: CaptioningBatch, sizes: list[int], text_places: int, begin: int) -> CaptioningBatch:
    """Returns the first images of a batch, each in a row of its own, followed by the beginning of a text.

    No position of a text sees what follows its end, so rows need no end.
    """
    device, length, count = batch.tokens.device, max(sizes) + text_places, len(sizes)
    prefixes = torch.tensor(sizes, device=device)[:, None]
    places = torch.arange(length, device=device).expand(count, length)
    is_patch = places < prefixes
    return CaptioningBatch.derive_from(
        batch,
        tokens=torch.full((count, length), begin, dtype=torch.int64, device=device),
        targets=torch.full((count, length), IGNORED, dtype=torch.int64, device=device),
        position_ids=(places - prefixes + 1).clamp(0, text_places - 1),  # nothing follows the last place
        cu_seqlens=torch.arange(count + 1, dtype=torch.int32, device=device) * length,
        patches=batch.patches[: sum(sizes)],
        patch_positions=batch.patch_positions[: sum(sizes)],
        patch_places=is_patch.flatten().nonzero()[:, 0],
        captions=batch.captions[:count],
        grids=batch.grids[:count],
        num_targets=0,
    )


def _cut(batch: CaptioningBatch, length: int) -> CaptioningBatch:
    """Returns rows of one sample each without their ends; the patches precede those."""
    count, whole = batch.tokens.shape
    rows = batch.patch_places // whole
    return CaptioningBatch.extend(
        batch,
        tokens=batch.tokens[:, :length],
        targets=batch.targets[:, :length],
        position_ids=batch.position_ids[:, :length],
        cu_seqlens=torch.arange(count + 1, dtype=torch.int32, device=batch.tokens.device) * length,
        patch_places=batch.patch_places - rows * (whole - length),
    )
