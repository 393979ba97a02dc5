"""The data of the captioning task: a blend of datasets, decoded, cut into patches and packed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.data_module import Split, TransformerDataConfig, TransformerDataModule
from energon_dali.tasks.core.decoder import DecoderChoice, make_decoder
from energon_dali.tasks.multimodal.captioning.mixture import blend_of, check_prepared
from energon_dali.tasks.multimodal.captioning.task_encoder import (
    CaptioningTaskEncoder,
    PackedCaptioningTaskEncoder,
    image_options,
)
from energon_dali.tasks.tokenizers import ByteTokenizer, TextCodec, Tokenizer


@dataclass(kw_only=True)
class CaptioningDataConfig(TransformerDataConfig):
    """What the captioning task can say of its data. `batch_size` counts rows."""

    data_dir: str | list[str] = field(default_factory=lambda: ["demo/captions"])
    """Prepared datasets of images and captions to blend; one alone is cut in two. Not used where `train` is given."""
    weights: list[float] | None = None
    """How often each is drawn in training; None draws all alike."""
    val_share: float = 0.1
    """Share of each dataset that is kept for validation; 0 takes the part "val" of its split."""
    patch_size: int = 12
    """Pixels along each side of a patch."""
    shorter_px: int = 48
    """Pixels of the shorter side that images are resized to, with their aspect ratio."""
    longest_px: int = 96
    """Pixels of the longer side at most; what is longer loses its ends."""
    max_caption_tokens: int = 128
    """Tokens of a caption at most; the rest is cut off."""
    row_length: int = 384
    """Places of a row with packing; without it a row is as long as its batch needs."""
    max_padding: float = 0.05
    """Share of a row that may stay empty."""


class CaptioningDataModule(TransformerDataModule):
    """Loads images and captions as packed rows; without `packing_buffer_size` as rows of one sample each.

    Args:
        cfg: Datasets and sizes.
        decoder: Backend for images, see `make_decoder`.
        tokenizer: Of the captions; None is ByteTokenizer().

    Raises:
        ConfigError: A size or the blend cannot work, or the tokenizer has no token for the end.
    """

    cfg: CaptioningDataConfig

    def __init__(
        self, cfg: CaptioningDataConfig, *, decoder: DecoderChoice = None, tokenizer: Tokenizer | None = None
    ) -> None:
        for name in ("patch_size", "shorter_px", "longest_px", "max_caption_tokens"):
            if getattr(cfg, name) < 1:
                raise ConfigError(f"{name}={getattr(cfg, name)} cannot be: give a number of at least 1.")
        if cfg.longest_px < cfg.shorter_px:
            raise ConfigError(f"longest_px={cfg.longest_px} is below shorter_px={cfg.shorter_px}: give at least that.")
        self._folders = [cfg.data_dir] if isinstance(cfg.data_dir, str) else list(cfg.data_dir)
        if cfg.train is None:
            blend = blend_of(self._folders, cfg.weights, cfg.val_share)
            cfg = replace(cfg, train=blend, val=cfg.val or blend)
        else:
            self._folders = []
        tokenizer = tokenizer or ByteTokenizer()
        super().__init__(cfg, decoder=decoder, tokenizer=tokenizer)
        self.codec = TextCodec(tokenizer)

    def prepare_data(self) -> None:
        """Makes sure that the datasets are there.

        Raises:
            DatasetError: A folder is missing, or was not prepared.
        """
        check_prepared(self._folders)

    def task_encoder(self, split: Split) -> CaptioningTaskEncoder:
        """Returns the encoder, which packs if `packing_buffer_size` is set.

        Raises:
            ConfigError: A row could not hold the largest sample.
        """
        cfg = self.cfg
        decoder = make_decoder(self.decoder, **image_options(cfg.shorter_px))
        sizes = {name: getattr(cfg, name) for name in ("patch_size", "shorter_px", "longest_px", "max_caption_tokens")}
        if cfg.packing_buffer_size is None:
            return CaptioningTaskEncoder(self.codec.tokenizer, decoder, **sizes)
        return PackedCaptioningTaskEncoder(
            self.codec.tokenizer, decoder, row_length=cfg.row_length, max_padding=cfg.max_padding, **sizes
        )

    @property
    def model_data_kwargs(self) -> dict[str, Any]:
        """num_vocab, num_positions of a text, patch_dim, max_patches_along a side, and the tokens of begin and end."""
        cfg = self.cfg
        return {
            "num_vocab": len(self.codec),
            "num_positions": cfg.max_caption_tokens + 2,  # 0 is that of patches, 1 that of the beginning
            "patch_dim": 3 * cfg.patch_size**2,
            "patch_size": cfg.patch_size,
            "max_patches_along": -(-cfg.longest_px // cfg.patch_size),
            "begin_token": self.codec.begin,
            "end_token": self.codec.end,
        }
