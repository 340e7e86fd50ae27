"""Leases: one publisher and one collector at a time, readers by the name of what they read; all given back by death."""

import errno
import multiprocessing
import os
import threading
import time

import pytest

from chainstore.errors import Locked, RepositoryNotFound
from chainstore.ids import ObjectId
from chainstore.leases import collector_lock, leased_snapshots, publish_lock, reader_lease
from chainstore.storage import fs

FORK = multiprocessing.get_context("fork")


def test_one_at_a_time_holds_it(tmp_path):
    inside = most = 0
    lock = threading.Lock()

    def work():
        nonlocal inside, most
        for _ in range(10):
            with publish_lock(tmp_path, "me"):
                with lock:
                    inside += 1
                    most = max(most, inside)
                time.sleep(0.0005)
                with lock:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_whoever_waits_in_vain_is_told_by_whom(tmp_path):
    now, slept = 0.0, []

    def sleep(seconds):
        nonlocal now
        now += seconds
        slept.append(seconds)

    with (
        publish_lock(tmp_path, "process 7 on node3"),
        pytest.raises(Locked) as error,
        publish_lock(tmp_path, "me", wait_seconds=5.0, clock=lambda: now, sleep=sleep),
    ):
        pass
    assert error.value.by == "process 7 on node3"
    assert 5.0 <= error.value.waited_seconds < 5.1
    assert 0 < slept[0] < slept[-1] <= 0.02


def hold_and_die(folder, ready):
    with publish_lock(folder, "child"):
        ready.set()
        time.sleep(0.1)
        os._exit(9)


def test_death_gives_it_back_and_the_next_is_told(tmp_path):
    ready = FORK.Event()
    child = FORK.Process(target=hold_and_die, args=(tmp_path, ready))
    child.start()
    assert ready.wait(10)
    with publish_lock(tmp_path, "me", wait_seconds=10) as unclean:
        assert unclean
    child.join()
    with publish_lock(tmp_path, "me") as unclean:
        assert not unclean


def test_an_error_inside_gives_it_back_as_well(tmp_path):
    with pytest.raises(ZeroDivisionError), publish_lock(tmp_path, "me"):
        _ = 1 / 0
    with publish_lock(tmp_path, "me") as unclean:
        assert not unclean


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_takes_no_note_keeps_nobody_from_publishing(tmp_path, monkeypatch, code):
    def fail(name, path):
        if name == "pwrite":
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fs, "failpoint", fail)
    for _ in range(2):
        with publish_lock(tmp_path, "me", wait_seconds=1):
            pass


def test_a_long_name_of_any_script_fits_its_place(tmp_path):
    with publish_lock(tmp_path, "プロセス" * 100), pytest.raises(Locked), publish_lock(tmp_path, "me", wait_seconds=0):
        pass
    assert (tmp_path / "publish").stat().st_size == 200


def test_a_repository_that_is_gone_is_said_to_be(tmp_path):
    with pytest.raises(RepositoryNotFound), publish_lock(tmp_path / "gone" / "leases", "me"):
        pass


def test_a_forked_child_holds_nothing(tmp_path):
    with publish_lock(tmp_path, "parent"):
        child = FORK.Process(target=time.sleep, args=(30,))
        child.start()
    try:
        with publish_lock(tmp_path, "me", wait_seconds=1):
            pass
    finally:
        child.kill()
        child.join()


COMMITS = [(ObjectId(bytes([n]) * 32), ObjectId(bytes([n + 100]) * 32)) for n in range(3)]


def test_whoever_collects_is_alone_and_told_with_time(tmp_path):
    with (
        collector_lock(tmp_path, "process 7 on node3", "2026-11-30 09:00:00"),
        pytest.raises(Locked) as error,
        collector_lock(tmp_path, "me", "now"),
    ):
        pass
    assert error.value.by == "process 7 on node3, since 2026-11-30 09:00:00"
    assert error.value.waited_seconds == 0
    with collector_lock(tmp_path, "me", "now"):
        pass


def test_a_lease_names_snapshots_as_long_as_it_is_held(tmp_path):
    with reader_lease(tmp_path, lambda: "aa", COMMITS[:2]) as held:
        assert held
        with reader_lease(tmp_path, lambda: "bb", COMMITS[2:]):
            assert leased_snapshots(tmp_path) == dict(COMMITS)
        assert leased_snapshots(tmp_path) == dict(COMMITS[:2])
    assert leased_snapshots(tmp_path) == {} and list(tmp_path.iterdir()) == []


def read_and_die(folder):
    with reader_lease(folder, lambda: "cc", COMMITS):
        os._exit(9)


def test_the_lease_of_the_dead_holds_nothing_and_is_removed(tmp_path):
    child = FORK.Process(target=read_and_die, args=(tmp_path,))
    child.start()
    child.join()
    assert (tmp_path / "cc.reader").exists()
    assert leased_snapshots(tmp_path) == {}
    assert not (tmp_path / "cc.reader").exists()


def test_a_lease_removed_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    names = iter(["aa", "bb"])

    def collect_first(name, path):
        if name == "flock" and path.name == "aa.reader" and path.exists():
            path.unlink()

    monkeypatch.setattr(fs, "failpoint", collect_first)
    with reader_lease(tmp_path, lambda: next(names), COMMITS):
        assert [path.name for path in tmp_path.iterdir()] == ["bb.reader"]
        assert leased_snapshots(tmp_path) == dict(COMMITS)


def test_a_reader_stopped_before_it_said_what_it_reads_keeps_gc_from_guessing(tmp_path):
    slept = []
    with fs.open_file(tmp_path / "aa.reader", create=True) as file:
        assert file.flock(exclusive=True)
        with pytest.raises(Locked, match=r"aa\.reader"):
            leased_snapshots(tmp_path, sleep=slept.append)
        assert 4 < sum(slept) < 6
        file.pwrite(0, b"".join(COMMITS[0]))
        assert leased_snapshots(tmp_path) == dict(COMMITS[:1])


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("operation", ["create", "pwrite"])
def test_where_no_lease_can_be_written_reading_goes_on_without(tmp_path, monkeypatch, code, operation):
    def fail(name, path):
        if name == operation:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fs, "failpoint", fail)
    with reader_lease(tmp_path, lambda: "aa", COMMITS) as held:
        assert not held
    assert list(tmp_path.iterdir()) == []


def test_an_error_while_reading_is_the_readers_own(tmp_path):
    with pytest.raises(ZeroDivisionError), reader_lease(tmp_path, lambda: "aa", COMMITS):
        _ = 1 / 0
    assert list(tmp_path.iterdir()) == []
