"""A follower as the rank that gives it batches sees it: what it asked for, and whether others wait for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from energon_dali.loader.sharing.connections import AnyChannel, RemoteChannel
from energon_dali.loader.sharing.messages import Goodbye, Took, Waiting, decode

if TYPE_CHECKING:
    from energon_dali.loader.sharing.messages import Course, FromFollower


@dataclass(eq=False)
class Served:
    """A follower, or a relay."""

    rank: int
    """Its number in the whole job."""
    channel: AnyChannel
    course: Course | None = None
    """None until it asks for its first element."""
    wanted: int = 0
    """Number of the element that it asked for last."""
    sent: int = 0
    """Number of the first element that was not sent to it."""
    has_left: bool = False
    """Whether it closed its loader: its process may then end, and may also continue."""
    is_gone: bool = False
    """Whether its connection ended. If it had left before, nobody waits for it; otherwise it died."""
    waits_for: tuple[int, ...] = ()
    """The ranks for which a relay waits itself."""
    known: set[int] = field(default_factory=set)
    """Arenas whose descriptors it has."""
    dropped: list[int] = field(default_factory=list)
    """Arenas that it has to forget."""

    @property
    def late(self) -> tuple[int, ...]:
        """Who is late if this one is behind: itself, or the ranks for which it waits as a relay."""
        return self.waits_for or (self.rank,)

    def is_ahead(self, course: Course) -> bool:
        """Returns whether it has made a call that is still to come in a course."""
        return self.course is not None and self.course.calls > course.calls

    def made_other_calls(self, course: Course) -> bool:
        """Returns whether it made as many calls as there are in a course, and other ones."""
        return (
            not self.is_gone and self.course is not None and self.course.calls == course.calls and self.course != course
        )

    def is_behind(self, course: Course, number: int, depth: int) -> bool:
        """Returns whether an element must not be read yet, because this one has not asked for one of those before it.

        Args:
            course: The course of the reader's loader.
            number: Number of the element.
            depth: Number of elements by which this one may lag.
        """
        if self.is_gone:
            return False
        if self.course is not None and self.is_ahead(course) and number < self.course.given:
            return False  # it took the element before its call; the reader was closed, and reads it again for itself
        # A relay asks ahead itself; elements that it has not asked for would fill the network buffers.
        allowed = 0 if isinstance(self.channel, RemoteChannel) else depth
        return self.course != course or number - self.wanted > allowed

    def receive(self, released: list[int]) -> bool:
        """Takes the messages that have arrived; returns whether the connection lasts.

        Args:
            released: Receives the arenas that were released; see `SeenArenas.take_released`.
        """
        for _ in range(2):  # a reset connection reports that first, and then returns what arrived before
            try:
                while (received := self.channel.receive(wait=False)) is not None:
                    self._take(decode(received[0]), released)
                return True
            except (EOFError, OSError):
                continue
        return False

    def _take(self, message: FromFollower, released: list[int]) -> None:
        if isinstance(message, Waiting):
            self.waits_for = message.ranks
            return
        self.waits_for = ()
        self.has_left = isinstance(message, Goodbye)
        if isinstance(message, Took):
            released += message.released
            if self.course != message.course:
                self.sent = message.given
            self.course, self.wanted = message.course, message.given
