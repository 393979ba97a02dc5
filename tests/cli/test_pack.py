"""`energon-dali pack`, called as a user types it; what it prints loads the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from energon_dali.cli import pack as command
from energon_dali.pack import PackOptions, pack_dataset
from energon_dali.shards import StoragePath
from tests.cli.test_cli import ok, run
from tests.pack.images_folder import pack, write_images
from tests.shards.test_storage import bucket, server

__all__ = ["bucket", "server"]
QUIET = ("--no-progress", "--workers", 1)


def test_packs_and_says_what_it_did(tmp_path: Path) -> None:
    source = write_images(tmp_path / "in", 20)
    (source / "a" / "img.000.png").write_bytes(b"nothing")
    sizes = ("--max-samples", 6, "--max-bytes", "1MB", "--split", "train=0.75,val=0.25", "--shuffle", 1)
    shown = ok("pack", source, tmp_path / "out", *QUIET, *sizes)
    assert "Samples: 20, of which 20 have a caption" in shown
    assert "Left out 1 sample:\n  a/img.000.png (a/img_000): its part 'png' cannot be read" in shown
    assert "Packed 19 samples into 4 shards" in shown
    assert "- val: " in shown
    assert "Everything was packed already" in ok("pack", source, tmp_path / "out", *QUIET, *sizes)
    refused = run("pack", source, tmp_path / "out", *QUIET, "--max-samples", 7)
    assert refused.exit_code == 1
    assert "begun with max_samples=6, and max_samples=7 was given" in refused.output
    strict = run("pack", source, tmp_path / "strict", *QUIET, "--strict")
    assert strict.exit_code == 1
    assert "Without --strict it would be left out" in strict.output
    assert "cannot be understood" in run("pack", source, tmp_path / "x", "--split", "train").output
    assert "does not exist" in run("pack", tmp_path / "nowhere", tmp_path / "x").output
    assert "Packed 20 samples" in ok("pack", source, tmp_path / "unseen", *QUIET, "--no-check-media")


@pytest.mark.parametrize("crude", [False, True], ids=["typed", "crude"])
def test_the_printed_code_loads_it(tmp_path: Path, crude: bool) -> None:
    kind = {"sample_type": "CrudeWebdataset"} if crude else {}
    code = command.loading_code(pack(write_images(tmp_path / "in", 3), tmp_path / "out", **kind))
    loop = "for batch in get_loader(dataset): print(batch)"
    assert code.endswith(loop)
    assert len(code.splitlines()) == (5 if crude else 3)
    program = code.replace(loop, "found = next(iter(get_loader(dataset)))")
    names: dict[str, Any] = {}
    exec(program.replace("WorkerConfig.default_worker_config()", "WorkerConfig.default_worker_config(0)"), names)
    found = names["found"]
    assert (found["__key__"] if crude else found.__key__)[0] in ("a/img_000", "b/img_001", "a/img_002")


def test_an_interruption_says_how_to_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "pack_dataset", interrupt)
    done = run("pack", write_images(tmp_path / "in", 2), tmp_path / "out")
    assert done.exit_code == 130
    assert "run the same command again to continue" in done.output


def test_to_and_from_a_bucket(tmp_path: Path, bucket: Any) -> None:
    source = write_images(tmp_path / "in", 8)
    pack(source, tmp_path / "local", max_samples=3)
    shown = ok("pack", source, "s3://data/set", *QUIET, "--max-samples", 3)
    assert "get_train_dataset('s3://data/set'" in shown
    remote = StoragePath.of("s3://data/set")
    for file in remote.list_files():
        if file.endswith((".tar", ".uuid")):
            assert (remote / file).read_bytes() == (tmp_path / "local" / file).read_bytes()
    assert not [name for name in remote.list_files() if "/done/" in name or name.endswith("records.jsonl")]
    bucket.delete_object(Bucket="data", Key="set/train-000001.tar")
    assert not pack_dataset(source, remote, PackOptions(max_samples=3), num_workers=1).was_complete
    pack_dataset("s3://data/set", tmp_path / "back", PackOptions(max_samples=3), num_workers=1)
    names = ["train-000000.tar", "train-000001.tar", "train-000002.tar"]
    assert [(tmp_path / "back" / name).read_bytes() for name in names] == [
        (tmp_path / "local" / name).read_bytes() for name in names
    ]
