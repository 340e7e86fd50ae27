"""The specimen: one encrypted repository that is copied and then damaged.

Twelve commits on three branches, three tags, three arrays, one of two chunks, of which a part of one changes at a time.
"""

import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chainstore.crypto.keys import generate_key_file
from chainstore.errors import Damaged, RevisionNotFound
from chainstore.ids import ObjectId
from chainstore.lazy import Snapshot
from chainstore.model.frame import Header
from chainstore.model.tree import Extent
from chainstore.odb.rows import is_inline
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.storage import fs
from chainstore.storage.pack import scan
from tests.faults.chronicle import same

ARRAYS = {"first": 275_000, "second": 10_000, "third": 10_000}  # items of 4 bytes
CHANGED = 8_000  # items at a time; those of the first array behind its first MiB

NOTHING: Mapping[str, str] = {}

Part = tuple[str, str]  # commit, top-level key
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Hit:
    """What lies at a place of a pack.

    Attributes:
        users: what it belongs to.
        indexed: whether the index holds it too, whole.
        matters: whether this very byte is needed to read it; the checksum of a payload and the padding are not.
    """

    header: Header
    users: frozenset[Part]
    indexed: bool
    matters: bool

    @property
    def lost(self) -> frozenset[Part]:
        """What cannot be read when this byte is another."""
        return self.users if self.matters and not self.indexed else frozenset()


@dataclass(frozen=True, slots=True)
class Spoiled:
    """What a pack lost.

    Attributes:
        named: what a verification tells of, with what the index holds, too.
        lost: what cannot be read.
        gone: what cannot even be read once the records that are whole were looked for.
    """

    named: frozenset[Part]
    lost: frozenset[Part]
    gone: frozenset[Part]


