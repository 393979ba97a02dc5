"""A dataset whose names and contents try to run in the page that shows them."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from energon_dali.shards.prepare.dataset import prepare_dataset

SCRIPT = "<script>document.title='run'</script>"
IMAGE = "<img src=x onerror=\"document.title='run'\">"
SVG = b'<svg xmlns="http://www.w3.org/2000/svg" onload="document.title=1"><script>document.title=\'run\'</script></svg>'
KEYS = (
    f"k0{SCRIPT.replace('/', '&sol;').replace('.', '&period;')}",
    'k1"onmouseover="alert(1)',
    "../../etc/passwd",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:alert(1)",
)
PARTS = {
    "txt": f"{SCRIPT}{IMAGE}</pre></textarea>{{{{ 7 * 7 }}}}".encode(),
    "html": f"<!doctype html><html><body>{SCRIPT}{IMAGE}<iframe src='/'></iframe></body></html>".encode(),
    "svg": SVG,
    "js": b"document.title = 'run';",
    "json": b'{"</script><script>document.title=\'run\'</script>": "<img src=x onerror=alert(1)>"}',
    "jpg": SVG,  # media by its name alone
    "mp4": f"<html>{SCRIPT}</html>".encode(),
    'x"onclick="alert(1)': b"<b>bold</b>",
    "<u>bin": bytes(range(256)) + b"<script>",
}


def write_hostile(folder: Path) -> Path:
    """Writes and prepares the dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / 'shard"<i>0.tar', "w") as tar:
        for key in KEYS:
            for name, content in PARTS.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    prepare_dataset(str(folder), split_patterns=[("train", ".*")])
    (folder / ".nv-meta" / "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\nsubflavors: {'<b>': '<i>'}\n"
    )
    return folder
