"""The file systems that the trials of power cuts stand on are what they say."""

import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chainstore.errors import StorageError
from chainstore.odb.layout import Layout
from chainstore.storage import fs
from tests.faults.durable import PAGE_BYTES
from tests.faults.fuse_mount import cut_power, mounted
from tests.faults.needs import needs_fuse


@pytest.fixture
def at(ground: Path) -> Iterator[Path]:
    with mounted(ground / "backing", ground / "at"):
        yield ground / "at"


@needs_fuse
def test_the_type_is_the_one_asked_for(ground: Path) -> None:
    with mounted(ground / "backing", ground / "at", subtype="glusterfs"):
        assert fs.find_mount(ground / "at" / "repo").type == "fuse.glusterfs"
    assert not os.path.ismount(ground / "at")


@needs_fuse
def test_writes_show_in_maps_and_maps_in_reads(at: Path) -> None:
    with open(at / "file", "w+b", buffering=0) as file:
        file.write(bytes(3 * PAGE_BYTES))
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as shown, mmap.mmap(file.fileno(), 0) as changed:
            os.pwrite(file.fileno(), b"w", 5000)
            assert shown[5000:5001] == changed[5000:5001] == b"w"
            changed[5001:5002] = b"m"
            assert os.pread(file.fileno(), 2, 5000) == shown[5000:5002] == b"wm"
            changed.flush()
            assert (at.with_name("backing") / "file").read_bytes()[5000:5002] == b"wm"


@needs_fuse
def test_an_open_file_outlives_its_name(at: Path) -> None:
    with open(at / "file", "w+b", buffering=0) as file, open(at / "file", "rb") as reader:
        file.write(b"x" * 10_000)
        inode = os.fstat(file.fileno()).st_ino
        os.unlink(at / "file")
        assert os.listdir(at) == []
        file.truncate(20)
        found = os.fstat(reader.fileno())
        assert (found.st_size, found.st_ino, reader.read()) == (20, inode, b"x" * 20)


@needs_fuse
def test_what_a_repository_asks_of_a_file_system_works(at: Path) -> None:
    with fs.open_file(at / "a", create=True) as file:
        file.preallocate(1 << 20)
        assert file.size() == file.allocated() == 1 << 20
        assert file.punch(0, 1 << 16)
        assert file.allocated() == (1 << 20) - (1 << 16)
        assert file.inode()[1] == fs.inode_of(at.with_name("backing") / "a")[1]
        assert file.flock(exclusive=True)
        with open(at / "a") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (at / "b").write_bytes(b"old")
        fs.rename(at / "a", at / "b")
        assert file.is_at(at / "b")
    assert (fs.list_dir(at), fs.size_of(at / "b")) == (["b"], 1 << 20)
    assert fs.free_bytes(at) == pytest.approx(fs.free_bytes(at.with_name("backing")), rel=0.1)


# What is forgotten.

CUTS = range(30)
OLD, NEW = b"o" * (2 * PAGE_BYTES), b"n" * (2 * PAGE_BYTES)


def leftovers(ground: Path, seed: int) -> dict[str, bytes]:
    """Return the files, by path, that a power cut left of some that were synced and some that were not."""
    backing, at = ground / f"{seed}", ground / "at"
    (backing / "synced").mkdir(parents=True)
    for name in ("overwritten", "renamed", "removed", "cut", "grown"):
        (backing / name).write_bytes(OLD)
    with mounted(backing, at, forgetful=True):
        write(at / "synced" / "whole", NEW, os.fsync)
        fs.sync_dir(at / "synced")
        write(at / "synced" / "nameless", NEW, os.fdatasync)
        write(at / "synced" / "through", NEW, None, os.O_DSYNC)
        write(at / "empty", NEW, None)
        os.unlink(at / "removed")
        os.rename(at / "renamed", at / "other")
        os.mkdir(at / "new")
        write(at / "new" / "lost", NEW, os.fsync)
        write(at / "overwritten", NEW, None)
        os.truncate(at / "cut", 10)
        with open(at / "grown", "ab") as file:
            file.write(NEW)
        assert (at / "grown").read_bytes() == OLD + NEW  # whoever looks before the cut sees all of it
        cut_power(at, ground / f"{seed}.cut", seed=seed)
        with pytest.raises(OSError, match="Input/output error"):
            (at / "anything").write_bytes(b"")
    assert (ground / f"{seed}.cut").exists()
    return {str(path.relative_to(backing)): path.read_bytes() for path in backing.rglob("*") if path.is_file()}


def write(path: Path, data: bytes, sync: Callable[[int], None] | None, flags: int = 0) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
    os.write(handle, data)
    if sync is not None:
        sync(handle)
    os.close(handle)


@needs_fuse
def test_a_power_cut_takes_only_what_was_not_synced(ground: Path) -> None:
    found = [leftovers(ground, seed) for seed in CUTS]
    everything = {name for left in found for name in left}
    seen = {name: {left.get(name) for left in found} for name in everything}
    pages = {OLD, NEW, OLD[:PAGE_BYTES] + NEW[:PAGE_BYTES], NEW[:PAGE_BYTES] + OLD[:PAGE_BYTES]}
    assert seen.pop("synced/whole") == {NEW}
    assert seen.pop("synced/nameless") == seen.pop("synced/through") == {None, NEW}
    assert {OLD, NEW} < seen.pop("overwritten") <= pages
    assert seen.pop("removed") == {None, OLD}
    assert {(left.get("renamed"), left.get("other")) for left in found} == {(OLD, None), (None, OLD)}
    assert seen.pop("cut") == {OLD, OLD[:10], OLD[:10].ljust(PAGE_BYTES, b"\0") + OLD[PAGE_BYTES:]}
    empty, grown = seen.pop("empty"), seen.pop("grown")
    assert {None, b"", NEW} < empty
    assert all(not data.strip(b"\0n") for data in empty if data)
    assert {OLD, OLD + NEW} < grown
    assert all(data.startswith(OLD) and not data[len(OLD) :].strip(b"\0n") for data in grown)
    assert seen.pop("new/lost", {None}) <= {None, NEW}
    assert not seen.keys() - {"renamed", "other"}


@needs_fuse
def test_the_power_is_cut_before_the_change_that_was_named(ground: Path) -> None:
    with mounted(ground / "backing", ground / "at", forgetful=True):
        cut_power(ground / "at", ground / "cut", seed=1, after=3)
        with open(ground / "at" / "file", "wb", buffering=0) as file:  # the first
            file.write(b"x")  # the second
            assert not (ground / "cut").exists()
            with pytest.raises(OSError, match="Input/output error"):
                os.fsync(file.fileno())
    assert (ground / "cut").read_text() == "3"


@needs_fuse
def test_a_repository_says_that_a_disk_without_power_fails(ground: Path) -> None:
    at = ground / "at"
    with mounted(ground / "backing", at, forgetful=True), fs.open_file(at / "file", create=True) as file:
        cut_power(at, ground / "cut", seed=1)
        with pytest.raises(StorageError):
            file.append(b"x")
        for look in (fs.exists, fs.is_file, fs.is_dir, fs.size_of, fs.list_dir, fs.make_dirs):
            with pytest.raises(StorageError):
                look(at / "repo")
        with pytest.raises(StorageError):
            Layout(at / "repo").exists()
