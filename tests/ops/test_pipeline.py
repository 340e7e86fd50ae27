"""The pipeline: every job once, the first error wins, and no thread outlives the call."""

import os
import signal
import threading
import time

import pytest

from chainstore.ops.pipeline import BYTES_PER_WORKER, run, worker_count


def ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chainstore-")]


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert ours() == []


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_every_job_is_done_once(threads):
    done, lock = [], threading.Lock()

    def work(job):
        with lock:
            done.append(job)

    run(range(500), work, threads=threads)
    assert sorted(done) == list(range(500))


@pytest.mark.parametrize("threads", [1, 3])
def test_without_jobs_nothing_happens(threads):
    run([], lambda job: pytest.fail("no job"), threads=threads, tend=lambda: False)


@pytest.mark.parametrize("threads", [1, 3])
def test_the_first_error_of_a_job_wins_and_stops_the_rest(threads):
    started = []

    def work(job):
        started.append(job)
        if job == 5:
            raise ValueError(job)
        time.sleep(0.002)

    with pytest.raises(ValueError, match="5"):
        run(range(10_000), work, threads=threads)
    assert len(started) < 100


class Falsy(Exception):
    def __bool__(self):
        return False


def test_an_error_that_counts_as_false_wins_too():
    both_at_work = threading.Barrier(2)

    def work(job):
        both_at_work.wait(5)
        if job == 0:
            raise Falsy
        time.sleep(0.05)
        raise ValueError("later")

    with pytest.raises(Falsy):
        run(range(2), work, threads=2)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_the_source_of_jobs_is_raised(threads):
    def jobs():
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        run(jobs(), lambda job: None, threads=threads)


def test_jobs_are_pulled_by_one_thread_at_a_time_and_no_further_than_needed():
    pulled = pulling = 0
    finished, lock = [], threading.Lock()

    def jobs():
        nonlocal pulled, pulling
        for job in range(200):
            pulling += 1
            assert pulling == 1
            time.sleep(0.0001)
            pulling -= 1
            pulled += 1
            yield job

    def work(job):
        assert pulled - len(finished) <= 4  # one a worker: memory is bounded by them
        time.sleep(0.0005)
        with lock:
            finished.append(job)

    run(jobs(), work, threads=4)
    assert len(finished) == 200


@pytest.mark.parametrize("threads", [1, 3])
def test_the_device_is_tended_while_others_work_and_its_error_is_raised(threads):
    tended = []

    def tend():
        tended.append(threading.current_thread())
        return False

    run(range(20), lambda job: time.sleep(0.001), threads=threads, tend=tend)
    assert tended

    def fail():
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        run(range(10_000), lambda job: time.sleep(0.001), threads=threads, tend=fail)


def test_an_error_of_a_job_wins_over_a_later_one_of_the_device():
    failed = threading.Event()

    def work(job):
        try:
            raise ValueError("the job")
        finally:
            failed.set()

    def tend():
        failed.wait(5)
        time.sleep(0.02)
        raise OSError("the disk")

    with pytest.raises(ValueError, match="the job"):
        run(range(100), work, threads=2, tend=tend)


def test_an_interrupt_in_the_caller_stops_the_workers():
    done = []

    def work(job):
        done.append(job)
        if job == 10:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.005)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(range(100_000), work, threads=3, tend=lambda: False)
    assert time.monotonic() - started < 5
    assert len(done) < 1000


@pytest.mark.parametrize("interrupts", [1, 3])
def test_an_interrupt_is_raised_when_no_job_is_going_on_any_more(interrupts):
    working, all_at_work, heard, go_on = set(), threading.Barrier(4), threading.Semaphore(0), threading.Event()

    def hear(_signal, _frame):
        heard.release()
        raise KeyboardInterrupt

    def work(job):
        working.add(job)
        all_at_work.wait(5)
        assert go_on.wait(5)
        time.sleep(0.1)
        working.remove(job)

    def interrupt():
        all_at_work.wait(5)
        for _ in range(interrupts):
            os.kill(os.getpid(), signal.SIGINT)
            assert heard.acquire(timeout=5)
            time.sleep(0.05)  # no finger is faster
        go_on.set()

    before = signal.signal(signal.SIGINT, hear)
    sender = threading.Thread(target=interrupt)
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            run(range(100), work, threads=3)
        assert working == set()
    finally:
        signal.signal(signal.SIGINT, before)
        sender.join()


def test_an_interrupt_is_raised_when_the_device_is_not_tended_any_more():
    tending, heard = threading.Event(), threading.Event()
    at_it = False

    def hear(_signal, _frame):
        heard.set()
        raise KeyboardInterrupt

    def tend():
        nonlocal at_it
        at_it = True
        tending.set()
        assert heard.wait(5)
        time.sleep(0.1)
        at_it = False
        return False

    def interrupt():
        assert tending.wait(5)
        time.sleep(0.05)  # the jobs are done, and the device is waited for
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, hear)
    sender = threading.Thread(target=interrupt)
    try:
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            run(range(3), lambda job: None, threads=2, tend=tend)
        assert not at_it
    finally:
        signal.signal(signal.SIGINT, before)
        sender.join()


def test_an_interrupt_inside_a_job_is_raised_in_the_caller():
    def work(job):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(range(10), work, threads=3)


@pytest.mark.parametrize(
    ("threads", "memory", "total", "expected"),
    [
        (8, 256 << 20, 1 << 40, 8),
        (8, 3 * BYTES_PER_WORKER, 1 << 40, 3),
        (8, 1, 1 << 40, 1),
        (8, 256 << 20, 100, 1),
        (8, 256 << 20, 6 << 20, 3),
        (1, 256 << 20, 1 << 40, 1),
    ],
)
def test_there_are_as_many_workers_as_threads_memory_and_bytes_allow(threads, memory, total, expected):
    assert worker_count(threads, memory, total) == expected
