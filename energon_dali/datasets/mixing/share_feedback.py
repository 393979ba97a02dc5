"""Keeps the shares of a blend right in a unit that is known only once a sample is encoded, such as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from energon_dali.errors import StateError
from energon_dali.shards.documents.state_entries import checked_count, count_of, damaged, entry_of, list_of, numbers_of

FEEDBACK_DRAWS = 32
"""Draws that are planned at once, from what was measured before the first of them."""

_HORIZON = 4
"""A share that is off is set right over this many windows of draws: at once would overshoot."""


class ShareFeedback:
    """What the leaves of a blend gave so far in one stream, and how often to draw them next.

    The draws of a window follow from what the samples before the window measured. In a stream samples are drawn, cooked
    and encoded one after the other, so all of that is known when the window begins, and a restored stream knows the
    same: the units so far and the weights of the running window are part of the state.

    Args:
        weights: Wanted shares of the units, one per leaf.
    """

    def __init__(self, weights: Sequence[float]) -> None:
        values = np.asarray(weights, np.float64)
        self._shares = values / values.sum()
        self._units: list[float] = [0] * len(values)
        self._drawn: list[int] = [0] * len(values)
        self._window = -1
        self._weights: list[float] = []
        self.leaf = 0
        """The leaf that was drawn last."""

    def weights(self, window: int) -> list[float]:
        """Returns the weights of the draws of a window; the same again if it began before the state was saved."""
        if window != self._window:
            self._weights, self._window = self._next_weights(), window
        return self._weights

    def _next_weights(self) -> list[float]:
        units, drawn = np.array(self._units, np.float64), np.array(self._drawn, np.float64)  # [n]
        total = units.sum()
        if not total or not drawn[units > 0].sum():  # a damaged state may say that nothing was drawn
            return self._shares.tolist()  # type: ignore[no-any-return]
        mean = total / drawn[units > 0].sum()
        # A leaf that gave nothing would be drawn for ever: it counts as if its samples were like the others.
        units = np.where(units > 0, units, drawn * mean)
        length = (units + mean) / (drawn + 1)  # units per draw, near the mean of all as long as little is known
        coming = _HORIZON * FEEDBACK_DRAWS / (self._shares / length).sum()
        deficit = np.maximum(0, self._shares * (units.sum() + coming) - units)
        return (deficit / length).tolist()  # type: ignore[no-any-return]

    def drew(self, leaf: int) -> None:
        """Notes a draw of the blend."""
        self._drawn[leaf] += 1
        self.leaf = leaf

    def measured(self, units: float) -> None:
        """Adds the units of an encoded sample to the leaf that was drawn last."""
        self._units[self.leaf] += units

    def drawn(self) -> list[int]:
        """Returns how often each leaf was drawn, for the state of the blend."""
        return self._drawn.copy()

    def load_drawn(self, drawn: Any) -> None:
        """Takes what `drawn` returned when the state was saved.

        Raises:
            StateError: The state is of a blend by samples, or of other leaves.
        """
        if not isinstance(drawn, list) or len(drawn) != len(self._drawn):
            raise StateError(
                "The state is of a blend by samples, and this one has blend_by. Build it as it was built when the "
                "state was saved."
            )
        self._drawn = [checked_count(count, "drawn") for count in drawn]

    def state_dict(self) -> dict[str, Any]:
        """Returns what was measured, and the weights of the running window."""
        return {"units": self._units.copy(), "window": self._window, "weights": self._weights, "leaf": self.leaf}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at a state.

        Raises:
            StateError: It is of another number of leaves.
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
        self.leaf = count_of(state, "leaf", len(self._units) - 1)
        self._units, self._weights, self._window = units, weights, window
