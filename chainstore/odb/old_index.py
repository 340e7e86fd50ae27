"""What the index before knew: small records, held whole, that their packs lost or hold damaged.

Commits and trees above all.  It is what is being replaced, so it is only read where that cannot do harm.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

from chainstore.errors import Damaged, Malformed, StorageError
from chainstore.ids import ObjectId
from chainstore.model.frame import split_record
from chainstore.odb.editor import Editor
from chainstore.odb.layout import Layout
from chainstore.odb.record import Sealer
from chainstore.odb.rows import Placed, is_within
from chainstore.odb.view import View
from chainstore.storage.index import Index

_ROOM = 4 << 20
_ROOM_PER_RECORD = 1024
_KEPT_AT_ONCE = 10_000

T = TypeVar("T")


def put_kept(layout: Layout, sealer: Sealer, index: Index) -> None:
    """Put small records of the index in force into a new one that lacks them, or has them from a damaged pack."""
    _put_kept(index, sealer, _small_records_of_old_index(layout, sealer))


def _in_parts(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield lists of what one transaction takes."""
    left = iter(items)
    while part := list(islice(left, _KEPT_AT_ONCE)):
        yield part


def _put_kept(index: Index, sealer: Sealer, kept: Iterator[tuple[bytes, Placed]]) -> None:
    """Put those small records of the old index that the packs lost, or hold damaged: commits and trees above all."""
    for some in _in_parts(kept):
        index.ensure_room(_ROOM + sum(_ROOM_PER_RECORD + 2 * len(placed.inline or b"") for _, placed in some))
        with index.write() as rows:
            editor = Editor(rows, sealer)
            for pack, placed in sorted(some, key=lambda item: item[1].header.depth):
                number = editor.pack_number(pack)
                line = editor.pack(number) if number is not None else None
                if number is None or line is None or line.retired or is_within(placed.offset, line.dead):
                    continue
                if placed.offset < line.length and not _is_whole(editor, placed.header.id):
                    editor.put_record(number, placed)


def _is_whole(view: View, id: ObjectId) -> bool:
    small = view.inline(id)
    if small is None:
        return view.place(id) is not None
    try:
        split_record(memoryview(small), "index")
    except Malformed:
        return False
    return True


def _small_records_of_old_index(layout: Layout, sealer: Sealer) -> Iterator[tuple[bytes, Placed]]:
    """Yield (pack, record) of what the index in force holds whole, if it can be opened without risk."""
    try:
        path = layout.index(layout.read_owner().uuid)
        if Index.verify_file(path):
            return
        with Index.open(path, readonly=True) as index, index.read() as rows:
            view = View(rows, sealer)
            packs = {number: line.pack for number, line in view.packs()}
            for id, data in rows.scan("inline"):
                place = view.place(id)
                try:
                    header, _ = split_record(memoryview(data), "index")
                except Malformed:
                    continue  # it was damaged in its pack already when the index got it
                if place is not None and place.pack in packs and header.repo_id == sealer.repo_id:
                    yield packs[place.pack], Placed(place.offset, header, data)
    except (Damaged, StorageError):
        return  # it is what is being replaced; the packs have to do
