"""What the command `energon-dali view` was given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ViewOptions:
    """Options of the command; plain values."""

    path: str
    """A prepared folder, a `.jsonl` file, or a metadataset (`.yaml`)."""
    encoder: str = ""
    """`MODULE:CLASS` of a task encoder; a function or an instance is taken too; "" shows no encoded samples."""
    split_part: str = "train"
    """Part of the split whose first batch is shown."""
    batch_size: int | None = 4
    """Samples of that batch; None batches only if the encoder groups samples itself."""
    packing_buffer_size: int | None = None
    """Number of samples from which the encoder chooses packs; None packs nothing."""
    allow_imports: bool = False
    """Import classes and functions of other packages that the dataset names."""
    allow_code: bool = False
    """Run code that is in the dataset: sample_loader.py, pickled parts."""
    dataset_config: str | None = None
    """Name of dataset.yaml; only for a folder."""
    split_config: str | None = None
    """Name of the split file; only for a folder."""
