"""Samples: bytes of every kind that a repository is made of, taken from two real ones, sealed and plain."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from chainstore.crypto.keys import generate_key_file
from chainstore.errors import IdMismatch
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import contents_record
from chainstore.model.tree import Entry
from chainstore.model.wire import decode, encode
from chainstore.repository import Repository, init
from chainstore.state.values import encode_value
from chainstore.storage import fs
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import scan

VALUES: tuple[object, ...] = (
    *(
        None,
        True,
        5,
        -1 << 70,
        "text",
        b"bytes",
        0.5,
        [1, 2.5, [3]],
        (1, (2,)),
        {"a": 1, 2: [None]},
        {1, 2},
        frozenset("ab"),
    ),
    *(
        1 + 2j,
        range(3),
        slice(1, None, 2),
        [0.5, 1.5],
        Path("a/b"),
        np.float32(1),
        np.random.PCG64(1).state,
        bytearray(b"x"),
    ),
)


class Samples:
    """What the parsers are given.

    Attributes:
        path, key: of a sealed repository.
        records, packs, contents, log, format, owner: bytes of the plain one's files.
        bodies: of its log's lines; plain_bodies: all of them as one list.
        pages, roots, commits, values: plain bytes of objects.  nodes: some of all.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._plain = folder / "sealed", folder / "plain"
        self.key = generate_key_file(folder / "key", random.Random(1).randbytes)
        with init(self.path, key=self.key, threads=1) as repo:
            _fill(repo)
        with init(self._plain, encrypt=False, threads=1) as repo:
            _fill(repo)
            self._read_objects(repo)
        self._read_packs()
        self._read_log()
        self.format = (self._plain / "format").read_bytes()
        self.owner = (self._plain / "index.owner").read_bytes()
        self.values = tuple(encode(encode_value(value)) for value in VALUES)
        self.nodes = (*self.values, *self.bodies, *self.pages[:4], *self.commits[:1])

    def _read_objects(self, repo: Repository) -> None:
        self.objects: dict[ObjectId, bytes] = {id: bytes(repo._db.read(id)) for id in repo._db.scan()}
        commits = list(repo.log(all_refs=True))
        roots = {commit.tree for commit in commits}
        self.commits = tuple(self.objects[commit.id] for commit in commits)
        self.roots = tuple(self.objects[root] for root in sorted(roots))
        with repo._db.view() as view:
            trees = [id for id in sorted(self.objects) if (place := view.place(id)) and place.kind == Kind.TREE]
        self.pages = tuple(self.objects[id] for id in trees if id not in roots)

    def _read_packs(self) -> None:
        self.packs, records = [], []
        for path in sorted(file for file in self._plain.glob("packs/*/*") if file.is_file()):
            data = path.read_bytes()
            with fs.open_file(path) as file:
                found = list(scan(file, 0, len(data), "sample"))
            self.packs += [data[:8192], data[found[-4][0] :]]
            records += [data[at : at + header.record_bytes] for at, header in found if header.record_bytes < 1 << 12]
            self.contents = b"".join(map(bytes, contents_record(found[:20], found[0][1].repo_id)))
        self.records = tuple(records[:: len(records) // 8])

    def _read_log(self) -> None:
        log = Log(self._plain / "log")
        self.log = log.path(1).read_bytes()
        self.bodies = tuple(line.body for _, line in log.after(BEGINNING))
        self.plain_bodies = encode([decode(body) for body in self.bodies])

    def load_after(self, first: bytes) -> Callable[[ObjectId], bytes]:
        """Return what loads `first` at the first call, and the object of that id at every later one."""
        given = iter((first,))

        def load(id: ObjectId) -> bytes:
            data = next(given, None) or self.objects.get(id)
            if data is None:
                raise IdMismatch(str(id), "it is missing")
            return data

        return load

    def content(self, entry: Entry, length: int) -> bytes:
        """Return the bytes of an entry, or others of that length."""
        parts = (self.objects.get(extent.chunk, b"")[extent.offset :][: extent.length] for extent in entry.extents)
        return b"".join(parts)[:length].ljust(length, b"\1")

    def copy_plain(self, folder: Path) -> Path:
        """Return a copy of the plain repository without its index."""
        shutil.copytree(self._plain, folder, ignore=shutil.ignore_patterns("reserve", "index", "index.owner"))
        return folder

    @staticmethod
    def put_log(root: Path, data: bytes) -> None:
        """Make `data` the log of a repository, whose index is removed."""
        shutil.rmtree(root / "index", ignore_errors=True)
        (root / "index.owner").unlink(missing_ok=True)
        for segment in (root / "log").iterdir():
            segment.unlink()
        (root / "log" / "00000001").write_bytes(data)


def _fill(repo: Repository) -> None:
    chance = np.random.default_rng(3)
    shared = chance.standard_normal((20, 30))
    state: dict[object, object] = {
        "model": {
            f"layer.{number}": {"weight": chance.standard_normal((4, 5), dtype=np.float32)} for number in range(30)
        },
        "sparse": np.where(chance.random(9000) < 0.02, 1.5, 0).astype(np.float32),
        "turned": shared.T,
        "tied": [shared, shared, shared[3:9]],
        "wide": np.broadcast_to(np.arange(4), (3, 4)),
        "big": np.arange(40_000, dtype=np.int32),
        "text": np.array(["a", "bc"]),
        "values": list(VALUES),
        (1, "key"): {2.5: {b"k": {None: True}}},
    }
    for number in range(4):
        state["step"] = number
        repo.commit(state, f"{number}", step=number, metrics={"loss": 1 / (1 + number)}, meta={"at": [number]})
    repo.tag("first", "main~3")
    repo.branch("other", "main~1")
    repo.commit({"other": state["tied"]}, "other", branch="other")
    repo.reset("other", "other~1")
    repo.set_setting("codec", "small")
    repo.delete_ref("other")
    repo.branch("other", "main~2")
