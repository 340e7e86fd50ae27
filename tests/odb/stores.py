"""Small stores to look into: made, opened, filled and compared."""

import os
import shutil
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from random import Random

from chainstore.crypto.bundle import new_bundle
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Change, SetRef
from chainstore.model.commit import Note, Stats
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Entry, Extent
from chainstore.observe import silent
from chainstore.odb.batch import LocalBatch
from chainstore.odb.layout import Format, Layout
from chainstore.odb.local import LocalDatabase
from chainstore.odb.opening import create_local, open_local
from chainstore.odb.rebuild import rebuild_index
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import SUITE_NONE, SUITE_V1, Sealer
from chainstore.odb.surroundings import Surroundings
from chainstore.ops.commit import write_commit, write_trees

MAIN = "heads/main"
_clock = count(1_700_000_000_000_000)


def surroundings() -> Surroundings:
    return Surroundings(lambda: next(_clock), os.urandom, "host", "test")


@dataclass(frozen=True)
class Store:
    """A repository directory, opened as often as a test likes; its keys never change."""

    root: Path
    encrypted: bool = True
    keyring: int = 0

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def format(self) -> Format:
        return Format(b"R" * 16, SUITE_V1 if self.encrypted else SUITE_NONE)

    @property
    def sealer(self) -> Sealer:
        bundle = new_bundle(Random(7).randbytes) if self.encrypted else None
        return Sealer(self.format.repo_id, bundle, os.urandom)

    def create(self) -> LocalDatabase:
        self.layout.create()
        there = self.layout, self.format, self.sealer, self.keyring, surroundings()
        create_local(*there, head=MAIN, config={}).close()
        self.layout.write_format(self.format)
        return self.open()

    def open(self, *, readonly: bool = False) -> LocalDatabase:
        return open_local(self.layout, self.format, self.sealer, self.keyring, surroundings(), readonly=readonly)

    def rebuild(self) -> RebuildReport:
        return rebuild_index(self.layout, self.format, self.sealer, self.keyring, surroundings(), silent)

    def copy(self, to: Path) -> "Store":
        shutil.copytree(self.root, to)
        return Store(to, self.encrypted, self.keyring)


def put(db: LocalDatabase, *chunks: bytes, changes: tuple[Change, ...] = ()) -> list[ObjectId]:
    """Publish chunks and return their ids."""
    batch = db.batch("none")
    try:
        ids = [batch.append(Kind.CHUNK, chunk).id for chunk in chunks]
        db.publish(batch, changes)
        return ids
    finally:
        db.retire_batch(batch)


def tip(db: LocalDatabase, ref: str = MAIN) -> ObjectId | None:
    with db.view() as view:
        row = view.ref(ref)
    assert row is None or not isinstance(row.target, str)
    return row.target if row is not None else None


def commit(db: LocalDatabase, *chunks: bytes, ref: str = MAIN, message: str = "") -> ObjectId:
    """Publish a snapshot of these chunks and return the commit's id."""
    batch = db.batch("none")
    try:
        return commit_in(db, batch, *chunks, ref=ref, message=message)
    finally:
        db.retire_batch(batch)


def commit_in(db: LocalDatabase, batch: LocalBatch, *chunks: bytes, ref: str = MAIN, message: str = "") -> ObjectId:
    entries = []
    for number, chunk in enumerate(chunks):
        id = batch.append(Kind.CHUNK, chunk).id
        entries.append(Entry((f"k{number}",), ["x"], None, (Extent(id, 0, len(chunk)),)))
    root, _ = write_trees(batch, Manifest(entries), Manifest())
    old = tip(db, ref)
    parents = (old,) if old is not None else ()
    id = write_commit(batch, root, parents, Note(message), next(_clock), Stats())
    db.publish(batch, [SetRef(ref, old, id, message)], parents=parents)
    return id


def logical(db: LocalDatabase) -> dict[str, object]:
    """Return everything the index says, decrypted, without what differs between two indexes that mean the same."""
    with db.view() as view:
        names = {number: line.pack for number, line in view.packs()}
        objects = {id: (names[place.pack], *place[1:]) for id, place in view.objects()}
        position = view.position()
        return {
            "objects": objects,
            "bases": {id: view.bases(id) for id in objects},
            "inline": {id: view.inline(id) for id in objects},
            "packs": {line.pack: line for _, line in view.packs()},
            "refs": view.refs(),
            "reflog": sorted(view.reflogs(), key=lambda line: (line.name, line.seq)),
            "marks": list(view.marks()),
            "config": view.config(),
            "log": dict(view.lines()),
            "position": (position.seq, position.hash),
            "identity": view.identity(),
        }
