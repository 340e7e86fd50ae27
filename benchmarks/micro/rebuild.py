"""How long a new index takes: `python benchmarks/micro/rebuild.py [PACKS] [RECORDS] [--small] [--network]`.

Makes an encrypted repository of 10 000 full packs of 100 records each and one log line a pack, deletes its index, and
times `rebuild_index`, which is what a second machine does too before it may write.  Of the records of a pack 95 are
chunks, 70 of them deltas in lines of 16, four are trees, one is the commit.  Chunks are of 1 MiB, and holes in their
files, since nobody reads them; with --small they are of 700 bytes, so that the index holds every record whole; with
--network the packs count as lying on a network disk, from which no small record is fetched.  The target is 10 s.
"""

import os
import resource
import shutil
import sys
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from chainstore.crypto.bundle import new_bundle
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Change, PackGrown, SetRef, Target, encode_changes
from chainstore.model.frame import FLAG_ENCRYPTED, Header, contents_record, frame_record
from chainstore.observe import silent
from chainstore.odb.layout import Format, Layout
from chainstore.odb.opening import create_local
from chainstore.odb.rebuild import rebuild_index
from chainstore.odb.record import SUITE_V1, Sealer
from chainstore.odb.surroundings import Surroundings
from chainstore.storage import fs
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import PackDir

TARGET_SECONDS = 10.0
CHUNK_BYTES, SMALL_BYTES, TREE_BYTES, COMMIT_BYTES = 1 << 20, 700, 2500, 400
TREES, DELTA_SHARE, LINE_OF_DELTAS = 4, 0.7, 16
MAIN = "heads/main"


class Maker:
    """Writes packs and log lines as a run of commits would have left them."""

    def __init__(self, root: Path, records: int, chunk_bytes: int) -> None:
        self.random = Random(4)
        self.format = Format(b"benchmark of 16b", SUITE_V1)
        self.sealer = Sealer(self.format.repo_id, new_bundle(self.random.randbytes), self.random.randbytes)
        self.around = Surroundings(lambda: time.time_ns() // 1000, os.urandom, "here", "benchmark")
        self.layout = Layout(root)
        self.records, self.chunk_bytes = records, chunk_bytes
        self.last: list[ObjectId] = []

    def make(self, packs: int) -> None:
        self.layout.create()
        create_local(self.layout, self.format, self.sealer, 0, self.around, head=MAIN, config={}).close()
        self.layout.write_format(self.format)
        (at, line) = next(Log(self.layout.log).after(BEGINNING))
        tip: Target = None
        lines = []
        for number in range(packs):
            growth, commit = self.pack(number)
            changes: list[Change] = [growth, SetRef(MAIN, tip, commit, f"commit: step {number}")]
            line = self.sealer.seal_line(line.seq + 1, line.hash, encode_changes(number, changes))
            lines.append(line.to_bytes())
            tip = commit
        gone = encode_changes(packs, [SetRef(MAIN, tip, None, "the commits here hold nothing")])
        lines.append(self.sealer.seal_line(line.seq + 1, line.hash, gone).to_bytes())
        with fs.open_file(Log(self.layout.log).path(at.segment), write=True) as file:
            file.append(*lines)

    def pack(self, number: int) -> tuple[PackGrown, ObjectId]:
        """Write one pack; return what the log says of it, and its commit."""
        name = self.random.randbytes(16)
        path = PackDir(self.layout.packs).path(name)
        path.parent.mkdir(exist_ok=True)
        chunks = self.records - TREES - 1
        depth = number % LINE_OF_DELTAS
        ids, listed, offset = [], [], 0
        with fs.open_file(path, create=True) as file:
            for each in range(self.records):
                kind, nbytes = self._kind(each, chunks)
                delta = depth > 0 and each < chunks * DELTA_SHARE
                id = ObjectId(self.random.randbytes(32))
                bases = (self.last[each],) if delta else ()
                header = Header(
                    kind, FLAG_ENCRYPTED, 1, b"\0\0\0\0", nbytes, nbytes, id, depth if delta else 0, bases,
                    self.format.repo_id,
                )  # fmt: skip
                if nbytes < CHUNK_BYTES:
                    file.pwrite(offset, *frame_record(header, self.random.randbytes(nbytes)))
                ids.append(id)
                listed.append((offset, header))
                offset += header.record_bytes
            parts = contents_record(listed, self.format.repo_id)
            file.pwrite(offset, *parts)
        self.last = ids
        return PackGrown(name, 0, offset + sum(len(part) for part in parts), offset), ids[-1]

    def _kind(self, each: int, chunks: int) -> tuple[Kind, int]:
        if each < chunks:
            return Kind.CHUNK, self.chunk_bytes
        return (Kind.COMMIT, COMMIT_BYTES) if each == self.records - 1 else (Kind.TREE, TREE_BYTES)


def main() -> int:
    numbers = [int(word) for word in sys.argv[1:] if word.isdigit()]
    packs, records = (*numbers, *(10_000, 100)[len(numbers) :])[:2]
    with TemporaryDirectory(prefix="chain-rebuild-") as folder:
        maker = Maker(Path(folder, "run"), records, SMALL_BYTES if "--small" in sys.argv else CHUNK_BYTES)
        start = time.perf_counter()
        maker.make(packs)
        print(f"{packs} packs of {records} records made in {time.perf_counter() - start:.1f} s")
        layout = maker.layout
        if "--network" in sys.argv:
            layout = Network(layout.root, Path(folder, "index"))
        shutil.rmtree(layout.root / "index")
        layout.owner.unlink()
        layout.index_root.mkdir()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start, start_cpu = time.perf_counter(), time.process_time()
        report = rebuild_index(layout, maker.format, maker.sealer, 0, maker.around, silent)
        seconds, cpu = time.perf_counter() - start, time.process_time() - start_cpu
        size = sum(path.stat().st_size for path in layout.index_root.rglob("data.mdb"))
    assert (report.objects, report.packs, report.problems) == (packs * records, packs, [])
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    print(f"rebuild {seconds:.2f} s ({cpu:.2f} s of one core) of {report.objects} records")
    print(f"index of {size / 1e6:.0f} MB, {more:.0f} MiB more of memory than before, the mapped index with it")
    return 0 if seconds < TARGET_SECONDS else 1


class Network(Layout):
    """A directory that counts as one on a network disk."""

    on_network = True


if __name__ == "__main__":
    raise SystemExit(main())
