"""CIFAR-10: its archive, and the shards that are made of it once."""

from __future__ import annotations

from energon_dali.tasks.vision.igpt.cifar.archive import CifarArchive, LabelledImages, read_archive
from energon_dali.tasks.vision.igpt.cifar.download import CIFAR10_MD5, CIFAR10_URL, download, md5_of

__all__ = ["CIFAR10_MD5", "CIFAR10_URL", "CifarArchive", "LabelledImages", "download", "md5_of", "read_archive"]
