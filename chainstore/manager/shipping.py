"""Shipping: captures on their way to becoming durable, and what the trainer is told of it."""

import struct
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from chainstore.errors import ChainError, MemoryShort, QueueFull, SnapshotFailed, Unsupported
from chainstore.manager.bays import Bays
from chainstore.manager.beside import Beside
from chainstore.manager.direct import Direct
from chainstore.manager.endings import words_again
from chainstore.manager.gathering import numbers
from chainstore.manager.messages import Durable, Failed, Request
from chainstore.manager.options import Mode, OnError, WhenFull
from chainstore.manager.resuming import tell
from chainstore.manager.storing import failure
from chainstore.manager.tally import Tally
from chainstore.manager.telemetry import Landing, Telemetry
from chainstore.manager.writers import Writer, make_writer
from chainstore.model.paths import Path
from chainstore.observe import Observer
from chainstore.policies.retention import Retention
from chainstore.policies.texts import format_retention
from chainstore.repository import Repository

_TIDY_EVERY = 10  # snapshots, where a policy has no number of its own: planning reads every commit
_FOREVER_SECONDS = 1e9
_EXPECTED = (ChainError, OSError, MemoryError)  # of a capture, or of giving it to the writer


class Shipping:
    """Captures states and hands them to a writer; one branch at a time.

    Args:
        wait_seconds: for a writer that another process left behind on the branch.
        landed: is told of every snapshot that became durable.
        checksums: is told, where it is given, the number of every one and the CRC32C of each of its leaves, by path.

    Attributes:
        branch: where snapshots go.  tally: what became of them.  before: what the run before left (`BranchHold`).
        number: of the last snapshot that was tried.  beside: the files that go with every snapshot.
    """

    def __init__(
        self,
        repo: Repository,
        branch: str,
        *,
        mode: Mode,
        codec: str | None,
        max_pending: int,
        frozen: Callable[[Path], bool],
        retention: Retention | None,
        files: Mapping[str, str],
        when_full: WhenFull,
        on_error: OnError,
        observer: Observer,
        wait_seconds: float,
        telemetry: Telemetry,
        landed: Callable[[Landing], None],
        checksums: Callable[[int, Mapping[Path, int]], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._repo, self._mode, self._codec = repo, mode, codec
        self._when_full, self._on_error = when_full, on_error
        self.beside = Beside(files, observer)
        self._telemetry, self._landed, self._checksums = telemetry, landed, checksums
        self._paths: dict[int, tuple[Path, ...]] = {}  # of snapshots on their way, whose checksums were asked for
        self.keep(retention)
        self.observer, self._clock = observer, clock
        self.tally = Tally()
        self._error: ChainError | None = None
        self.branch, self._root = branch, False
        self._hold = repo.hold_branch(branch, wait_seconds=wait_seconds)
        self.before = self._hold.before
        self._writer = self._make_writer()
        self._guard = threading.RLock()  # over the writer: the timer of a signal waits for it too
        self._free_at = 0.0  # when the writer is done with what it has, as far as is known
        self._bays = Bays(max_pending, self._mode == "process", frozen, observer)
        self._direct = Direct(repo, observer)
        self._wait_seconds = wait_seconds
        self.number = 0

    def __repr__(self) -> str:
        tally = self.tally
        return f"{tally.durable} durable, {self.pending} on their way, {tally.failed} failed, {tally.skipped} skipped"

    @property
    def pending(self) -> int:
        """How many captures are on their way, as far as was heard."""
        return len(self.tally.steps)

    def _make_writer(self) -> Writer:
        """Return a writer of the kind that was asked for, or a thread where there can be no other process."""
        try:
            return make_writer(self._mode, self._repo, self._hold, self.observer)
        except Unsupported as error:
            return self._make_thread(str(error))

    def _make_thread(self, why: str) -> Writer:
        self._mode = "thread"
        text = f"{why}; snapshots are made durable by a thread, and do not survive a kill of this process"
        tell(self.observer, "writer-thread", text)
        return make_writer(self._mode, self._repo, self._hold, self.observer)

    def _go_over_to_thread(self, why: str) -> None:
        self._writer.drain(self._wait_seconds)
        self._hear()
        self._writer.close(self._wait_seconds)
        self._writer = self._make_thread(why)

    def keep(self, retention: Retention | None) -> None:
        """Let snapshots be dropped by another policy from here on; None drops none."""
        self._retention = None if retention is None else format_retention(retention)
        self._tidy_every = max(1, (retention.last or _TIDY_EVERY * 2) // 2) if retention is not None else 0

    def say_ended(self, how: str) -> None:
        """Leave word of how the run ended; see `BranchHold.say_ended`."""
        self._hold.say_ended(how)

    def look(self) -> None:
        """Take note of what became durable or failed since the last look.

        Raises:
            SnapshotFailed: something did, and that is what was asked for.
        """
        self._hear()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def ship(
        self,
        state: Mapping[str, Any],
        *,
        step: int | None,
        epoch: int | None,
        metrics: Mapping[str, object] | None,
        meta: Mapping[str, object],
        why: str,
        at_once: bool = False,
    ) -> bool:
        """Capture a state and let it become durable; return whether it was captured.

        Where there is no memory for that, it is durable when this returns True.

        Args:
            at_once: it was asked for by name: never skipped, whatever is on its way.

        Raises:
            QueueFull: as many as may be are on their way, and that is to be raised.
        """
        if not self.has_room(step, at_once):
            return False
        started = self._clock()
        request = Request(
            branch=self.branch,
            message=f"{why}: step {step}" if step is not None else why,
            step=step,
            epoch=epoch,
            metrics=numbers(metrics),
            meta=dict(meta),
            tags=(),
            files=self.beside.now(),
            codec=self._codec,
            root=self._root,
            checksums=self._checksums is not None,
        )
        self.number += 1
        self.tally.steps[self.number] = step
        result: Durable | Failed | None = None
        try:
            try:
                self._capture(state, request, started)
            except MemoryShort as short:
                result = self._do_without(short, state, request, started)
        except _EXPECTED as error:
            result = failure(self.number, error)
        except BaseException:
            self.tally.steps.pop(self.number, None)
            self.tally.begun.pop(self.number, None)
            raise
        if isinstance(result, Failed):
            self._note(result)
            return False
        self.tally.captured += 1
        self._telemetry.captured(started, self._clock() - started, self.pending)
        if result is not None:
            self._note(result)
        self._hear()
        return True

    def _capture(self, state: Mapping[str, Any], request: Request, started: float) -> None:
        """Copy a state, and give it to the writer."""
        bay, captured = self._bays.capture(state, self.number, self.tally.steps, lambda: self.drain(None))
        self._direct.captured()
        self.tally.begun[self.number] = started, self._clock()
        if request.checksums:
            self._paths[self.number] = tuple(leaf.path for leaf in captured.leaves)
        try:
            with self._guard:
                if self._mode == "process" and bay.buffer.fd < 0:
                    self._go_over_to_thread("this system has no memory that another process could be given")
                self._writer.submit(captured, bay.buffer, request)
        except _EXPECTED:
            raise
        except BaseException:  # Ctrl-C: the writer may have it or not, so nobody may write to that memory again
            bay.close()
            raise

    def _do_without(
        self, short: MemoryShort, state: Mapping[str, Any], request: Request, started: float
    ) -> Durable | Failed:
        """Make a state durable that there is no memory to copy, after those that are on their way."""
        self._direct.say(short)
        self.drain(None)
        with self._guard:
            result, paths = self._direct.store(self.number, state, request)
        self.tally.begun[self.number] = started, self._clock()
        self._paths[self.number] = paths if request.checksums else ()
        return result

    def prepare(self, state: Mapping[str, Any]) -> None:
        """Have memory for captures of states like this one, where nothing is on its way; failing is no failure."""
        if not self.pending:
            self._bays.prepare(state)

    def drain(self, timeout: float | None, leave: int = 0) -> bool:
        """Wait until no more than `leave` are on their way; return whether that is so."""
        with self._guard:
            done = self._writer.drain(_FOREVER_SECONDS if timeout is None else timeout, leave)
        self._hear()
        return done

    def flush(self, seconds: float) -> None:
        """As `drain`, from a thread that is not the trainer's; where that one is at it, it is only waited for."""
        if self._guard.acquire(timeout=seconds):
            try:
                self._writer.drain(seconds)
            finally:
                self._guard.release()

    def move_to(self, branch: str) -> None:
        """Let snapshots go to another branch from here on."""
        self.drain(self._wait_seconds)
        self._writer.close(self._wait_seconds)
        self._hold.say_ended(words_again(self.before))
        self._hold.close()
        self.branch, self._root = branch, True  # what it holds does not descend from what is on the branch before
        self._telemetry.moved(branch)
        self._hold = self._repo.hold_branch(branch, wait_seconds=self._wait_seconds)
        self.before = self._hold.before
        self._writer = self._make_writer()

    def close(self, timeout: float) -> None:
        """Wait until nothing is on its way, and give everything up."""
        try:
            if not self.drain(timeout):
                tell(self.observer, "snapshot-late", f"{self.pending} snapshots are not durable after {timeout:.0f} s")
            if self._retention is not None and self.tally.durable:
                self._writer.tidy(self._retention)
            self._writer.close(timeout)
        finally:
            self._hold.close()
            self._bays.close()

    def has_room(self, step: int | None, at_once: bool) -> bool:
        """Return whether a snapshot can be captured now; one that is due and cannot is counted as skipped.

        Raises:
            QueueFull: as for `ship`.
        """
        self._hear()
        if self.pending >= len(self._bays) and (at_once or self._when_full == "wait"):
            self.drain(None, leave=len(self._bays) - 1)
        if self.pending < len(self._bays):
            return True
        self.tally.skipped += 1
        self._telemetry.skipped()
        if self._when_full == "raise":
            raise QueueFull(f"the snapshot of step {step} is due, and {self.pending} are on their way")
        return False

    def _hear(self) -> None:
        with self._guard:
            told = self._writer.poll()
        for result in told:
            self._note(result)

    def _note(self, result: Durable | Failed) -> None:
        step = self.tally.steps.pop(result.number, None)
        begun = self.tally.begun.pop(result.number, None)
        paths = self._paths.pop(result.number, ())
        if isinstance(result, Durable):
            if self._checksums is not None:
                sums = struct.unpack(f"<{len(paths)}I", result.checksums)
                self._checksums(result.number, dict(zip(paths, sums, strict=True)))
            if begun is not None:
                self._land(result, step, *begun)
            self.beside.stored(result.left_out)
            self.tally.durable += 1
            self.tally.last_step, self.tally.last_time, self.tally.last_commit = step, self._clock(), result.commit
            if self._tidy_every and self.tally.durable % self._tidy_every == 0 and self._retention is not None:
                self._writer.tidy(self._retention)
            return
        self.tally.failed += 1
        self._telemetry.failed(result.code, self.pending)
        error = SnapshotFailed(step, result.code, result.text, result.hint)
        if self._on_error == "raise":
            self._error = error
            return
        tell(self.observer, error.code, f"{error}; training goes on{self.tally.how_long(self._clock())}")

    def _land(self, result: Durable, step: int | None, started: float, captured: float) -> None:
        """Tell of a durable snapshot.  It was so before it was heard of, at the end of a step: the writer says when."""
        heard = self._clock()
        durable = min(heard, max(captured, self._free_at) + result.seconds)
        self._free_at = durable
        landing = Landing(
            step=step,
            commit=result.commit,
            captured_at=started,
            age_s=heard - started,
            stall_s=captured - started if self._mode != "sync" else durable - started,
            written_s=result.seconds,
            durable_s=durable - started,
            raw_bytes=result.raw_bytes,
            new_bytes=result.new_bytes,
            stored_bytes=result.stored_bytes,
            delta_bytes=result.delta_bytes,
        )
        self._telemetry.landed(landing, self.pending)
        self._landed(landing)
