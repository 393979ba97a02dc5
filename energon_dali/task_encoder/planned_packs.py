"""Packs that are planned from measured lengths, before anything is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from energon_dali.calls import explain_call
from energon_dali.errors import ConfigError
from energon_dali.plan.measured import TOKENS
from energon_dali.plan.packs import MOST_WINDOW, PackRule
from energon_dali.task_encoder.token_counts import count_tokens


@explain_call
@dataclass(frozen=True)
class PlannedPacks:
    """Packs the samples of a job with global batches by their measured lengths: which ones, the plan decides.

    Each window of samples is packed by best fit. `global_batch_size` and `batch_size` count packs then, and
    `pack_selected_samples` receives the samples of a pack. No sample waits in a buffer.

    A sample that is longer than a pack, or has no measure, is in no pack. If the task encoder overrides `cut_sample`,
    long ones are cut instead.

    Args:
        max_length: Length of a pack.
        window: Samples that are packed together. A larger one fills packs better; planning takes about 0.5 us per
            sample in any case, and nothing waits for it.
        length: Name of the measure that is the length of a sample: "tokens" is that in the language model.
        multiple: The length of each sample is rounded up to a multiple of this, as context parallelism wants it.
        max_samples: Most samples in a pack; None is unlimited.
        real_length: Returns the length of an encoded sample. One whose real length is above its measure is dropped,
            and counted as a failure of `pack_selected_samples`. By default `count_tokens` for tokens, and no check for
            other measures; None checks nothing.

    Raises:
        ConfigError: An argument is invalid.
    """

    max_length: int
    _: KW_ONLY
    window: int = 10_000
    length: str = TOKENS
    multiple: int = 1
    max_samples: int | None = None
    real_length: Callable[[Any], int] | str | None = "default"

    def __post_init__(self) -> None:
        largest = 1 << 40
        for name, good, allowed in (
            ("max_length", _is_whole(self.max_length, 1, largest), f"give a whole number from 1 to 2**40={largest}"),
            ("window", _is_whole(self.window, 1, MOST_WINDOW), f"give a whole number from 1 to {MOST_WINDOW:,}"),
            ("length", isinstance(self.length, str) and bool(self.length), 'give the name of a measure, as "tokens"'),
            ("multiple", _is_whole(self.multiple, 1, largest), "give a whole number of at least 1"),
            ("max_samples", self.max_samples is None or _is_whole(self.max_samples, 1, largest), "give at least 1"),
            (
                "real_length",
                self.real_length in (None, "default") or callable(self.real_length),
                "give a function of an encoded sample, or None for no check",
            ),
        ):
            if not good:
                raise ConfigError(f"{name}={getattr(self, name)!r} is invalid: {allowed}.")
        if self.multiple > self.max_length:
            raise ConfigError(
                f"multiple={self.multiple} is larger than max_length={self.max_length}, so that no sample would fit. "
                "Give a multiple of at most max_length."
            )

    def rule(self, *, cuts: bool) -> PackRule:
        """Returns what the plan has to know.

        Args:
            cuts: Whether samples that are too long are cut.
        """
        return PackRule(self.max_length, self.window, self.length, self.multiple, self.max_samples, cuts)

    @property
    def measure_of_encoded(self) -> Callable[[Any], int] | None:
        """Returns the real length of an encoded sample; None if it is not checked."""
        if self.real_length == "default":
            return count_tokens if self.length == TOKENS else None
        assert not isinstance(self.real_length, str)
        return self.real_length


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
