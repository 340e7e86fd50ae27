"""The simulated disk: what is certain, what is possible, and what is neither."""

import os
from itertools import product
from pathlib import Path
from random import Random

import pytest

from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.testing.faults.crashes import crashes
from chainstore.testing.faults.disk import Disk
from chainstore.testing.faults.ground import Ground
from chainstore.testing.faults.operations import Operation
from chainstore.testing.faults.recorder import Recorder
from chainstore.testing.faults.trees import Content, Tree, read_tree


def contents(tree: Tree) -> dict[str, bytes]:
    return {path: content.data for path, content in tree.files.items()}


def after(*operations: Operation) -> Disk:
    disk = Disk.of(Tree({"old": Content(b"o" * 10_000)}, frozenset({"sub"})))
    for operation in operations:
        disk.apply(operation)
    return disk


def write(path: str, data: bytes, offset: int = 0) -> Operation:
    return Operation("pwrite", path, offset=offset, data=data)


def test_a_new_file_is_certain_once_it_and_its_name_were_synced():
    made = [Operation("create", "new"), write("new", b"data")]
    assert "new" not in contents(after(*made).only_synced())
    assert "new" not in contents(after(*made, Operation("fdatasync", "new")).only_synced())
    assert contents(after(*made, Operation("sync_dir", "")).only_synced())["new"] == b""
    both = after(*made, Operation("fdatasync", "new"), Operation("sync_dir", ""))
    assert contents(both.only_synced())["new"] == b"data"
    assert contents(after(*made).everything())["new"] == b"data"


def test_a_rename_is_certain_once_its_directory_was_synced_and_is_never_half():
    made = [Operation("create", "new"), write("new", b"data"), Operation("fdatasync", "new"), Operation("sync_dir", "")]
    renamed = [*made, Operation("rename", "old", source="new")]
    assert contents(after(*renamed).only_synced()) == {"old": b"o" * 10_000, "new": b"data"}
    assert contents(after(*renamed, Operation("sync_dir", "")).only_synced()) == {"old": b"data"}
    seen = {frozenset(contents(after(*renamed).some(Random(seed)))) for seed in range(50)}
    assert seen == {frozenset({"old", "new"}), frozenset({"old"})}


def test_a_name_in_a_directory_that_is_not_there_is_not_there():
    deep = [Operation("mkdir", "new"), Operation("create", "new/file"), Operation("sync_dir", "new")]
    assert "new/file" not in contents(after(*deep).only_synced())
    assert "new/file" in contents(after(*deep, Operation("sync_dir", "")).only_synced())


def test_of_pages_that_were_not_synced_any_may_survive():
    disk = after(write("old", b"n" * 10_000))
    seen = {contents(disk.some(Random(seed)))["old"][::4096] for seed in range(200)}
    assert seen == {bytes(page) for page in product(b"no", repeat=3)}


def test_a_file_may_have_got_its_length_and_not_its_bytes():
    disk = after(write("old", b"n" * 100, offset=10_000))
    seen = {contents(disk.some(Random(seed)))["old"][10_000:] for seed in range(50)}
    assert seen == {b"", bytes(100), b"n" * 100}


def test_a_torn_write_ends_at_the_edge_of_a_sector():
    before, last = after(), write("old", b"n" * 1000, offset=9900)
    disk = after(last)
    seen = {contents(tree)["old"] for tree in disk.torn(before, last, Random(1))}
    assert {len(data) for data in seen} == {10_240, 10_752, 10_900}
    assert {data.rstrip(b"\0")[9900:].count(b"n") for data in seen} == {10_240 - 9900, 10_752 - 9900}


def test_a_cut_and_a_hole_are_as_uncertain_as_a_write():
    disk = after(Operation("truncate", "old", length=4096), Operation("punch", "old", offset=0, length=4096))
    assert contents(disk.everything())["old"] == bytes(4096)
    assert contents(disk.only_synced())["old"] == b"o" * 10_000
    assert len({contents(disk.some(Random(seed)))["old"] for seed in range(400)}) == 2 + 8


def test_a_commit_of_the_index_is_certain_at_once():
    disk = after(Operation("index commit", "old", data=b"new"))
    assert contents(disk.only_synced())["old"] == b"new"


def test_states_come_in_the_order_in_which_things_happened():
    operations = [write("old", b"n"), Operation("fdatasync", "old")]
    found = [(crash.after, crash.kind) for crash in crashes(after(), operations, Random(1), chances=1)]
    assert found == [(number, kind) for number in range(3) for kind in ("everything", "only synced", "some")]


@pytest.fixture
def busy(tmp_path: Path) -> Recorder:
    """A directory in which every kind of operation happened, and what was written down of it."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "there").write_bytes(b"before")
    recorder = Recorder(root)
    with recorder.installed():
        fs.make_dirs(root / "a" / "b")
        with fs.open_file(root / "a" / "file", create=True) as file:
            file.preallocate(9000)
            file.pwrite(5000, b"x" * 3000, b"y")
            file.append(b"end")
            file.truncate(8500)
            file.punch(4096, 4096)
            file.fdatasync()
        fs.write_atomic(root / "there", b"after", backup=root / "there.bak")
        fs.rename(root / "a" / "file", root / "a" / "b" / "moved")
        fs.unlink(root / "there.bak")
        with Index.create(root / "index") as index, index.write() as rows:
            rows.put("refs", b"key", b"value")
    return recorder


def test_what_was_written_down_makes_the_directory_again(busy: Recorder):
    disk = busy.start.copy()
    for operation in busy.operations:
        disk.apply(operation)
    assert contents(disk.everything()) == contents(read_tree(busy.root))
    assert disk.everything().mark == read_tree(busy.root).mark
    kinds = {operation.name for operation in busy.operations}
    assert kinds >= {"create", "pwrite", "append", "truncate", "preallocate", "punch", "fdatasync", "index commit"}
    assert kinds >= {"rename", "unlink", "mkdir", "sync_dir"}


def test_any_state_can_be_put_after_any_other_on_the_ground(busy: Recorder, tmp_path: Path):
    (tmp_path / "spare").mkdir()
    ground = Ground(busy.root, tmp_path / "spare")
    inode = os.stat(busy.root / "index" / "data.mdb").st_ino
    states = [crash.tree for crash in crashes(busy.start, busy.operations, Random(1))]
    Random(2).shuffle(states)
    with ground.watched():
        for number, tree in enumerate(states):
            ground.put(tree)
            assert read_tree(busy.root).mark == tree.mark
            if "index/data.mdb" in tree.files:
                assert os.stat(busy.root / "index" / "data.mdb").st_ino == inode
            if number % 3 == 0:
                fs.write_atomic(busy.root / "there", b"disturbed")
                fs.make_dirs(busy.root / "more" / "folders")


def test_what_happens_elsewhere_is_not_written_down(tmp_path: Path):
    (tmp_path / "root").mkdir()
    recorder = Recorder(tmp_path / "root")
    with recorder.installed():
        fs.write_atomic(tmp_path / "rooted", b"elsewhere")
    assert recorder.operations == []
