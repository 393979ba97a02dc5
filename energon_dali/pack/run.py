"""Packs a source: plans, writes what is missing, and prepares the result as a dataset."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from energon_dali.errors import ConfigError, DatasetError
from energon_dali.pack.options import PackOptions
from energon_dali.pack.plan import RECORDS_NAME, Plan, make_plan
from energon_dali.pack.reading import Source
from energon_dali.pack.record import Skipped
from energon_dali.pack.shard_job import DONE, PREFIX, STATE, UNFINISHED, ShardJob, ShardReport, pack_shards, report_path
from energon_dali.pack.sources.detect import open_source
from energon_dali.shards.documents.json_text import parse_json
from energon_dali.shards.meta.dataset_config import read_dataset_config, sample_type_name, write_dataset_config
from energon_dali.shards.meta.document import META
from energon_dali.shards.meta.info import info_present
from energon_dali.shards.prepare.dataset import Progress, prepare_dataset
from energon_dali.shards.prepare.parallel import import_ray
from energon_dali.shards.prepare.shard_job import CheckPart
from energon_dali.shards.storage import StoragePath
from energon_dali.shards.storage.owned_folder import OwnedFolder, remove_stale

PLAN_NAME, SKIPPED_NAME, LOCK_NAME = "plan.json", "skipped.jsonl", "lock"
_VERSION = 1
_OURS = re.compile(r"[A-Za-z0-9_]+-\d{6,}\.tar(?:\.idx)?\Z")
_BEGUN = re.compile(r"(?:^|/)\.[0-9a-f]{32}\.tmp\Z")
"""Names of files that `atomic_file` has not renamed yet."""


class Watcher:
    """Receives reports of a run, and ignores them. The command derives one that shows them."""

    def found(self, source: Source) -> None:
        """Called when the source is known."""

    def planning(self, samples: int) -> None:
        """Called with the number of samples that were found."""

    def begin(self, plan: Plan, done_samples: int, done_shards: int) -> None:
        """Called before the first shard is written."""

    def progress(self, samples: int, written_bytes: int) -> None:
        """Called with what was written since the last call."""

    def end(self) -> None:
        """Called when all shards are written, or the run failed."""


@dataclass(frozen=True, slots=True)
class PackResult:
    """What was packed."""

    out: StoragePath
    shards: tuple[ShardReport, ...]
    """All shards that hold samples, in order, those of earlier runs included."""
    split_samples: Mapping[str, int]
    """Number of samples of each part of the split."""
    skipped: tuple[Skipped, ...]
    """All samples that were left out."""
    sample_type: str
    was_complete: bool
    """Whether an earlier run had done everything."""

    @property
    def num_samples(self) -> int:
        """Number of samples in all shards."""
        return sum(shard.samples for shard in self.shards)


def pack_dataset(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str] | StoragePath,
    options: PackOptions | None = None,
    *,
    num_workers: int | None = None,
    check_part: CheckPart | None = None,
    strict: bool = False,
    overwrite: bool = False,
    ray_address: str | None = None,
    watcher: Watcher | None = None,
    prepare_progress: Progress | None = None,
) -> PackResult:
    """Makes shards of a source, and a dataset of the shards.

    The bytes of the shards depend only on the source and the options, not on who writes them, the number of workers,
    or how often the run was interrupted. Finished shards of an interrupted run are kept.

    Args:
        source: A file or folder; see `Kind`. A URL for tars.
        out: Folder of the shards, local or a URL. It is new, empty, or holds an earlier run.
        options: What decides the bytes.
        num_workers: Number of processes that write the shards, and of those that index them. Several are spawned, so a
            script needs `if __name__ == "__main__":`. None is one per CPU core, if there is enough to do.
        check_part: Parses the header of every image; what it refuses is left out.
        strict: Raise for the first sample that cannot be packed, instead of leaving it out.
        overwrite: Remove what an earlier run wrote.
        ray_address: Address of a Ray cluster that writes and indexes the shards instead: "auto", "ray://HOST:10001",
            "HOST:6379", or "local" for this machine alone.
        watcher: Receives reports of the run.
        prepare_progress: Shows how the shards are indexed.

    Raises:
        ConfigError: An option is invalid or does not fit the source or the earlier run; or `out` holds something else.
        DatasetError: The source is damaged, has changed, or `strict` and a sample cannot be packed.
        StorageError: Something cannot be read or written.
        WorkerDiedError: A process ended unexpectedly.
    """
    options, watcher = options or PackOptions(), watcher or Watcher()
    if ray_address is not None:
        import_ray()  # raises now, and not after the source was looked at
    root = StoragePath.of(out)
    opened = open_source(os.fspath(source), options, root)
    watcher.found(opened)
    _check_out(root)
    with _locked(root), _scratch(root) as scratch:
        if overwrite:
            _remove_earlier(root)
        plan = make_plan(opened, options, scratch, watcher.planning)
        if strict:
            _refuse(plan.skipped)
        known = _read_plan(root)
        done = _continue_or_begin(root, known, plan, options, scratch)
        jobs = [
            ShardJob(root, shard, opened.reader(), check_part, strict)
            for shard in plan.shards
            if shard.name not in done
        ]
        if strict:
            _refuse([skip for report in done.values() for skip in report.skipped])
        was_complete = not jobs and known is not None and known["reports"] is not None and info_present(root)
        kept = sum(shard.samples for shard in plan.shards if shard.name in done)
        watcher.begin(plan, kept, len(done))
        try:
            for report in pack_shards(jobs, watcher.progress, num_workers=num_workers, ray_address=ray_address):
                done[report.name] = report
        finally:
            watcher.end()
        reports = tuple(done[shard.name] for shard in plan.shards)
        skipped = (*plan.skipped, *(skip for report in reports for skip in report.skipped))
        written = tuple(report for report in reports if report.samples)
        if not written:
            what, reason = skipped[0].what, skipped[0].reason
            raise DatasetError(f"None of {len(skipped):,} samples can be packed. The first one, {what}: {reason}.")
        if not was_complete:
            how = {"ray_address": ray_address, "check_part": check_part, "progress": prepare_progress}
            _prepare(root, plan, opened, written, num_workers, **how)
            _finish(root, _plan_document(plan, options, reports), skipped)
        _tidy(root)
    parts = {shard.name: shard.part for shard in plan.shards}
    counts = dict.fromkeys([part for part, _ in options.split] or plan.parts, 0)
    for report in written:
        counts[parts[report.name]] += report.samples
    return PackResult(root, written, counts, skipped, sample_type_name(read_dataset_config(root)), was_complete)


def _refuse(skipped: Sequence[Skipped]) -> None:
    """Raises DatasetError for the first sample that cannot be packed, if there is one."""
    for skip in skipped:
        raise DatasetError(f"{skip.what}: {skip.reason}. Without --strict it would be left out.")


def _check_out(root: StoragePath) -> None:
    """Refuses a folder that holds something else.

    Raises:
        ConfigError: It does.
    """
    if root.is_local and root.local.exists() and not root.local.is_dir():
        raise ConfigError(f"{root} is a file. Give a folder for the shards.")
    names = root.list_files() if not root.is_local or root.local.is_dir() else []
    if names and not any(name.startswith(f"{STATE}/") for name in names):
        raise ConfigError(
            f"{root} holds files that this command did not write, such as {names[0]}. Give a new or an empty folder."
        )


@contextmanager
def _locked(root: StoragePath) -> Iterator[None]:
    """Makes sure that one run at a time writes into a local folder.

    Raises:
        ConfigError: Another one does.
    """
    if not root.is_local:
        yield
        return
    folder = root.local / STATE
    (folder / DONE).mkdir(parents=True, exist_ok=True)
    (folder / UNFINISHED).mkdir(exist_ok=True)
    descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"Another run is packing into {root}. Wait until it has ended.") from None
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _scratch(root: StoragePath) -> Iterator[Path]:
    """Yields a local folder for the plan, next to the unfinished shards; removes what a killed run left there."""
    if root.is_local:
        unfinished = root.local / STATE / UNFINISHED
        for entry in list(os.scandir(unfinished)):
            with suppress(OSError):
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
        with tempfile.TemporaryDirectory(prefix="plan-", dir=unfinished, ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    temporary = Path(tempfile.gettempdir())
    remove_stale(temporary, PREFIX)
    owned = OwnedFolder(temporary, PREFIX)
    try:
        yield owned.path
    finally:
        owned.remove()


def _remove_earlier(root: StoragePath) -> None:
    """Removes what an earlier run wrote; the plan first, so that nothing takes the rest for complete."""
    (root / STATE / PLAN_NAME).remove()
    for name in root.list_files():
        if name.startswith((f"{META}/", f"{STATE}/{DONE}/")) or _OURS.match(name):
            (root / name).remove()


def _continue_or_begin(
    root: StoragePath, known: dict[str, Any] | None, plan: Plan, options: PackOptions, scratch: Path
) -> dict[str, ShardReport]:
    """Returns the reports of the shards that are finished; writes the plan if there is none, or its records are gone.

    Raises:
        ConfigError: The options of the earlier run were others.
        DatasetError: The source has changed since.
    """
    if known is None:
        _remove_earlier(root)
    else:
        _check_same(root, known, plan, options)
    done = _finished(root, plan, known)
    if len(done) == len(plan.shards):
        return done
    (root / STATE / RECORDS_NAME).write_file(scratch / RECORDS_NAME)
    if known is None:  # from here on, a next run goes on
        (root / STATE / PLAN_NAME).write_bytes(_plan_document(plan, options, None))
    return done


def _read_plan(root: StoragePath) -> dict[str, Any] | None:
    content = (root / STATE / PLAN_NAME).read_if_there()
    if content is None:
        return None
    try:
        value = parse_json(content)
        if value["version"] != _VERSION:
            raise ValueError("another version")
        return {name: value[name] for name in ("options", "digest", "fingerprint", "reports")}
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"{root / STATE / PLAN_NAME} is damaged, or of another version. Give --overwrite to start again."
        ) from None


def _check_same(root: StoragePath, known: dict[str, Any], plan: Plan, options: PackOptions) -> None:
    given = json.loads(json.dumps(options.as_plain()))
    for name, value in given.items():
        before = known["options"].get(name)
        if before != value:
            raise ConfigError(
                f"{root} was begun with {name}={_shown(before)}, and {name}={_shown(value)} was given. Give the same "
                "options to continue, --overwrite to start again, or another folder."
            )
    if (known["digest"], known["fingerprint"]) != (plan.digest, plan.fingerprint):
        raise DatasetError(
            f"The source has changed since {root} was begun: files were added, removed or changed. Give --overwrite to "
            "start again, or another folder."
        )


def _shown(value: Any) -> str:
    """Returns the value of an option as it is written on the command line."""
    if isinstance(value, dict):
        value = list(value.items())
    if isinstance(value, list):
        pairs = [
            item if isinstance(item, str) else (":" if isinstance(item[1], str) else "=").join(map(str, item))
            for item in value
        ]
        return ",".join(pairs) or "''"
    return "''" if value == "" else str(value)


def _finished(root: StoragePath, plan: Plan, known: dict[str, Any] | None) -> dict[str, ShardReport]:
    """Returns the reports of the shards that are there."""
    if known is None:
        return {}
    stored: dict[str, bytes] = {name: json.dumps(value).encode() for name, value in (known["reports"] or {}).items()}
    there = set(root.list_files())
    done: dict[str, ShardReport] = {}
    for shard in plan.shards:
        path = report_path(root, shard.name)
        content = stored.get(shard.name)
        if content is None and f"{STATE}/{DONE}/{path.name}" in there:
            content = path.read_if_there()
        if content is None:
            continue
        try:
            report = ShardReport.from_json(shard.name, content)
        except ValueError:
            continue
        if not report.samples or (shard.name in there and (root / shard.name).size() == report.size):
            done[shard.name] = report
    return done


def _plan_document(plan: Plan, options: PackOptions, reports: Sequence[ShardReport] | None) -> bytes:
    document = {
        "version": _VERSION,
        "options": options.as_plain(),
        "digest": plan.digest,
        "fingerprint": plan.fingerprint,
        "shards": [[shard.name, shard.samples] for shard in plan.shards],
        "reports": None if reports is None else {report.name: json.loads(report.to_json()) for report in reports},
    }
    return json.dumps(document).encode()


def _prepare(
    root: StoragePath, plan: Plan, source: Source, written: Sequence[ShardReport], num_workers: int | None, **how: Any
) -> None:
    parts = {shard.name: shard.part for shard in plan.shards}
    used = dict.fromkeys(parts[report.name] for report in written)
    shards = json.dumps([[report.name, report.samples, report.size] for report in written])
    result = prepare_dataset(
        root,
        shards=[report.name for report in written],
        split_patterns=[(part, rf"{part}-[0-9]+\.tar$") for part in used],
        num_workers=num_workers or len(os.sched_getaffinity(0)),
        # The same shards have the same identity, so that saved positions are valid for each copy.
        identity=str(uuid.uuid5(uuid.NAMESPACE_OID, f"{plan.digest} {shards}")),
        **how,
    )
    write_dataset_config(root, source.dataset_config(result.part_names))


def _finish(root: StoragePath, plan: bytes, skipped: Sequence[Skipped]) -> None:
    """Keeps the reports in the plan, which makes the run complete, and the list of what was left out."""
    lines = [json.dumps(list(bad)).encode() + b"\n" for bad in skipped]
    (root / STATE / SKIPPED_NAME).write_bytes(b"".join(lines))
    (root / STATE / PLAN_NAME).write_bytes(plan)


def _tidy(root: StoragePath) -> None:
    """Removes what only an unfinished run needs, and files that killed runs had begun."""
    for name in root.list_files():
        is_done = name == f"{STATE}/{RECORDS_NAME}" or name.startswith(f"{STATE}/{DONE}/")
        if is_done or (root.is_local and _BEGUN.search(name)):
            (root / name).remove()
