"""The data of the captioning task: a blend of datasets, decoded, cut into patches and packed."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, DatasetError
from energon_dali.tasks.captioning.task_encoder import (
    CaptioningTaskEncoder,
    PackedCaptioningTaskEncoder,
    image_options,
)
from energon_dali.tasks.data_module import (
    DecoderChoice,
    Split,
    TransformerDataConfig,
    TransformerDataModule,
    make_decoder,
)
from energon_dali.tasks.tokenizers import ByteTokenizer, TextCodec, Tokenizer


def blend_of(folders: Sequence[str], weights: Sequence[float] | None, val_share: float) -> dict[str, Any]:
    """Returns a MetadatasetV2 with the splits train and val.

    The end of each dataset is kept for validation. One dataset alone is cut in two, so that there is something to
    blend.

    Args:
        folders: Prepared datasets, each a folder or URL.
        weights: One number per dataset, or two for one dataset: how often it is drawn in training. None: all alike.
        val_share: Share of each dataset that is kept for validation, 0 to below 1. 0 takes the part "val" of its split.

    Raises:
        ConfigError: There is no dataset, the weights do not fit, or the share leaves nothing to train on.
    """
    if not folders:
        raise ConfigError("There is no dataset: give data_dir one or more folders of prepared datasets.")
    if not 0 <= val_share < 1:
        raise ConfigError(f"{val_share = } leaves nothing to train on: give a share from 0 to below 1, such as 0.1.")
    end = 1 - val_share
    parts = [(folder, 0.0, end) for folder in folders]
    if len(parts) == 1:
        parts = [(folders[0], 0.0, end / 2), (folders[0], end / 2, end)]
    weights = [1.0] * len(parts) if weights is None else weights
    if len(weights) != len(parts) or not all(weight > 0 for weight in weights):
        raise ConfigError(
            f"weights={list(weights)} for {len(parts)} parts of the blend ({', '.join(path for path, _, _ in parts)}): "
            "give a number above 0 for each, or null for equal ones."
        )
    train = [
        {"path": _absolute(path), "weight": float(weight), "subset": {"range": [_percent(first), _percent(last)]}}
        for (path, first, last), weight in zip(parts, weights, strict=True)
    ]
    val: list[dict[str, Any]] = [{"path": _absolute(path)} for path in folders]
    if val_share:
        val = [{**entry, "split_part": "train", "subset": {"range": [_percent(end), "100%"]}} for entry in val]
    splits = {"train": {"blend": train}, "val": {"concat": val} if len(val) > 1 else val[0]}
    return {"__module__": "megatron.energon", "__class__": "MetadatasetV2", "splits": splits}


def check_prepared(folders: Sequence[str]) -> None:
    """Raises an error that says what to do if a local folder holds no prepared dataset.

    Raises:
        DatasetError: A folder is missing, or was not prepared.
    """
    for folder in folders:
        if "://" in folder or (Path(folder) / ".nv-meta").is_dir():
            continue
        if not Path(folder).is_dir():
            raise DatasetError(
                f"{folder} does not exist (from {Path.cwd()}). Run `make demo`, which makes demo/captions, or name "
                "your own: dataset.cfg.data_dir=[FOLDER,FOLDER]."
            )
        raise DatasetError(f"{folder} is not prepared: run `energon-dali prepare {shlex.quote(str(folder))}` once.")


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).resolve())


def _percent(share: float) -> str:
    return f"{100 * share:g}%"


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
                raise ConfigError(f"{name}={getattr(cfg, name)} is invalid: give a number of at least 1.")
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
