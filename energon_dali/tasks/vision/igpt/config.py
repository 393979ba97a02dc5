"""What can be said of the data of Image GPT."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from energon_dali.errors import ConfigError
from energon_dali.tasks.core.data_module import TransformerDataConfig
from energon_dali.tasks.vision.igpt.cifar.archive import SIDE_PX
from energon_dali.tasks.vision.igpt.cifar.download import CIFAR10_MD5, CIFAR10_URL
from energon_dali.tasks.vision.igpt.cifar.shards import SplitRecipe

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
