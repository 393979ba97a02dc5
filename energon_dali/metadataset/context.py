"""What a metadataset passes down to its datasets: split part, subflavors, shuffling and subsets; weights over time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from energon_dali.errors import ConfigError
from energon_dali.metadataset.document import Node
from energon_dali.metadataset.reference import Subset
from energon_dali.metadataset.schema import OptionsRecord, WeightsRecord
from energon_dali.plan.scheduled import OVER, Over
from energon_dali.shards.documents.content import excerpt

_MOST_DIGITS = 12
DOCUMENT_OVER: tuple[Over, ...] = (*OVER, "tokens")
"""What the points of a metadataset count."""


class CallOptions(TypedDict, total=False):
    """What a call says about all datasets of a path."""

    subflavors: Mapping[str, Any] | None
    """Put into every sample; they override all others. None by default."""
    shuffle_over_epochs_multiplier: int | None
    """Combined with those of the files; 1 by default."""
    subset: object
    """Range, keys or condition of all samples, as `Subset.of` takes it; None, the default, is all."""


@dataclass(frozen=True)
class Context:
    """The options that hold at one level."""

    split_part: str
    """Part of the split, unless a level below names another."""
    subflavors: Mapping[str, Any] = field(default_factory=dict)
    """They override those of the levels below."""
    shuffle_over_epochs_multiplier: int | None = 1
    """Product of the levels so far; -1 draws with replacement, None keeps file order."""
    subset: Subset | None = None
    """Share of everything below."""
    chain: tuple[str, ...] = ()
    """The metadataset files that lead here."""

    @classmethod
    def of_call(
        cls,
        split_part: str,
        *,
        chain: tuple[str, ...] = (),
        subflavors: Mapping[str, Any] | None = None,
        shuffle_over_epochs_multiplier: int | None = 1,
        subset: object = None,
    ) -> Context:
        """Returns what a call says about all datasets.

        Raises:
            ConfigError: The subset is invalid.
        """
        chosen = None if subset is None else Subset.of(subset)
        return cls(split_part, dict(subflavors or {}), shuffle_over_epochs_multiplier, chosen, chain)

    def below(self, node: Node, record: OptionsRecord, subflavors: Mapping[str, Any]) -> Context:
        """Returns the context below a dataset or join.

        Args:
            node: The dataset or join.
            record: Its options.
            subflavors: Its subflavors.

        Raises:
            DatasetFormatError: An option or subset is invalid.
        """
        multiplier = record.shuffle_over_epochs_multiplier
        if multiplier is not None and multiplier < 1 and multiplier != -1:
            raise node.at("shuffle_over_epochs_multiplier").error(
                f"{multiplier} is invalid here: give a whole number of at least 1, -1 to draw with replacement, or "
                "null for file order."
            )
        inner = replace(
            self,
            split_part=record.split_part or self.split_part,
            subflavors={**subflavors, **self.subflavors},
            shuffle_over_epochs_multiplier=combine_shuffle_over_epochs(self.shuffle_over_epochs_multiplier, multiplier),
        )
        return inner.with_subset(node, getattr(record, "subset", None))

    def with_subset(self, node: Node, value: Any) -> Context:
        """Returns the context with the subset of a level, limited by those above it.

        Args:
            node: The mapping that may have the key `subset`.
            value: Its subset; None if it has none.

        Raises:
            DatasetFormatError: The subset is invalid, or does not fit those above.
        """
        if value is None and (self.subset is None or (self.subset.numbers is None and self.subset.keys is None)):
            return self
        try:
            inner = Subset() if value is None else Subset.of(_with_path(node.at("subset"), value))
            return replace(self, subset=inner.within(self.subset))
        except ConfigError as error:
            raise (node if value is None else node.at("subset")).error(str(error)) from error


def _with_path(node: Node, value: Any) -> Any:
    """Returns a subset with the path of its file of keys resolved: relative to the metadataset.

    Args:
        node: Where the subset is.
        value: The subset, as it is written.

    Raises:
        DatasetFormatError: The path is invalid, or a metadataset in a store names a local file.
    """
    if not isinstance(value, Mapping) or not isinstance(value.get("keys"), str):
        return value
    at = node.at("keys")
    path = at.resolve_path(value["keys"])
    if path.is_local and not node.document.base.is_local:
        raise at.error(f"{excerpt(value['keys'])} is a local file, which a remote metadataset must not name.")
    return {**value, "keys": path}


def combine_shuffle_over_epochs(outer: int | None, inner: int | None) -> int | None:
    """Returns the multiplier of two levels: None (file order) overrides -1 (with replacement), which overrides the
    product.
    """
    if outer is None or inner is None:
        return None
    return -1 if -1 in (outer, inner) else outer * inner


@dataclass
class Moment:
    """The step or sample for which the weights of a metadataset are wanted.

    Weights that hold jump at their points. `is_before` takes those from just before a point.
    """

    at: int = 0
    """The step or sample, from the beginning of the job."""
    is_before: bool = False
    """Whether a jump at this point has not happened yet."""
    changes: set[int] = field(default_factory=set)
    """Takes the steps or samples at which weights change, or change their slope."""
    over: Over | None = None
    """Takes what the points count; None if no weight changes."""
    unsaid: Node | None = None
    """Takes a weight that does not say what its points count; None if all do."""
    moves: bool = False
    """Set if a weight moves linearly after this point."""

    def weight(self, given: float | WeightsRecord, node: Node) -> float:
        """Returns a weight.

        Args:
            given: As the metadataset has it.
            node: Where.

        Raises:
            DatasetFormatError: There are no points, points of both kinds, none at 0, or they count something else than
                those of other weights.
        """
        if not isinstance(given, WeightsRecord):
            return float(given)
        texts = given.step if given.linear is None else given.linear
        if not texts or (given.step is not None and given.linear is not None):
            raise node.error("a weight over time has either step or linear, a mapping of steps to weights.")
        one = self._over_of(given, node)[:-1]
        wrong = [text for text in texts if not text.isascii() or not text.isdecimal() or len(text) > _MOST_DIGITS]
        if wrong:
            raise node.error(f"{excerpt(wrong[0])} is not a {one} of the job: give a whole number of at least 0.")
        points = {int(text): weight for text, weight in texts.items()}
        places = sorted(points)
        if places[0]:
            raise node.error(f"a weight over time begins at {one} 0, and the first here is {places[0]}.")
        self.changes.update(places)
        last = max((at for at in places if at < self.at or (at == self.at and not self.is_before)), default=0)
        after = next((at for at in places if at > last), None)
        if given.linear is None or after is None:
            return points[last]
        self.moves = self.moves or (not self.is_before and points[after] != points[last])
        return points[last] + (points[after] - points[last]) * (self.at - last) / (after - last)

    def _over_of(self, given: WeightsRecord, node: Node) -> Over:
        """Returns what the points of a weight count, and notes it."""
        over: Over = "steps"
        if given.over is None:
            self.unsaid = self.unsaid or node
        else:
            known = [one for one in DOCUMENT_OVER if one == given.over]
            if not known:
                allowed = f"{', '.join(DOCUMENT_OVER[:-1])} or {DOCUMENT_OVER[-1]}"
                raise node.at("over").error(f"{excerpt(given.over)} cannot be counted here: write {allowed}.")
            (over,) = known
        if self.over not in (None, over):
            raise node.error(
                f"this weight changes over {over}, and another one over {self.over}. Write the same `over` at all of "
                "them; without it, the points are steps."
            )
        self.over = over
        return over
