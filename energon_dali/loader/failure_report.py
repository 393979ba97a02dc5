"""What a run reports about the samples that failed: reasons with counts, a first example, a command to see it."""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from energon_dali.datasets.debug_log import DebugLog
from energon_dali.datasets.hooks import pattern_of
from energon_dali.datasets.metrics import Metrics
from energon_dali.error_handlers import LOGGER

if TYPE_CHECKING:
    from energon_dali.worker_config import WorkerConfig

VARIABLE = "ENERGON_DALI_FAILURE_REPORT"
"""Environment variable that turns the report off."""
MAX_LINES = 5
"""Lines of a report."""
MAX_GROUPS_IN_STATE = 16
ENTRY_BEGIN = '{"event": "failures", '
"""Beginning of the line of JSON that goes with each report."""
_MAX_TEXT = 300
_MAX_COUNT = 1 << 62
_TEXTS = ("kind", "reason", "dataset", "shard", "key", "stage", "error", "route")
"""The fields of FailureGroup that are texts."""


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Samples that failed in one way: see `FailureRecord.kind`."""

    kind: str
    """The stage, the type of the error, the line that raised it, and what reasons of one kind have in common."""
    count: int
    """Number of samples."""
    reason: str = ""
    """The error of the first one, in words."""
    dataset: str = ""
    """Path of its dataset."""
    shard: str = ""
    """Name of its shard."""
    key: str = ""
    """Its key."""
    index: int = -1
    """Its index in the whole dataset; -1 if it is not known."""
    stage: str = ""
    """Stage or hook in which they failed."""
    error: str = ""
    """The class of the error."""
    route: str = ""
    """What decoded, such as "pil"; "" for other errors."""

    @property
    def title(self) -> str:
        """The kind, without the pattern of the reason, for texts that show the reason itself."""
        return self.kind.removesuffix(f": {pattern_of(self.reason)}") if self.reason else self.kind

    @property
    def restore_command(self) -> str:
        """A shell command that loads the first one again and shows it; "" if its dataset or index is not known."""
        if not self.dataset or self.index < 0:
            return ""
        return f"energon-dali preview {shlex.quote(self.dataset)} --index {self.index}"

    @property
    def place(self) -> str:
        """Where the first one is, such as "shard_000.tar/k0002"; "" if it is not known."""
        return "/".join(filter(None, (self.shard, self.key)))

    def as_dict(self) -> dict[str, Any]:
        """Returns plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: object) -> FailureGroup | None:
        """Returns the group of plain values; None if they are not one."""
        if not isinstance(values, Mapping):
            return None
        texts = {name: values.get(name, "") for name in _TEXTS}
        count, index = values.get("count"), values.get("index", -1)
        if (
            not all(isinstance(text, str) for text in texts.values())
            or type(index) is not int
            or type(count) is not int
        ):
            return None
        if not texts["kind"] or not 0 < count < _MAX_COUNT or not -1 <= index < _MAX_COUNT:
            return None
        return cls(count=count, index=index, **texts)


def group_failures(record: Mapping[str, Any]) -> list[FailureGroup]:
    """Returns the groups of failures, the largest first.

    Args:
        record: Has "kinds", counts by kind, and "examples", the first failure of each as a dict; see
            `Metrics.snapshot`.
    """
    groups = []
    for kind, count in record["kinds"].items():
        example = record["examples"].get(kind, {})
        values = {name: example[name] for name in (*_TEXTS[1:], "index") if name in example}
        groups.append(FailureGroup(kind=kind, count=count, **values))
    return sorted(groups, key=lambda group: (-group.count, group.kind))


def merge_groups(lists: Iterable[Iterable[FailureGroup]]) -> list[FailureGroup]:
    """Returns the groups of several processes or runs, the largest first; the first example of a kind is kept."""
    merged: dict[str, FailureGroup] = {}
    for groups in lists:
        for group in groups:
            known = merged.get(group.kind)
            merged[group.kind] = group if known is None else replace(known, count=known.count + group.count)
    return sorted(merged.values(), key=lambda group: (-group.count, group.kind))


def groups_of_state(state: Mapping[str, Any]) -> list[FailureGroup]:
    """Returns the failures that a state lists; entries that cannot be understood are left out."""
    entries = state.get("failures")
    found = map(FailureGroup.from_dict, entries) if isinstance(entries, (list, tuple)) else ()
    return [group for group in found if group is not None]


def as_state_entry(groups: Sequence[FailureGroup]) -> dict[str, Any]:
    """Returns {"failures": [...]} for a state, with the largest groups and short texts; {} if there are none."""
    if not groups:
        return {}
    return {"failures": [group.as_dict() for group in shortened(groups)]}


def shortened(groups: Sequence[FailureGroup]) -> list[FailureGroup]:
    """Returns the largest groups, at most `MAX_GROUPS_IN_STATE`, with short texts."""
    return [
        replace(group, **{name: getattr(group, name)[:_MAX_TEXT] for name in _TEXTS})
        for group in groups[:MAX_GROUPS_IN_STATE]
    ]


