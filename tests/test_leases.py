"""The publish lock: one at a time, given back by death, and never in the way for want of disk space."""

import errno
import multiprocessing
import os
import threading
import time

import pytest

from chainstore.errors import Locked, RepositoryNotFound
from chainstore.leases import publish_lock
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
