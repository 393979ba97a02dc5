"""The data of Image GPT: from the archive to batches of images, and the palette."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from energon_dali.decode import HorizontalFlip, Resize
from energon_dali.errors import ConfigError
from energon_dali.kernels.color_quantize import Palette
from energon_dali.tasks.data_module import (
    DecoderChoice,
    Split,
    TransformerDataConfig,
    TransformerDataModule,
    make_decoder,
)
from energon_dali.tasks.vision import PictureTaskEncoder
from energon_dali.tasks.vision.igpt.cifar_archive import CIFAR10_MD5, CIFAR10_URL, SIDE_PX, download
from energon_dali.tasks.vision.igpt.cifar_shards import (
    DatasetClass,
    PreparedCifar,
    SplitRecipe,
    find_prepared,
    name_of,
    prepare_cifar,
    prepare_images,
    read_dataset,
)
from energon_dali.tasks.vision.igpt.palette import stored_palette

DATASETS = ("cifar10",)
ARCHIVE_NAME = "cifar-10-python.tar.gz"
BINARY_ARCHIVE_NAME = "cifar-10-binary.tar.gz"


@dataclass(kw_only=True)
class ImageGPTDataConfig(TransformerDataConfig):
    """Where the images come from, how they are split, and how many colours and pixels they keep.

    `train`, `val` and `test` are filled in by the data module.

    Raises:
        ConfigError: A value cannot work.
    """

    dataset: str = "cifar10"
    """"cifar10" is the only one."""
    data_dir: str | Path | None = None
    """Folder of the archive and of the shards that are made of it; needed once data is asked for."""
    archive: str | None = None
    """An archive in the format of cifar-10-python.tar.gz or cifar-10-binary.tar.gz; None is the one in data_dir."""
    download: bool = True
    """Fetch the archive if it is not in data_dir; its checksum must be the official one."""
    url: str = CIFAR10_URL
    """Where to fetch it."""
    md5: str = CIFAR10_MD5
    """Checksum of what is fetched."""
    val_fraction: float = 0.1
    """Share of the training images that becomes the validation, drawn at random."""
    split_seed: int = 0
    """Of this draw."""
    num_colors: int = 16
    """Colours of the palette, which is the vocabulary; 512 are usual for large models."""
    palette_seed: int = 0
    """Of the first colours of k-means."""
    image_size: int = 16
    """Height and width in pixels to which images of 32 x 32 are reduced. Sequences have its square as length:
    256 at 16, 1024 at 32, where a step on a CPU takes about 9 times as long."""
    flip: float = 0.5
    """Probability that a training image is mirrored."""

    def __post_init__(self) -> None:
        if self.dataset not in DATASETS:
            raise ConfigError(f"dataset={self.dataset!r} is unknown. There is: {', '.join(DATASETS)}.")
        for name in ("image_size", "num_colors", "split_seed", "palette_seed"):
            if not isinstance(getattr(self, name), int):
                raise ConfigError(f"{name}={getattr(self, name)!r} is not a whole number: give one.")
        _ = self.recipe  # refuses a share that leaves nothing
        if not 2 <= self.image_size <= SIDE_PX:
            raise ConfigError(f"image_size={self.image_size} pixels: images of CIFAR can have 2 to {SIDE_PX}.")
        if not 2 <= self.num_colors <= 32768:
            raise ConfigError(f"num_colors={self.num_colors}: a palette has 2 to 32768 colours.")

    @property
    def folder(self) -> Path:
        """`data_dir` as a path.

        Raises:
            ConfigError: It was not given.
        """
        if not self.data_dir:
            raise ConfigError(
                f"data_dir was not given. It is the folder of {ARCHIVE_NAME}, which is downloaded if it is not there, "
                "and of the shards that are made of it: dataset.cfg.data_dir=FOLDER, or ./ for this one."
            )
        return Path(self.data_dir).expanduser()

    @property
    def archive_path(self) -> Path:
        """Where the archive is, or goes: the one for Python, unless there is only the binary one.

        Raises:
            ConfigError: Neither archive nor data_dir was given.
        """
        if self.archive:
            return Path(self.archive).expanduser()
        path, binary = self.folder / ARCHIVE_NAME, self.folder / BINARY_ARCHIVE_NAME
        return binary if binary.exists() and not path.exists() else path

    @property
    def recipe(self) -> SplitRecipe:
        """How the training images are split.

        Raises:
            ConfigError: The share is not between 0 and 1.
        """
        return SplitRecipe(self.val_fraction, self.split_seed)


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
        prepared = self._find()
        if prepared is None and self.dataset_cls is not None:
            content = read_dataset(self.dataset_cls, cfg.folder, download=cfg.download)
            prepared = prepare_images(name_of(self.dataset_cls), content, cfg.folder, cfg.recipe)
        if prepared is None:
            path = cfg.archive_path
            if cfg.archive or not cfg.download:
                raise ConfigError(
                    f"There is no archive {path}. Put {path.name} into the folder {path.parent.resolve()}, or leave "
                    "archive and download=false out to have it downloaded."
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
        prepared = self._find()
        if prepared is None:
            raise ConfigError(f"{cfg.folder} holds no shards with this split yet. Call prepare_data() before setup().")
        self._palette = stored_palette(prepared.path, cfg.num_colors, cfg.palette_seed)
        self._prepared = prepared
        self.cfg = replace(cfg, train=str(prepared.path), val=str(prepared.path), test=str(prepared.path))

    def _find(self) -> PreparedCifar | None:
        """Returns the shards, made now where there is an archive to make them of; None where there is neither."""
        cfg = self.cfg
        if self.dataset_cls is not None:
            return find_prepared(cfg.folder, cfg.recipe, name_of(self.dataset_cls))
        if cfg.archive_path.exists():
            # On each rank: the archive names the dataset, so that all find the same.
            return prepare_cifar(cfg.archive_path, cfg.folder, cfg.recipe)
        return find_prepared(cfg.folder, cfg.recipe)

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