class Specimen:
    """The repository, and everything that is known of it.

    Attributes:
        path: never opened again, only copied.
        states: what each commit must come back as.
        refs: name -> commit, of branches and tags.
        yesterday: the whole repository as it was three commits before the end.
    """

    def __init__(self, folder: Path, commits: int = 12) -> None:
        self.folder, self.path = folder, folder / "specimen"
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        self.states: dict[str, State] = {}
        self.yesterday = folder / "yesterday"
        with init(self.path, key=self.key, threads=1) as repo:
            self._fill(repo, commits)
            self.refs = _refs(repo)
            self._users = _users(repo, list(self.states))
        self._records = {file: _records(self.path / file) for file in self.files("packs/*/*")}

    def _fill(self, repo: Repository, commits: int) -> None:
        source = np.random.default_rng(7)
        state: State = {name: source.standard_normal(items, dtype=np.float32) for name, items in ARRAYS.items()}
        for number in range(commits):
            state = dict(state)
            name = list(ARRAYS)[number % 3]
            state[name] = state[name].copy()
            state[name][-CHANGED:] = source.standard_normal(CHANGED, dtype=np.float32)
            state["small"] = {"step": number, "rng": source.bytes(200), "lr": 0.1**number}
            branch = ("main", "left", "main", "right")[number % 4]
            commit = repo.commit(
                state, f"{number}", branch=branch, step=number, tags=[f"t{number}"] * (number % 4 == 0)
            )
            self.states[str(commit.id)] = state
            if number == commits - 4:
                shutil.copytree(self.path, self.yesterday, ignore=shutil.ignore_patterns("reserve"))

    def files(self, pattern: str) -> list[Path]:
        """Return the files that match, relative to the repository."""
        return sorted(file.relative_to(self.path) for file in self.path.glob(pattern) if file.is_file())

    @property
    def index(self) -> Path:
        """The data file of the index, relative to the repository."""
        return self.files("index/*/data.mdb")[0]

    def copy(self, folder: Path) -> Path:
        """Return a fresh copy of the repository, instead of what is in `folder`."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.path, folder, ignore=shutil.ignore_patterns("reserve"))
        return folder

    def open(self, path: Path, *, readonly: bool = False) -> Repository:
        return open_repository(path, key=self.key, readonly=readonly, threads=1)

    def hit(self, pack: Path, offset: int) -> Hit:
        """Return what lies at a place of a pack."""
        for start, header in self._records[pack]:
            if start <= offset < start + header.record_bytes:
                payload_end = start + header.header_bytes + header.stored_len
                indexed = is_inline(header.kind, header.record_bytes)
                return Hit(header, self._users.get(header.id, frozenset()), indexed, offset < payload_end)
        raise AssertionError(f"nothing at byte {offset} of {pack}")

    def place(self, source: random.Random) -> tuple[Path, int]:
        """Return a pack and a byte of it: any, or any of any record, so that small ones have their turn."""
        packs = list(self._records)
        pack = source.choices(packs, [(self.path / pack).stat().st_size for pack in packs])[0]
        if source.random() < 0.5:
            return pack, source.randrange((self.path / pack).stat().st_size)
        start, length = source.choice(self.records(pack))
        return pack, start + source.randrange(length)

    def records(self, pack: Path) -> list[tuple[int, int]]:
        """Return offset and length of every record of a pack, in order."""
        return [(start, header.record_bytes) for start, header in self._records[pack]]

    def spoiled_by(self, pack: Path, now: bytes) -> Spoiled:
        """Return what is lost when these are the bytes of a pack."""
        before = (self.path / pack).read_bytes()
        named, lost, gone = set[Part](), set[Part](), set[Part]()
        for at, header in self._records[pack]:
            hit, end = self.hit(pack, at), at + header.header_bytes + header.stored_len
            whole = at + header.record_bytes if hit.indexed else end
            if now[at:whole] != before[at:whole]:
                named |= hit.users
                lost |= hit.lost
                gone |= hit.lost if now.find(before[at:end]) % 64 else set()  # -1, too, is no place of a record
        return Spoiled(frozenset(named), frozenset(lost), frozenset(gone))

    def look(self, repo: Repository, *, arrays: bool = True, moved: Mapping[str, str] = NOTHING) -> set[Part]:
        """Read everything, or all but the arrays, and return what cannot be read.

        Args:
            moved: name -> commit, "nothing" for none: what a rebuild said of refs whose commits are not whole.

        Raises:
            AssertionError: something came back as other bytes, or a ref is elsewhere than it was.
        """
        refs = _refs(repo)
        wanted_refs = {name: id for name, id in {**self.refs, **moved}.items() if id != "nothing"}
        assert refs == wanted_refs, f"refs are {refs}, not {wanted_refs}"
        known: dict[tuple[Extent, ...], tuple[bool, object]] = {}
        lost: set[Part] = set()
        for id, state in self.states.items():
            try:
                manifest = (snapshot := repo.snapshot(ObjectId.parse(id))).manifest
            except (Damaged, RevisionNotFound):  # the second, where a damaged index hides a row
                lost |= {(id, name) for name in state}
                continue
            for name, wanted in state.items():
                if name in ARRAYS and not arrays:
                    continue
                extents = manifest[(name,)].extents
                if extents not in known:
                    known[extents] = _reads(snapshot, name, wanted), wanted
                good, what = known[extents]  # equal chunks are read once
                assert same(what, wanted), f"{name} of {id} names the chunks of something else"
                if not good:
                    lost.add((id, name))
        return lost


def can_read(repo: Repository, part: Part, wanted: object) -> bool:
    """Whether a part can be read, and then as it was."""
    return _reads(repo.snapshot(ObjectId.parse(part[0])), part[1], wanted)


def _reads(snapshot: Snapshot, name: str, wanted: object) -> bool:
    try:
        found = snapshot[name]
    except Damaged:
        return False
    assert same(found, wanted), f"{name} of {snapshot} came back as other bytes"
    return True


def _refs(repo: Repository) -> dict[str, str]:
    return {name: str(id) for name, id in {**repo.branches(), **repo.tags()}.items()}


def _users(repo: Repository, commits: list[str]) -> dict[ObjectId, frozenset[Part]]:
    users: dict[ObjectId, set[Part]] = {}
    for commit in commits:
        for entry in repo.snapshot(ObjectId.parse(commit)).manifest.entries:
            for extent in entry.extents:
                users.setdefault(extent.chunk, set()).add((commit, str(entry.path[0])))
    return {chunk: frozenset(parts) for chunk, parts in users.items()}


def _records(file: Path) -> list[tuple[int, Header]]:
    with fs.open_file(file) as pack:
        return list(scan(pack, 0, pack.size(), file.name))
