"""Rekey: everything sealed again with new keys, so that whoever had the old ones reads nothing that is here.

The new keys are durable, in the key slots, before a record uses them; from the next line of the log on, nobody can
publish with older ones.  Records are rewritten by the same path on which gc moves them, pack after pack, each batch
one line of the log; the log begins a new segment, and rows of the index that old keys sealed are sealed again.  What
was rewritten by then stays rewritten: the next run goes on.
"""

from dataclasses import dataclass
from functools import partial

from chainstore.ids import Kind
from chainstore.model.frame import FLAG_KEYFRAME, Buffer, Header
from chainstore.observe import Observer, Progress
from chainstore.odb.local import LocalDatabase
from chainstore.ops.garbage import PackContent
from chainstore.ops.moving import Mover
from chainstore.ops.reclaim import hold


@dataclass(frozen=True, slots=True)
class Outdated:
    """What older keys still open.

    Attributes:
        packs: those that hold such records, or bytes that once were.
        records, stored_bytes: of objects that are kept.
    """

    packs: tuple[PackContent, ...]
    records: int
    stored_bytes: int


def find_outdated(db: LocalDatabase, generation: int) -> Outdated:
    """Return what was sealed with keys older than `generation`."""
    records = nbytes = 0
    old: set[int] = set()
    with db.view() as view:
        packs = {number: PackContent(number, line) for number, line in view.packs() if not line.retired}
        for id, place in view.objects():
            packs[place.pack].keep(id, place.offset, place.length)
            if place.generation < generation:
                old.add(place.pack)
                records, nbytes = records + 1, nbytes + place.length
    found = tuple(pack for number, pack in packs.items() if number in old or pack.line.dead)
    return Outdated(found, records, nbytes)


def rewrite(db: LocalDatabase, outdated: Outdated, observer: Observer) -> tuple[int, list[str]]:
    """Rewrite packs with the keys in force; return the bytes of records rewritten, and what could not be and why.

    The caller holds the collector's lock.

    Raises:
        StoreFull: what was rewritten by then stays so.
    """
    sealer = db.sealer

    def recode(header: Header, payload: memoryview) -> tuple[Header, Buffer]:
        encoded = sealer.open(header, payload, bytearray(len(payload)))
        room = bytearray(sealer.sealed_bytes(len(encoded)))
        kind = Kind(header.kind)
        return sealer.seal(
            kind,
            header.id,
            header.plain_len,
            header.codecs,
            encoded,
            room,
            depth=header.depth,
            bases=header.bases,
            keyframe=bool(header.flags & FLAG_KEYFRAME),
        )

    mover = Mover(db, partial(db.turn, db.index_path), recode)
    left: list[str] = []
    total = sum(pack.kept_bytes for pack in outdated.packs)
    try:
        for content in outdated.packs:
            pack = hold(db.packs, content)
            if pack is None:
                left.append(f"pack {content.line.pack.hex()}: somebody writes to it")
                continue
            with pack.file:
                mover.move(pack, scarce=False)
            observer(Progress("rekey", mover.moved_bytes, total))
    finally:
        mover.close()
    return mover.moved_bytes, left + mover.problems
