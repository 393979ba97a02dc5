"""The task of Image GPT: to predict the next pixel, and the class if asked.

Images are sequences: a pixel is the number of its palette colour, an image its pixels row by row. They are drawn pixel
by pixel, each from the distribution that the model gives for it.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import UNITS_PER_LEVEL, Palette, color_quantize
from energon_dali.tasks.task import Prefix, TaskTransformer
from energon_dali.tasks.vision.igpt.samples import SamplesCallback

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    from energon_dali.tasks.instantiator import Config, Instantiator
    from energon_dali.tasks.vision import PictureBatch


def quantize(x: torch.Tensor, centroids: Palette | torch.Tensor) -> torch.Tensor:
    """Returns the number of the nearest colour of each pixel: integers [B, H, W], new, on the device of the images.

    Args:
        x: uint8[B, 3, H, W], levels 0..255; or float[B, C, H, W] in the units of `centroids`, as transforms make them.
        centroids: The palette; or float[K, C]. For uint8 images these are levels 0..255, rounded to eighths.

    Raises:
        ConfigError: The images are not of such a shape and dtype, or the centroids have other channels.
    """
    if x.ndim == 4 and x.is_floating_point():
        if isinstance(centroids, Palette):
            raise ConfigError(
                f"quantize was given images of {x.dtype} and a palette in eighths of levels 0..255. Give images "
                "uint8[B, 3, H, W], or centroids float[K, 3] in the units of the images."
            )
        if centroids.ndim != 2 or centroids.shape[1] != x.shape[1]:
            raise ConfigError(
                f"quantize was given {x.shape = } and {centroids.shape = }. Centroids are float[K, C], with the C "
                "channels of images float[B, C, H, W]."
            )
        pixels = x.permute(0, 2, 3, 1)
        colors = centroids.detach().to(x.device, x.dtype)
        # |p - c|^2 without |p|^2, which is the same for all colours; no tensor of pixels times colours times channels.
        distances = (colors * colors).sum(dim=1) - 2 * (pixels @ colors.t())
        nearest: torch.Tensor = distances.argmin(dim=-1)
        return nearest
    if x.dtype != torch.uint8 or x.ndim != 4 or x.shape[1] != 3:
        raise ConfigError(
            f"quantize was given {x.shape = }, {x.dtype = }. It takes images uint8[B, 3, H, W], as "
            'image_decode="torchrgb8" gives them, or float[B, C, H, W].'
        )
    palette = centroids if isinstance(centroids, Palette) else Palette.from_levels(centroids.detach().cpu().numpy())
    indices: torch.Tensor = color_quantize(x.permute(0, 2, 3, 1).contiguous(), palette)
    return indices


def _to_sequence(x: torch.Tensor) -> torch.Tensor:
    """Returns int64[H * W, B]: the pixels of images int[B, H, W] row by row, sequences first, as models read them."""
    return x.flatten(1).t().contiguous().long()


def to_images(tokens: torch.Tensor, palette: Palette, height: int, width: int) -> torch.Tensor:
    """Returns the images of sequences: uint8[B, 3, height, width], each pixel in its palette colour.

    Args:
        tokens: int64[height * width, B].
        palette: The colours; they are rounded to whole levels.
        height: In pixels.
        width: In pixels.
    """
    units = torch.tensor(palette.units, device=tokens.device)
    levels = ((units + UNITS_PER_LEVEL // 2) // UNITS_PER_LEVEL).clamp_(0, 255).to(torch.uint8)  # uint8[K, 3]
    images: torch.Tensor = levels[tokens.t()].reshape(-1, height, width, 3).permute(0, 3, 1, 2)
    return images


def draw_pixels(
    backbone: torch.nn.Module, known: torch.Tensor, length: int, *, seed: int, temperature: float = 1.0
) -> torch.Tensor:
    """Returns sequences int64[length, B] that begin with the known pixels, on their device.

    The same seed gives the same images. The model is in evaluation mode meanwhile and back in its mode afterwards,
    and no global random state is used. With a model that has `start` and `extend`, as GPT2 has, a pixel costs one
    position; else the whole sequence so far.

    Args:
        backbone: Gives logits float[T, B, colours] of tokens int64[T, B], each from those before it.
        known: int64[n, B], 0 <= n <= length; n = 0 draws whole images.
        length: Pixels of an image.
        seed: Of the draws.
        temperature: Below 1 likelier colours, above 1 unlikelier ones.

    Raises:
        ConfigError: temperature is not above 0, or more pixels are known than there are.
    """
    if not temperature > 0:
        raise ConfigError(f"temperature={temperature}: it divides and must be above 0. 1.0 draws as the model says.")
    if len(known) > length:
        raise ConfigError(
            f"{len(known)} pixels are known, of images with {length}. Sequences come first: known is int64[n, B]."
        )
    generator = torch.Generator().manual_seed(seed)
    count = known.shape[1]
    draws = torch.rand(count, length, generator=generator).to(known.device).t()
    tokens = torch.cat([known, known.new_zeros(length - len(known), count)])
    mode = backbone.training
    backbone.eval()
    try:
        with torch.inference_mode(), _one_thread(known.device):
            _fill(backbone, tokens, len(known), draws, temperature)
    finally:
        backbone.train(mode)
    return tokens


def _fill(backbone: Any, tokens: torch.Tensor, first: int, draws: torch.Tensor, temperature: float) -> None:
    has_cache = hasattr(backbone, "start") and hasattr(backbone, "extend")
    cache = backbone.start(tokens.shape[1]) if has_cache else None
    for position in range(len(tokens)):
        if cache is not None:
            logits = backbone.extend(tokens[position - 1] if position else None, cache)
        elif position >= first:
            logits = backbone(tokens[: position + 1])[position]
        if position >= first:
            tokens[position] = _choose(logits / temperature, draws[position])


def _choose(logits: torch.Tensor, draws: torch.Tensor) -> torch.Tensor:
    """Returns int64[B]: the first number at which the summed probabilities reach beyond the draw."""
    sums = logits.float().softmax(dim=-1).cumsum(dim=-1)
    return (sums <= draws[:, None]).sum(dim=-1).clamp_(max=logits.shape[-1] - 1)


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """On a CPU: each step is so small that threads would wait for each other for longer than they work."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class GenerativePixelsTransformer(TaskTransformer):
    """Trains a model to predict each pixel from those before it; draws images with it after each validation.

    Logs `loss` (nats per pixel), and with classify, where it is a sum, `generative_loss`, `class_loss` and `accuracy`,
    each as `train_...`, `val_...` or `test_...`.

    Args:
        backbone: Gives logits float[T, B, num_vocab] of tokens int64[T, B], each from those before it; with classify
            it takes classify=True and gives (class logits float[B, num_classes], logits).
        optimizer: Config of the optimizer.
        scheduler: Config of the scheduler, or None.
        instantiator: Makes both.
        palette: Colours, each red, green and blue in eighths of a level. A checkpoint keeps it.
        num_pixels: Height and width of the images.
        num_classes: Number of classes.
        classify: Train on the sum of both losses, so that the model learns the classes too.
        num_samples: New images and completions per validation, each; 0 draws none.
        temperature: Of the draws.
        sample_seed: Of the draws; the same for each validation, so that images can be compared.
        cpu_threads: Threads of torch while it trains on a CPU; None does not change them. The steps of a small model
            are so short that threads wait for each other, most of all on a busy machine.

    Raises:
        ConfigError: A number cannot work, the palette is not a list of colours, or the backbone is for another task.
    """

    def __init__(
        self,
        backbone: torch.nn.Module,
        optimizer: Config,
        scheduler: Config | None = None,
        instantiator: Instantiator | None = None,
        *,
        palette: Sequence[Sequence[int]],
        num_pixels: int,
        num_classes: int,
        classify: bool = False,
        num_samples: int = 8,
        temperature: float = 1.0,
        sample_seed: int = 0,
        cpu_threads: int | None = None,
    ) -> None:
        super().__init__(backbone, optimizer, scheduler, instantiator, num_pixels=num_pixels, num_classes=num_classes)
        if not temperature > 0 or num_samples < 0 or (cpu_threads is not None and cpu_threads < 1):
            raise ConfigError(
                f"{temperature = }, {num_samples = }, {cpu_threads = }: the temperature is above 0, the number of "
                "samples at least 0, and that of threads at least 1 or None."
            )
        try:
            inspect.signature(backbone.forward).bind(None, **({"classify": True} if classify else {}))
        except TypeError as error:
            raise ConfigError(
                f"{type(backbone).__name__} does not take sequences of pixels alone{', with classify' * classify}: "
                f"{error}. Choose backbone=vision/igpt/gpt2 or transformers/gpt2, or one with the protocol of GPT2."
            ) from error
        self.palette = _palette_of(palette)
        self.num_pixels = num_pixels
        self.classify = classify
        if not classify and isinstance(head := getattr(backbone, "clf_head", None), torch.nn.Module):
            head.requires_grad_(False)  # no loss reaches it, and DDP refuses trained parameters without a gradient
        self.num_samples = num_samples
        self.temperature = temperature
        self.sample_seed = sample_seed
        self.cpu_threads = cpu_threads
        self._threads_before: int | None = None

    def common_step(self, prefix: Prefix, batch: PictureBatch) -> torch.Tensor:
        """Returns the loss of a batch; with classify the sum of the generative loss and that of the classes.

        Args:
            prefix: "train", "val" or "test".
            batch: Images uint8[B, 3, H, W] and classes int64[B].
        """
        tokens = self.tokens(batch.image)
        if not self.classify:
            return pixel_loss(self.backbone(tokens), tokens)
        class_logits, logits = self.backbone(tokens, classify=True)
        generative_loss = pixel_loss(logits, tokens)
        class_loss = functional.cross_entropy(class_logits, batch.label)
        accuracy = (class_logits.argmax(dim=1) == batch.label).float().mean()
        self.log_metrics(prefix, batch, generative_loss=generative_loss, class_loss=class_loss, accuracy=accuracy)
        return generative_loss + class_loss

    @property
    def centroids(self) -> torch.Tensor:
        """The colours, float32[K, 3] in levels 0..255, on the model's device."""
        units = torch.tensor(self.palette.units, dtype=torch.float32, device=self.device)
        return units.div(UNITS_PER_LEVEL)

    def tokens(self, images: torch.Tensor) -> torch.Tensor:
        """Returns the sequences int64[H * W, B] of images uint8[B, 3, H, W]."""
        return _to_sequence(quantize(images, self.palette))

    def images(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns the images uint8[B, 3, H, W] of sequences int64[H * W, B], in palette colours."""
        return to_images(tokens, self.palette, self.num_pixels, self.num_pixels)

    def pictures(self, tokens: torch.Tensor) -> torch.Tensor:
        """The older name of `images`."""
        warnings.warn("GenerativePixelsTransformer.pictures is now called images.", DeprecationWarning, stacklevel=2)
        return self.images(tokens)

    def draw(self, count: int, *, seed: int | None = None) -> torch.Tensor:
        """Returns new images uint8[count, 3, H, W], on the model's device.

        Args:
            count: How many.
            seed: Of the draws; None is sample_seed.
        """
        return self.images(self._draw(torch.zeros(0, count, dtype=torch.int64, device=self.device), seed))

    def complete(self, images: torch.Tensor, *, seed: int | None = None) -> torch.Tensor:
        """Returns images uint8[B, 3, H, W] whose upper half was given and whose lower half was drawn.

        Args:
            images: uint8[B, 3, H, W]; their lower halves are not read.
            seed: Of the draws; None is sample_seed.
        """
        rows = self.num_pixels // 2
        return self.images(self._draw(self.tokens(images)[: rows * self.num_pixels], seed))

    def on_fit_start(self) -> None:
        """Sets the number of threads that was asked for."""
        if self.cpu_threads is not None and self.device.type == "cpu":
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(self.cpu_threads)

    def teardown(self, stage: str) -> None:
        """Restores the number of threads."""
        if self._threads_before is not None:
            torch.set_num_threads(self._threads_before)
            self._threads_before = None

    def configure_callbacks(self) -> list[Callback]:
        """Returns what draws images after each validation, and what restores the threads where a run fails."""
        from lightning.pytorch.callbacks import LambdaCallback

        # Lightning tears a task down only where the run reaches its end.
        failed = LambdaCallback(on_exception=lambda *_: self.teardown("fit"))
        return [failed, SamplesCallback()] if self.num_samples else [failed]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the palette: without it tokens mean nothing."""
        checkpoint["palette"] = [list(color) for color in self.palette.units]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Takes over the palette that the model was trained with, whatever the data's is."""
        if "palette" in checkpoint:
            self.palette = _palette_of(checkpoint["palette"])

    def _draw(self, known: torch.Tensor, seed: int | None) -> torch.Tensor:
        return draw_pixels(
            self.backbone,
            known,
            self.num_pixels**2,
            seed=self.sample_seed if seed is None else seed,
            temperature=self.temperature,
        )


def pixel_loss(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross-entropy per pixel, in nats.

    Args:
        logits: float[T, B, colours].
        tokens: int64[T, B].
    """
    return functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())


def _palette_of(units: Sequence[Sequence[int]]) -> Palette:
    try:
        return Palette(tuple((int(red), int(green), int(blue)) for red, green, blue in units))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"palette is not a list of colours: {error}") from error