def report_lines(groups: Sequence[FailureGroup], *, rank: int | None = None, log: str = "") -> list[str]:
    """Returns what the log says about failures to people, in at most `MAX_LINES` lines.

    Args:
        groups: The groups, the largest first.
        rank: The rank that reports them; None if it is the only one.
        log: A file that lists all groups; "" if there is none.
    """
    total = sum(group.count for group in groups)
    where = "" if rank is None else f" on rank {rank}"
    were = "sample was" if total == 1 else "samples were"
    lines = [f"{total:,} {were} dropped so far because of failures{where}:"]
    shown = groups if len(groups) < MAX_LINES else groups[: MAX_LINES - 2]
    lines += [group_line(group) for group in shown]
    if len(groups) > len(shown):
        rest = sum(group.count for group in groups[len(shown) :])
        all_of_them = f"energon-dali failures {shlex.quote(log)}" if log else "loader.stats().failure_kinds"
        lines.append(f"  {rest:,} others, for {len(groups) - len(shown):,} other reasons. All of them: {all_of_them}")
    return lines


def group_line(group: FailureGroup) -> str:
    """Returns a group as one line: count, kind, reason, first example, and the command that shows it."""
    reason = " ".join(group.reason.split())[:_MAX_TEXT].rstrip(".")
    line = f"  {group.count:,} x {group.title}: {reason}." if reason else f"  {group.count:,} x {group.kind}."
    if group.place:
        line += f" First: {group.place}."
    if group.restore_command:
        line += f" See it: {group.restore_command}"
    return line


def report_entry(groups: Sequence[FailureGroup], *, reporter: str, rank: int) -> dict[str, Any]:
    """Returns a report as plain values. Logs hold it as a line of JSON, which `energon-dali failures` finds.

    Args:
        groups: The groups, the largest first.
        reporter: Different for each loader and run: the last report of each counts.
        rank: The rank that reports them.
    """
    failures = [group.as_dict() for group in groups]
    return {"event": "failures", "reporter": reporter, "rank": rank, "pid": os.getpid(), "failures": failures}


class FailureReporter:
    """Logs failures once: after an epoch those that were not printed in full, at the end of a run all of them.

    Each report is a text for people, and a line of JSON for programs.

    Args:
        metrics: Counts them, for all processes of the rank.
        config: The rank, and its debug log.
    """

    def __init__(self, metrics: Metrics, config: WorkerConfig) -> None:
        self._metrics = metrics
        self._config = config
        self._name = secrets.token_hex(8)
        self._reported = 0
        self._logged = 0
        self.earlier: list[FailureGroup] = []
        """Failures of earlier runs, from the state that was restored."""

    def groups(self) -> list[FailureGroup]:
        """Returns the failures of this run."""
        return group_failures(self._metrics.snapshot())

    def state_entry(self) -> dict[str, Any]:
        """Returns the entry of a state about the failures of this run and of those before it; {} if there are none."""
        return as_state_entry(merge_groups([self.earlier, self.groups()]))

    def take_over(self, state: Mapping[str, Any]) -> None:
        """Continues the failures of a state; those of all ranks belong to rank 0."""
        own = len(state.get("given", ())) <= 1 or self._config.rank == 0
        self.earlier = groups_of_state(state) if own else []

    def report(self, *, is_end: bool) -> None:
        """Logs the failures, if there are some that the log does not list yet.

        Args:
            is_end: The run ends here. Otherwise failures that were all printed in full are not repeated.
        """
        kinds = self._metrics.failure_kinds()
        total = sum(kinds.values())
        if not total:
            return
        if is_end:
            self._write_to_debug_log(total)
        if total == self._reported or (max(kinds.values()) == 1 and not is_end) or os.environ.get(VARIABLE) == "0":
            return
        self._reported = total
        config = self._config
        log = str(config.worker_debug_path) if config.should_log(1) and config.worker_debug_path is not None else ""
        groups = self.groups()
        lines = report_lines(groups, rank=config.rank if config.world_size > 1 else None, log=log)
        LOGGER.error("%s", "\n".join(lines))
        LOGGER.error("%s", json.dumps(self._entry(shortened(groups))))

    def _write_to_debug_log(self, total: int) -> None:
        if total != self._logged and self._config.should_log(1):
            self._logged = total
            DebugLog(self._config).failures(self._entry(self.groups()))

    def _entry(self, groups: Sequence[FailureGroup]) -> dict[str, Any]:
        return report_entry(groups, reporter=self._name, rank=self._config.rank)


class ClosedWithReport:
    """A prefetcher whose end is the end of a run: closing it reports failures.

    Args:
        prefetcher: Has a method `close`.
        reporter: Reports them.
    """

    def __init__(self, prefetcher: Any, reporter: FailureReporter) -> None:
        self._prefetcher = prefetcher
        self._reporter = reporter

    def close(self) -> None:
        """Closes the prefetcher, and reports failures."""
        try:
            self._prefetcher.close()
        finally:
            self._reporter.report(is_end=True)
