"""The test of the tests: each mistake that loses something in a power cut is told by the simulated ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chainstore.model.change import Mark, PackGrown
from chainstore.odb import replay
from chainstore.odb.local import LocalDatabase
from chainstore.odb.publisher import Publisher, no_records
from chainstore.odb.rows import STATE_ROW
from chainstore.ops.moving import Mover
from chainstore.storage import fs, index
from chainstore.storage.log import Log, Position
from chainstore.storage.pack import PackWriter
from tests.faults.crash_bench import Bench, Violation

Patch = pytest.MonkeyPatch


def without(method: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function during which a method of every file does nothing."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fs.File, method, lambda file, *_: None)
            return function(*args, **kwargs)

    return wrapped


def log_is_not_synced(patch: Patch) -> None:
    patch.setattr(Log, "append", without("fdatasync", Log.append))


def packs_are_not_synced(patch: Patch) -> None:
    patch.setattr(PackWriter, "sync", lambda writer: None)


def names_are_not_synced(patch: Patch) -> None:
    patch.setattr(fs, "sync_dir", lambda path: None)


def small_files_are_renamed_before_they_are_synced(patch: Patch) -> None:
    patch.setattr(fs, "_write_atomic", without("fdatasync", fs._write_atomic))


def index_has_the_line_before_the_log(patch: Patch) -> None:
    append, end = Log.append, index._Environment.end
    waiting: list[Callable[[], Position]] = []

    def append_later(log: Log, line: Any, after: Position, **how: Any) -> Position:
        waiting.append(lambda: append(log, line, after, **how))
        return Position(line.seq, line.hash, after.segment, after.end, after.end + line.line_bytes)

    def end_first(environment: index._Environment, reader: index.Reader, commit: bool) -> None:
        end(environment, reader, commit)
        while commit and waiting:
            waiting.pop()()

    patch.setattr(Log, "append", append_later)
    patch.setattr(index._Environment, "end", end_first)


def a_ref_moves_before_its_commit_is_there(patch: Patch) -> None:
    publish = Publisher.publish

    def refs_first(publisher: Publisher, position: Position, changes: Any, records: Any, *more: Any) -> Position:
        grown = [change for change in changes if isinstance(change, PackGrown)]
        if grown:
            rest = [change for change in changes if change not in grown]
            position = publish(publisher, position, rest, no_records)
        return publish(publisher, position, grown or changes, records, *more)

    patch.setattr(Publisher, "publish", refs_first)


def marks_are_published_one_by_one(patch: Patch) -> None:
    publish = LocalDatabase.publish

    def one_by_one(db: LocalDatabase, batch: Any, changes: Any, **more: Any) -> int:
        pieces = [
            [Mark((commit,), change.policy) for commit in change.commits] if isinstance(change, Mark) else [change]
            for change in changes
        ]
        if len(changes) == 1:
            return [publish(db, batch, [piece], **more) for piece in pieces[0]][-1]
        return publish(db, batch, changes, **more)

    patch.setattr(LocalDatabase, "publish", one_by_one)


def a_torn_tail_stays(patch: Patch) -> None:
    patch.setattr(Log, "cut", lambda log, position: None)


def recovery_says_that_it_is_done_before_it_is(patch: Patch) -> None:
    redo = Publisher._redo

    def done_first(publisher: Publisher, at: Position, line: Any) -> None:
        with publisher._index.write() as rows:
            rows.put("meta", b"state", STATE_ROW.pack(at.seq, at.hash, at.segment, at.start, at.end))
        redo(publisher, at, line)

    patch.setattr(Publisher, "_redo", done_first)


def recovery_does_not_sync_the_log(patch: Patch) -> None:
    patch.setattr(Log, "sync", lambda log, after: None)


def a_rebuilt_index_has_no_marks(patch: Patch) -> None:
    decode = replay.decode_changes

    def without_marks(body: Any) -> Any:
        time_us, changes = decode(body)
        return time_us, [change for change in changes if not isinstance(change, Mark)]

    patch.setattr(replay, "decode_changes", without_marks)


def gc_frees_bytes_before_the_log_says_so(patch: Patch) -> None:
    publish = Mover._publish

    def punch_first(mover: Mover, pack: Any, copies: Any, *, last: bool) -> None:
        for copy in copies:
            pack.file.punch(copy.start, copy.stop - copy.start)
        publish(mover, pack, copies, last=last)

    patch.setattr(Mover, "_publish", punch_first)


NOT_IN_DEPTH = 1 << 30
Mistake = Callable[[Patch], None]
MISTAKES: list[tuple[Mistake, tuple[str, ...], str]] = [
    (log_is_not_synced, ("commit",), "the log ends before line 6, which was acknowledged"),
    (packs_are_not_synced, ("commit",), "pack [0-9a-f]+"),
    (names_are_not_synced, ("commit", "commit"), "is missing"),
    (small_files_are_renamed_before_they_are_synced, ("rotate",), "keyring is damaged"),
    (index_has_the_line_before_the_log, ("tag",), "the log ends before line 6, which was acknowledged"),
    (a_ref_moves_before_its_commit_is_there, ("commit",), "it is not in the store"),
    (marks_are_published_one_by_one, ("commit", "forget"), "I2"),
    (a_torn_tail_stays, ("commit",), "I6"),
    (gc_frees_bytes_before_the_log_says_so, ("forget", "gc"), "no record starts here"),
]
IN_DEPTH: list[tuple[Mistake, tuple[str, ...], str]] = [
    (recovery_says_that_it_is_done_before_it_is, ("commit",), "(?s)during recovery.*another in the index"),
    (recovery_does_not_sync_the_log, ("commit",), "during recovery.*the log ends before line 6"),
    (a_rebuilt_index_has_no_marks, ("forget",), "I8"),
]


def names(mistakes: list[tuple[Mistake, tuple[str, ...], str]]) -> list[str]:
    return [mistake.__name__ for mistake, _, _ in mistakes]


@pytest.mark.parametrize(("mistake", "steps", "told"), MISTAKES, ids=names(MISTAKES))
def test_a_mistake_is_told(
    mistake: Mistake, steps: tuple[str, ...], told: str, ground: Path, monkeypatch: Patch
) -> None:
    small_files = mistake is names_are_not_synced
    bench = Bench(ground, encrypted="rotate" in steps, small_files=small_files, every=NOT_IN_DEPTH, chances=6)
    mistake(monkeypatch)
    with pytest.raises(Violation, match=told):
        bench.explore(steps, 1, last_step_only=True)


@pytest.mark.parametrize(("mistake", "steps", "told"), IN_DEPTH, ids=names(IN_DEPTH))
def test_a_mistake_in_recovery_or_rebuilding_is_told(
    mistake: Mistake, steps: tuple[str, ...], told: str, ground: Path, monkeypatch: Patch
) -> None:
    bench = Bench(ground, encrypted=False, every=1)
    mistake(monkeypatch)
    with pytest.raises(Violation, match=told):
        bench.explore(steps, 1, last_step_only=True)
