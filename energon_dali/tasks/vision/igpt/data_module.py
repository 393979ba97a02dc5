"""The data module of Image GPT: from the archive to batches of images, and the palette."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from energon_dali.decode import HorizontalFlip, Resize
from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import Palette
from energon_dali.tasks.core.data_module import Split, TransformerDataModule
from energon_dali.tasks.core.decoder import DecoderChoice, make_decoder
from energon_dali.tasks.vision.igpt.cifar.archive import SIDE_PX
from energon_dali.tasks.vision.igpt.cifar.download import download
from energon_dali.tasks.vision.igpt.cifar.shards import (
    DatasetClass,
    PreparedCifar,
    find_prepared,
    name_of,
    prepare_cifar,
    prepare_images,
    read_dataset,
)
from energon_dali.tasks.vision.igpt.config import ImageGPTDataConfig
from energon_dali.tasks.vision.igpt.palette import stored_palette
from energon_dali.tasks.vision.igpt.task_encoder import PictureTaskEncoder


class ImageGPTDataModule(TransformerDataModule):
    """Gives batches of images with classes, and hands their palette to the model.

    Args:
        cfg: Where the images come from and what they keep.
        decoder: Backend for the PNG files in the shards, see `make_decoder`.
        tokenizer: Not needed; here so that a run can give what it gives all data modules.
    """

    cfg: ImageGPTDataConfig
    dataset_cls: DatasetClass | None = None
    """Class of a map-style dataset in the place of the archive, such as torchvision's CIFAR10: a subclass sets it, or
    has a property. It is called as `dataset_cls(data_dir, train=True, download=True)`, gives images of 32 x 32 pixels
    with their classes, and is read once, into shards. Several processes may call it at once: download its data
    beforehand where it cannot do that."""

    def __init__(
        self, cfg: ImageGPTDataConfig | None = None, *, decoder: DecoderChoice = None, tokenizer: Any | None = None
    ) -> None:
        super().__init__(ImageGPTDataConfig() if cfg is None else cfg, decoder=decoder, tokenizer=tokenizer)
        self._prepared: PreparedCifar | None = None
        self._palette: Palette | None = None

    def prepare_data(self, *args: Any, **kwargs: Any) -> None:
        """Makes shards of the archive and finds the palette, where that was not done; downloads the archive if needed.

        With `dataset_cls`, the shards are made of what that class gives.

        Raises:
            ConfigError: data_dir was not given, there is no archive and it is not to be downloaded, a part of the
                split would be empty, or dataset_cls gives other images than 32 x 32 pixels in RGB.
            DatasetFormatError: The archive is damaged, or not of this format, or has another checksum.
            StorageError: Something cannot be fetched, read or written.
        """
        cfg = self.cfg
        if self.dataset_cls is not None:
            name = name_of(self.dataset_cls)
            prepared = find_prepared(cfg.folder, cfg.recipe, name)
            if prepared is None:
                content = read_dataset(self.dataset_cls, cfg.folder, download=cfg.download)
                prepared = prepare_images(name, content, cfg.folder, cfg.recipe)
            stored_palette(prepared.path, cfg.num_colors, cfg.palette_seed)
            return
        path = cfg.archive_path
        prepared = None if path.exists() else find_prepared(cfg.folder, cfg.recipe)
        if prepared is None:
            if not path.exists():
                if cfg.archive or not cfg.download:
                    raise ConfigError(
                        f"There is no archive {path}. Put {path.name} into the folder {path.parent.resolve()}, or "
                        "leave archive and download=false out to have it downloaded."
                    )
                download(cfg.url, path, cfg.md5)
            prepared = prepare_cifar(path, cfg.folder, cfg.recipe)
        stored_palette(prepared.path, cfg.num_colors, cfg.palette_seed)

    def setup(self, stage: str | None = None) -> None:
        """Opens what `prepare_data` made.

        Args:
            stage: "fit", "validate", "test" or "predict"; all are alike.

        Raises:
            ConfigError: prepare_data was not called.
            DatasetFormatError: What it made cannot be understood.
            StorageError: Something cannot be read.
        """
        cfg = self.cfg
        if self._prepared is not None:
            return
        if self.dataset_cls is not None:
            prepared = find_prepared(cfg.folder, cfg.recipe, name_of(self.dataset_cls))
        elif cfg.archive_path.exists():
            # On each rank: the archive names the dataset, so that all find the same.
            prepared = prepare_cifar(cfg.archive_path, cfg.folder, cfg.recipe)
        else:
            prepared = find_prepared(cfg.folder, cfg.recipe)
        if prepared is None:
            raise ConfigError(f"{cfg.folder} holds no shards with this split yet. Call prepare_data() before setup().")
        self._palette = stored_palette(prepared.path, cfg.num_colors, cfg.palette_seed)
        self._prepared = prepared
        self.cfg = replace(cfg, train=str(prepared.path), val=str(prepared.path), test=str(prepared.path))

    @property
    def palette(self) -> Palette:
        """The colours.

        Raises:
            ConfigError: setup was not called.
        """
        self._need_setup()
        assert self._palette is not None
        return self._palette

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label.

        Raises:
            ConfigError: setup was not called.
        """
        return self._need_setup().classes

    @property
    def model_data_kwargs(self) -> dict[str, Any]:
        """Facts about the data that the model needs, as plain values.

        num_classes; num_pixels, the height and width; num_positions, the pixels of an image; num_vocab, the colours;
        palette, the colours in eighths of a level.

        Raises:
            ConfigError: setup was not called.
        """
        size = self.cfg.image_size
        return {
            "num_classes": len(self.classes),
            "num_pixels": size,
            "num_positions": size * size,
            "num_vocab": len(self.palette.units),
            "palette": [list(color) for color in self.palette.units],
        }

    def task_encoder(self, split: Split) -> PictureTaskEncoder:
        """Returns what stacks images uint8[3, H, W]; those to train on are mirrored at random.

        Raises:
            ConfigError: The decoder cannot be made.
        """
        cfg = self.cfg
        resize = [] if cfg.image_size == SIDE_PX else [Resize((cfg.image_size, cfg.image_size))]
        flip = [HorizontalFlip(cfg.flip)] if split == "train" and cfg.flip else []
        return PictureTaskEncoder(make_decoder(self.decoder, image_decode="torchrgb8", operations=[*resize, *flip]))

    def _need_setup(self) -> PreparedCifar:
        if self._prepared is None:
            raise ConfigError("The palette and the classes are known after prepare_data() and setup().")
        return self._prepared
