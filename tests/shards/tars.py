"""Small shards for the tests, written with tarfile."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from PIL import Image

Files = Mapping[str, bytes]


def write_tar(path: Path, files: Files | Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT) -> Path:
    """Writes a tar with the given files, in order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def jpeg(width: int, height: int) -> bytes:
    """Returns a gray JPEG."""
    out = io.BytesIO()
    Image.new("L", (width, height), 90).save(out, "JPEG")
    return out.getvalue()


def captions(root: Path, shards: int = 3, samples: int = 4) -> dict[str, dict[str, bytes]]:
    """Writes shards of images with captions; returns all files of each sample by key."""
    expected: dict[str, dict[str, bytes]] = {}
    for shard in range(shards):
        files: dict[str, bytes] = {}
        for number in range(samples):
            key = f"s{shard}_{number}"
            parts = {"jpg": jpeg(8 + number, 9), "txt": f"caption {key}".encode(), "meta.json": b"{}"}
            expected[key] = parts
            files |= {f"{key}.{part}": content for part, content in parts.items()}
        write_tar(root / f"shard_{shard}.tar", files)
    return expected


def index_files(root: Path) -> dict[str, bytes]:
    """Returns the content of all files below a folder, by their paths."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
