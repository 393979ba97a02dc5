"""Keeps the proportions of a blend in a unit that is known only after a sample is encoded, such as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_dali.errors import StateError
from energon_dali.shards.documents.state_entries import checked_count, count_of, damaged, entry_of, list_of, numbers_of

FEEDBACK_DRAWS = 32
"""Draws that are planned together, from what was measured before the first of them."""

_HORIZON = 4
"""Windows of draws over which a wrong proportion is corrected: less would overshoot."""


class ShareFeedback:
    """What the sources of a blend yielded so far in one stream, and how often to draw each of them next.

    The draws of a window follow from the sizes of the samples before the window. A stream draws, cooks and encodes one
    sample after the other, so all sizes are known when the window begins. A restored stream has the same sizes,
    because the units so far and the weights of the current window are part of the state.

    Args:
        weights: Wanted proportions of the units, one per source.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        values = np.asarray(weights, np.float64)
        self._shares = values / values.sum()
        self._units: list[float] = [0] * len(values)
        self._drawn: list[int] = [0] * len(values)
        self._window = -1
        self._weights: list[float] = []
        self.source = 0
        """Number of the source that was drawn last."""

    def weights(self, window: int) -> list[float]:
        """Returns the weights of the draws of a window. A restored window keeps those that it began with."""
        if window != self._window:
            self._weights, self._window = self._next_weights(), window
        return self._weights

    def _next_weights(self) -> list[float]:
        units, drawn = np.array(self._units, np.float64), np.array(self._drawn, np.float64)  # [n]
        total = units.sum()
        if not total or not drawn[units > 0].sum():  # a damaged state may say that nothing was drawn
            return self._shares.tolist()  # type: ignore[no-any-return]
        mean = total / drawn[units > 0].sum()
        # A source that yielded nothing would be drawn indefinitely: assume that its samples are like the others.
        units = np.where(units > 0, units, drawn * mean)
        length = (units + mean) / (drawn + 1)  # units per draw, close to the mean of all while little is known
        coming = _HORIZON * FEEDBACK_DRAWS / (self._shares / length).sum()
        deficit = np.maximum(0, self._shares * (units.sum() + coming) - units)
        return (deficit / length).tolist()  # type: ignore[no-any-return]

    def drew(self, source: int) -> None:
        """Notes a draw of the blend."""
        self._drawn[source] += 1
        self.source = source

    def measured(self, units: float) -> None:
        """Adds the units of an encoded sample to the source that was drawn last."""
        self._units[self.source] += units

    def drawn(self) -> list[int]:
        """Returns how often each source was drawn, for the state of the blend."""
        return self._drawn.copy()

    def load_drawn(self, drawn: Any) -> None:
        """Takes what `drawn` returned when the state was saved.

        Raises:
            StateError: The state is of a blend by samples, or of other sources.
        """
        if not isinstance(drawn, list) or len(drawn) != len(self._drawn):
            raise StateError(
                "The state is of a blend by samples, and this one has blend_by. Build it as it was built when the "
                "state was saved."
            )
        self._drawn = [checked_count(count, "drawn") for count in drawn]

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured, and the weights of the current window."""
        return {"units": self._units.copy(), "window": self._window, "weights": self._weights, "leaf": self.source}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a state.

        Raises:
            StateError: It is of another number of sources.
        """
        if len(list_of(state, "units")) != len(self._units):
            raise StateError(
                f"The state is of {len(state['units'])} datasets, and {len(self._units)} are blended here. Give the "
                "same list of datasets as when it was saved."
            )
        units, weights = numbers_of(state, "units", len(self._units)), list_of(state, "weights")
        window = entry_of(state, "window")
        if window == -1:
            weights = []
        else:
            checked_count(window, "window")
            numbers_of(state, "weights", len(self._units))
            if not any(weights):
                raise damaged("weights", weights, "positive for at least one dataset")
        self.source = count_of(state, "leaf", len(self._units) - 1)
        self._units, self._weights, self._window = units, weights, window
