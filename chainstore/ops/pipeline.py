"""The pipeline: a bounded number of threads that pull jobs until there are none or one fails.

Memory is bounded by the workers: each has one job at a time and buffers that it reuses.  Hashing, coding, sealing and
writing release the GIL, so threads are enough.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

J = TypeVar("J")

_LOOK_SECONDS = 0.2  # how often the caller looks up from waiting, so that Ctrl-C is heard
BYTES_PER_WORKER = 6 << 20  # a chunk, its planes, its sealed form, and what came before it in the buffers


def worker_count(threads: int, max_memory_bytes: int, total_bytes: int) -> int:
    """Return how many workers a job of `total_bytes` should have within a budget."""
    return max(1, min(threads, max_memory_bytes // BYTES_PER_WORKER, total_bytes // (2 << 20)))


def run(jobs: Iterable[J], work: Callable[[J], None], *, threads: int, tend: Callable[[], bool] | None = None) -> None:
    """Do every job; with one thread in the caller, else in threads that end before this returns.

    Args:
        jobs: pulled one at a time, never by two threads at once.
        tend: called again and again in a thread of its own while the others work; returns whether it did something.
            It keeps a slow device busy (syncing) while the rest computes.

    Raises:
        The first error of a job; the others then stop after the one they are at.
    """
    if threads <= 1:
        for job in jobs:
            work(job)
            if tend is not None:
                tend()
        return
    _Crew(jobs, work, tend).run(threads)


class _Crew(Generic[J]):
    """Threads that pull jobs, and one that looks after the device."""

    def __init__(self, jobs: Iterable[J], work: Callable[[J], None], tend: Callable[[], bool] | None) -> None:
        self._jobs, self._work, self._tend = iter(jobs), work, tend
        self._lock = threading.Lock()
        self._stop = self._over = False
        self._bell = threading.Lock()  # held until the workers are done
        self._bell.acquire()
        self._error: BaseException | None = None

    def run(self, threads: int) -> None:
        workers = [_Worker(self._pull, f"chainstore-{i}") for i in range(threads)]
        tender = _Worker(self._look_after, "chainstore-sync")
        try:
            self._work_until_the_end(workers, tender)
        finally:
            for thread in (*workers, tender):
                if thread.ident is not None:
                    thread.join()
        if self._error is not None:
            raise self._error

    def _work_until_the_end(self, workers: list["_Worker"], tender: "_Worker") -> None:
        """Start the threads and wait for them; Ctrl-C has workers stop after their job, and is raised then."""
        begun, interrupt = False, None
        while True:
            try:
                if not begun:
                    begun = True
                    self._begin(workers, tender)
                self._stop = self._stop or interrupt is not None
                for worker in workers:
                    worker.wait()
                self._over = True
                if self._bell.locked():
                    self._bell.release()
                tender.wait()
                break
            except BaseException as error:
                interrupt = error  # nothing more here: another Ctrl-C is caught inside the loop only
        if interrupt is not None:
            raise interrupt

    def _begin(self, workers: list["_Worker"], tender: "_Worker") -> None:
        if not all(map(_start, workers)):
            self._pull()  # with those that did start
        if self._tend is not None:
            _start(tender)

    def _pull(self) -> None:
        try:
            while not self._stop:
                with self._lock:
                    try:
                        job = next(self._jobs)
                    except StopIteration:
                        return
                self._work(job)
        except BaseException as error:
            self._fail(error)

    def _look_after(self) -> None:
        assert self._tend is not None
        try:
            while not self._over:
                if not self._tend():
                    self._bell.acquire(timeout=0.01)
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None:
                self._error = error
        self._stop = True


class _Worker(threading.Thread):
    """A thread whose end can be waited for under Ctrl-C: up to Python 3.12 a `join` that is interrupted takes a thread
    that works on for one that ended, and an interrupt inside an `Event` or a `Condition` may leave its lock held."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._works = work
        self._is_over = False
        self._rest = threading.Lock()  # held until the end
        self._rest.acquire()

    def wait(self) -> None:
        """Wait until the work is done; returns at once where the thread was not started."""
        while self.ident is not None and not self._is_over:  # an interrupt may come after the lock was had
            self._rest.acquire(timeout=_LOOK_SECONDS)

    def run(self) -> None:
        try:
            self._works()
        finally:
            self._is_over = True
            self._rest.release()


def _start(thread: threading.Thread) -> bool:
    """Start a thread, and return whether there could be another: not at the interpreter's end, from Python 3.12 on."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True
