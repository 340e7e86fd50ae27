"""A turn: the right to publish, held for more than one look.

with db.turn() as turn:                       # everything settled; nobody else publishes
    with turn.view() as view: ...             # as it is now, and stays until we publish
    turn.publish(changes, records, lost)
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from chainstore.errors import Conflict
from chainstore.model.change import Change, PackGrown
from chainstore.odb.editor import Lost
from chainstore.odb.publisher import Publisher, no_records
from chainstore.odb.rows import Placed
from chainstore.odb.view import View
from chainstore.storage.log import Position


class RebuiltMeanwhile(Conflict):
    """Another index was put in force since what is to be published was prepared: its rows may lie elsewhere."""

    code = "rebuilt-meanwhile"


class Turn:
    """What may be done while nobody else publishes.

    Attributes:
        position: the last line of log and index.
    """

    def __init__(
        self, publisher: Publisher, position: Position, view: Callable[[], AbstractContextManager[View]]
    ) -> None:
        self._publisher, self.position, self.view = publisher, position, view

    def publish(
        self,
        changes: Sequence[Change],
        records: Callable[[PackGrown], list[Placed]] = no_records,
        lost: Lost | None = None,
    ) -> None:
        """Publish one line; nothing is checked here.  See `Publisher.publish`."""
        self.position = self._publisher.publish(self.position, changes, records, lost)

    def start_segment(self) -> None:
        """Begin a new segment of the log; see `Publisher.start_segment`."""
        self.position = self._publisher.start_segment(self.position)
