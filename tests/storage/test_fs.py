"""All our file I/O, on real files, full disks, forks and locks."""

import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import ForkedHandle, Malformed, ReadOnly, StorageError, StoreFull
from chainstore.storage import fs


def in_child(function: Callable[[], object]) -> str:
    """Return what `function` returns, or the name of what it raises, in a forked child, as text."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(function())
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child died"
    return answer


def killer(step: int) -> Callable[[str, Path], None]:
    """Return a failpoint that kills this process at the `step`-th operation."""
    calls = count(1)

    def failpoint(name: str, path: Path) -> None:
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGKILL)

    return failpoint


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    point = tmp_path / "small"
    point.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(point)], capture_output=True).returncode:
        pytest.skip("mounting a tmpfs is not permitted here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def read_only_disk(tmp_path):
    """A directory with one file, on a file system that is mounted read-only."""
    point = tmp_path / "read-only"
    point.mkdir()
    (point / "file").write_bytes(b"there")
    bind = ["mount", "--bind", str(point), str(point)]
    remount = ["mount", "-o", "remount,ro,bind", str(point)]
    if any(subprocess.run(command, capture_output=True).returncode for command in (bind, remount)):
        pytest.skip("mounting read-only is not permitted here")
    yield point
    subprocess.run(["umount", "-l", str(point)], check=True)


@pytest.fixture
def failing(monkeypatch):
    """Make one named operation fail with an errno from now on."""

    def arrange(operation: str, code: int) -> None:
        def fail(name: str, path: Path) -> None:
            if name == operation:
                raise OSError(code, os.strerror(code))

        monkeypatch.setattr(fs, "failpoint", fail)

    yield arrange


# -- files ---------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_parts_are_appended_one_after_the_other(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("append") / "file"
    with fs.open_file(path, create=True) as file:
        assert file.append(b"head") == 0
        assert file.append(*parts) == 4
        assert file.size() == 4 + sum(map(len, parts))
    assert path.read_bytes() == b"head" + b"".join(parts)


def test_more_parts_than_one_system_call_takes_are_written(tmp_path):
    parts = [bytes((i % 251,)) for i in range(3 * fs.PARTS_PER_WRITE + 7)]
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(*parts)
        assert file.pread(0, 1 << 20) == b"".join(parts)


def test_a_write_of_many_megabytes_is_whole(tmp_path):
    data = os.urandom(1 << 20) * 8
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(memoryview(data)[:100], memoryview(data)[100:])
        buffer = bytearray(len(data))
        assert file.pread_into(buffer, 0) == len(data)
    assert buffer == data


def test_buffers_of_any_item_size_are_written_as_their_bytes(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(memoryview(b"abcdefgh").cast("I"))
        assert file.pread(0, 8) == b"abcdefgh"


def test_pwrite_replaces_in_place(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(b"0123456789")
        file.pwrite(3, b"ab", b"c")
        assert file.pread(0, 10) == b"012abc6789"


def test_reading_past_the_end_gives_what_there_is(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(b"0123")
        buffer = bytearray(b"xxxxxx")
        assert file.pread_into(buffer, 2) == 2
        assert bytes(buffer) == b"23xxxx"
        assert file.pread_into(buffer, 9) == 0
        assert file.pread(3, 100) == b"3"
        assert file.pread(7, 100) == b""


def test_a_length_that_makes_no_sense_allocates_nothing(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(b"0123")
        assert file.pread(0, 1 << 60) == b"0123"


def test_truncate_cuts(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(b"0123456789")
        file.truncate(4)
        assert file.append(b"x") == 4
        assert file.pread(0, 99) == b"0123x"


def test_preallocated_space_is_on_disk(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.preallocate(1 << 20)
        assert file.size() == 1 << 20
        assert file.allocated() >= 1 << 20


def test_a_punched_range_gives_its_space_back_and_reads_as_zeros(tmp_path):
    with fs.open_file(tmp_path / "file", create=True) as file:
        file.append(b"\x01" * (1 << 20))
        file.fdatasync()
        before = file.allocated()
        if not file.punch(65536, 65536):
            pytest.skip("this file system has no holes")
        assert file.size() == 1 << 20
        assert file.allocated() <= before - 65536
        assert file.pread(65536, 65536) == bytes(65536)
        assert file.pread(65535, 1) + file.pread(131072, 1) == b"\x01\x01"


def test_a_replaced_file_is_no_longer_at_its_path(tmp_path):
    path = tmp_path / "file"
    with fs.open_file(path, create=True) as file:
        assert file.is_at(path)
        assert file.inode() == fs.inode_of(path)
        fs.write_atomic(path, b"other")
        assert not file.is_at(path)
        path.unlink()
        assert not file.is_at(path)


def test_a_closed_file_refuses_and_closes_again(tmp_path):
    file = fs.open_file(tmp_path / "file", create=True)
    file.close()
    file.close()
    with pytest.raises(StorageError, match="closed"):
        file.pread(0, 1)
    with pytest.raises(StorageError, match="closed"):
        file.append(b"x")


def test_missing_and_existing_files_are_answers(tmp_path):
    with pytest.raises(FileNotFoundError):
        fs.open_file(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        fs.unlink(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        fs.list_dir(tmp_path / "none")
    fs.unlink(tmp_path / "none", missing_ok=True)
    fs.open_file(tmp_path / "one", new=True).close()
    with pytest.raises(FileExistsError):
        fs.open_file(tmp_path / "one", new=True)


def test_descriptors_are_not_passed_on_to_programs(tmp_path):
    with fs.open_file(tmp_path / "file", create=True):
        script = f"import os; print(any({str(tmp_path)!r} in os.readlink(f'/proc/self/fd/{{d}}') for d in range(3, 64)"
        script += " if os.path.islink(f'/proc/self/fd/{d}')))"
        found = subprocess.run([sys.executable, "-c", script], close_fds=False, capture_output=True, text=True)
    assert found.stdout.strip() == "False", found.stderr


# -- failures ------------------------------------------------------------------------------------------------------


def test_a_full_disk_is_store_full_and_what_was_there_stays(small_disk):
    with fs.open_file(small_disk / "pack", create=True) as file:
        file.append(b"committed")
        file.fdatasync()
        with pytest.raises(StoreFull, match="MB free"):
            file.append(bytes(2 << 20))
        file.truncate(9)
        assert file.append(b" and more") == 9
        file.fdatasync()
        assert file.pread(0, 99) == b"committed and more"


def test_a_full_disk_leaves_the_old_small_file_and_no_draft(small_disk):
    fs.write_atomic(small_disk / "keyring", b"old")
    with pytest.raises(StoreFull):
        fs.write_atomic(small_disk / "keyring", bytes(2 << 20))
    assert (small_disk / "keyring").read_bytes() == b"old"
    assert fs.list_dir(small_disk) == ["keyring"]


def test_space_that_is_not_there_cannot_be_preallocated(small_disk):
    with fs.open_file(small_disk / "reserve", create=True) as file, pytest.raises(StoreFull):
        file.preallocate(2 << 20)


def test_a_file_size_limit_is_store_full(tmp_path):
    def write() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        with fs.open_file(tmp_path / "pack", create=True) as file:
            file.append(b"committed")
            with pytest.raises(StoreFull):
                file.append(bytes(200_000))
            file.truncate(9)
            file.append(b"!")
            return file.pread(0, 99).decode()

    assert in_child(write) == "committed!"


def test_a_read_only_file_system_is_read_only(read_only_disk):
    with fs.open_file(read_only_disk / "file") as file:
        assert file.pread(0, 9) == b"there"
    for change in (
        lambda: fs.open_file(read_only_disk / "file", write=True),
        lambda: fs.open_file(read_only_disk / "new", create=True),
        lambda: fs.unlink(read_only_disk / "file"),
        lambda: fs.make_dirs(read_only_disk / "a" / "b"),
        lambda: fs.write_atomic(read_only_disk / "file", b"x"),
        lambda: fs.rename(read_only_disk / "file", read_only_disk / "other"),
    ):
        with pytest.raises(ReadOnly, match="read-only"):
            change()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_poisons_the_handle_whatever_the_reason(tmp_path, failing, monkeypatch, code):
    with fs.open_file(tmp_path / "pack", create=True) as file:
        assert file.flock(exclusive=True)
        file.append(b"x")
        failing("fdatasync", code)
        with pytest.raises(StorageError):
            file.fdatasync()
        monkeypatch.undo()
        for use in (file.fdatasync, lambda: file.append(b"y"), lambda: file.truncate(0), lambda: file.pread(0, 1)):
            with pytest.raises(StorageError, match="cannot be trusted"):
                use()
        file.unlock()
    with fs.open_file(tmp_path / "pack", write=True) as file:
        assert file.pread(0, 9) == b"x"


def test_a_failed_write_poisons_unless_the_disk_was_full(tmp_path, failing, monkeypatch):
    with fs.open_file(tmp_path / "pack", create=True) as file:
        failing("append", errno.ENOSPC)
        with pytest.raises(StoreFull):
            file.append(b"x")
        monkeypatch.undo()
        file.append(b"y")
        failing("append", errno.EIO)
        with pytest.raises(StorageError, match="append"):
            file.append(b"z")
        monkeypatch.undo()
        with pytest.raises(StorageError, match="cannot be trusted"):
            file.append(b"z")


def test_every_operation_that_changes_something_passes_its_failpoint(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(fs, "failpoint", lambda name, path: seen.append((name, path.name)))
    fs.make_dirs(tmp_path / "a")
    with fs.open_file(tmp_path / "a" / "f", create=True) as file:
        file.flock(exclusive=True)
        file.append(b"0123")
        file.pwrite(0, b"x")
        file.truncate(2)
        file.preallocate(10)
        file.punch(0, 4)
        file.fdatasync()
    fs.rename(tmp_path / "a" / "f", tmp_path / "a" / "g")
    fs.unlink(tmp_path / "a" / "g")
    fs.sync_dir(tmp_path / "a")
    expected = ["create", "flock", "append", "pwrite", "truncate", "preallocate", "punch", "fdatasync"]
    assert [name for name, path in seen if path == "f"] == expected
    assert [entry for entry in seen if entry[1] != "f"] == [
        ("mkdir", "a"),
        ("sync_dir", tmp_path.name),
        ("rename", "g"),
        ("sync_dir", "a"),
        ("unlink", "g"),
        ("sync_dir", "a"),
    ]


# -- small files -----------------------------------------------------------------------------------------------------


def test_a_small_file_is_replaced_whole_and_twice(tmp_path):
    fs.write_atomic(tmp_path / "format", b"1", backup=tmp_path / "format.bak")
    fs.write_atomic(tmp_path / "format", b"22", backup=tmp_path / "format.bak")
    assert fs.read_all(tmp_path / "format", 10) == fs.read_all(tmp_path / "format.bak", 10) == b"22"
    assert fs.list_dir(tmp_path) == ["format", "format.bak"]


def test_a_small_file_that_is_too_long_is_malformed(tmp_path):
    (tmp_path / "format").write_bytes(bytes(11))
    assert fs.read_all(tmp_path / "format", 11) == bytes(11)
    with pytest.raises(Malformed, match="longer than 10"):
        fs.read_all(tmp_path / "format", 10)


def test_a_process_killed_at_any_step_of_a_replacement_leaves_old_or_new_bytes(tmp_path):
    path, backup = tmp_path / "keyring", tmp_path / "keyring.bak"
    outcomes = set()
    for step in range(1, 20):
        path.write_bytes(b"old")
        backup.write_bytes(b"old")
        pid = os.fork()
        if pid == 0:
            fs.failpoint = killer(step)
            fs.write_atomic(path, b"new!", backup)
            os._exit(0)
        killed = os.waitpid(pid, 0)[1] != 0
        assert path.read_bytes() in (b"old", b"new!")
        assert backup.read_bytes() in (b"old", b"new!")
        outcomes.add((path.read_bytes(), backup.read_bytes()))
        if not killed:
            break
    assert not killed
    assert outcomes == {(b"old", b"old"), (b"new!", b"old"), (b"new!", b"new!")}
    fs.write_atomic(path, b"after", backup)
    assert path.read_bytes() == backup.read_bytes() == b"after"


def test_permissions_of_a_new_file_are_as_asked(tmp_path):
    fs.write_atomic(tmp_path / "secret", b"", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_directories_are_made_with_those_above_them_and_again_is_fine(tmp_path):
    fs.make_dirs(tmp_path / "a" / "b" / "c")
    fs.make_dirs(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a" / "b" / "c").is_dir()


def test_a_file_in_the_way_of_a_directory_is_said_by_name(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises((StorageError, FileExistsError), match="a"):
        fs.make_dirs(tmp_path / "a")
    with pytest.raises((StorageError, FileExistsError), match="a"):
        fs.make_dirs(tmp_path / "a" / "b")


def test_the_disk_under_a_path_is_known(tmp_path, small_disk):
    assert fs.file_system_type(small_disk / "not" / "there" / "yet") == "tmpfs"
    assert not fs.is_network_file_system(small_disk)
    assert 0 < fs.free_bytes(small_disk) <= 1 << 20
    assert fs.find_mount(small_disk).point == os.path.realpath(small_disk)


def test_a_link_is_followed_to_the_disk_it_leads_to(tmp_path, small_disk):
    (tmp_path / "link").symlink_to(small_disk)
    assert fs.file_system_type(tmp_path / "link" / "x") == "tmpfs"


# -- locks and forks -------------------------------------------------------------------------------------------------


def test_an_exclusive_lock_keeps_everybody_else_out_until_it_is_given_back(tmp_path):
    path = tmp_path / "lease"
    with fs.open_file(path, create=True) as mine, fs.open_file(path, write=True) as yours:
        assert mine.flock(exclusive=True)
        assert not yours.flock(exclusive=True)
        assert not yours.flock(exclusive=False)
        mine.unlock()
        assert yours.flock(exclusive=False)
        assert mine.flock(exclusive=False)
        assert not mine.flock(exclusive=True)


def test_closing_gives_the_lock_back(tmp_path):
    path = tmp_path / "lease"
    mine = fs.open_file(path, create=True)
    assert mine.flock(exclusive=True)
    mine.close()
    with fs.open_file(path, write=True) as yours:
        assert yours.flock(exclusive=True)


def test_closing_gives_the_lock_back_though_a_copy_of_the_descriptor_lives_on(tmp_path):
    path = tmp_path / "lease"
    mine = fs.open_file(path, create=True)
    assert mine.flock(exclusive=True)
    copy = os.dup(mine._fd)  # what a program being started holds until it has closed what is not its own
    mine.close()
    with fs.open_file(path, write=True) as yours:
        assert yours.flock(exclusive=True)
    os.close(copy)


def test_a_lock_ends_with_its_process_even_if_a_forked_child_lives_on(tmp_path):
    """A child that inherits the descriptor would keep the lock of its dead parent."""
    path = tmp_path / "pack"
    path.touch()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        file = fs.open_file(path, write=True)
        assert file.flock(exclusive=True)
        grandchild = os.fork()
        if grandchild == 0:
            os.write(writing, str(os.getpid()).encode())
            time.sleep(60)
            os._exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    grandchild = int(os.read(reading, 20))
    try:
        with fs.open_file(path, write=True) as file:
            assert file.flock(exclusive=True)
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_a_forked_child_cannot_use_a_file_opened_for_writing(tmp_path):
    with fs.open_file(tmp_path / "pack", create=True) as file:
        file.append(b"mine")
        for use in (lambda: file.append(b"x"), file.fdatasync, lambda: file.truncate(0), lambda: file.pread(0, 1)):
            assert in_child(use) == "ForkedHandle"
        assert in_child(lambda: file.flock(exclusive=True)) == "ForkedHandle"
        assert in_child(file.unlock) == "ForkedHandle"
        in_child(file.close)
        assert file.append(b"!") == 4


def test_a_forked_child_does_not_give_its_parents_lock_back(tmp_path):
    path = tmp_path / "lease"
    with fs.open_file(path, create=True) as mine, fs.open_file(path, write=True) as yours:
        assert mine.flock(exclusive=True)
        in_child(lambda: mine.close())
        assert not yours.flock(exclusive=True)


def test_a_forked_child_reads_on_through_a_file_opened_for_reading(tmp_path):
    (tmp_path / "pack").write_bytes(b"shared")
    with fs.open_file(tmp_path / "pack") as file:
        assert in_child(lambda: file.pread(0, 9).decode()) == "shared"


def test_a_file_locked_for_reading_is_closed_in_a_forked_child(tmp_path):
    (tmp_path / "pack").write_bytes(b"shared")
    with fs.open_file(tmp_path / "pack") as file:
        assert file.flock(exclusive=False)
        assert in_child(lambda: file.pread(0, 9)) == ForkedHandle.__name__


def test_waiting_for_a_lock_ends_when_it_is_free(tmp_path):
    path = tmp_path / "lease"
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        file = fs.open_file(path, create=True)
        file.flock(exclusive=True)
        os.write(writing, b"x")
        time.sleep(0.2)
        os._exit(0)
    os.read(reading, 1)
    with fs.open_file(path, write=True) as file:
        assert not file.flock(exclusive=True)
        assert file.flock(exclusive=True, blocking=True)
    os.waitpid(pid, 0)
