"""The ground that everything else stands on: small files, index, log, packs.

Each check notes what it finds and goes on where that makes sense.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from chainstore.errors import ChainError, Damaged, ReadOnly, StorageError
from chainstore.model.change import PackLine
from chainstore.model.frame import Line
from chainstore.odb.layout import Format, Layout
from chainstore.odb.view import View
from chainstore.ops.verify_report import Damage, VerifyReport
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import BEGINNING, Log
from chainstore.storage.pack import PackDir

_SMALL_FILE_BYTES = 1 << 20
_POLLS, _POLL_SECONDS = 500, 0.02
PAIRS = ("format", "keyring")  # each with a backup, NAME.bak


def note(report: VerifyReport, check: str, look: Callable[[], object]) -> None:
    """Do one check; what it raises is damage."""
    try:
        look()
    except ChainError as error:
        report.damaged.append(Damage(str(error), getattr(error, "id", ""), check=check))


def check_small_files(layout: Layout, report: VerifyReport, *, encrypted: bool) -> None:
    """Read format and key slots, and the backup of each."""
    for name in PAIRS if encrypted else PAIRS[:1]:
        for file in (name, f"{name}.bak"):
            note(report, "files", lambda: parse_small_file(layout, file))  # noqa: B023


def parse_small_file(layout: Layout, name: str) -> bytes:
    """Return one of these files, verified.

    Raises:
        Damaged: it is missing, or not what was written.
    """
    try:
        data = fs.read_all(layout.root / name, _SMALL_FILE_BYTES)
    except FileNotFoundError:
        raise Damaged(f"{name} is missing") from None
    try:
        if name.startswith("format"):
            Format.from_bytes(data)
        else:
            layout.parse_keyring(data)
    except Damaged as error:
        raise Damaged(f"{name} is damaged: {error}") from error
    return data


def check_index(path: Path, layout: Layout, report: VerifyReport) -> bool:
    """Walk the pages of an index without LMDB; return whether it can be read at all.

    A commit under way looks like damage, so whatever looks like it is looked at again while nobody publishes.
    """
    problems = Index.verify_file(path)
    if problems:
        with _nobody_publishing(layout):
            problems = Index.verify_file(path)
    report.damaged += [Damage(f"the index: {problem}", check="index") for problem in problems]
    return not problems


@contextmanager
def _nobody_publishing(layout: Layout) -> Iterator[None]:
    """Hold the flock of publishers for a moment, without a trace in its file; do without where that takes too long."""
    try:
        file = fs.open_file(layout.leases / "publish", write=True)
    except (FileNotFoundError, ReadOnly, StorageError):
        yield  # a copy that nobody has written to yet, or that we may not lock
        return
    with file:
        for _ in range(_POLLS):
            if file.flock(exclusive=True):
                break
            time.sleep(_POLL_SECONDS)
        yield


def check_log(view: View, log: Log, report: VerifyReport, opened: Callable[[Line], object]) -> None:
    """Every line of every segment parses, follows the one before, opens, and is in the index as it is in the log.

    Raises:
        Damaged: what is not so.
    """
    end = view.position()
    at = BEGINNING
    for here, line in log.after(BEGINNING):
        at = here
        opened(line)
        if at.seq > end.seq:
            break  # not in the index yet: it is settled by the next writer
        if at.segment == end.segment and view.line(at.seq) != line.to_bytes():
            raise Damaged(f"line {at.seq} of the log is another in the index")
        report.lines += 1
    if at.seq < end.seq:
        raise Damaged(f"the log ends at line {at.seq}, the index at line {end.seq}")


def check_packs(packs: PackDir, view: Callable[[], AbstractContextManager[View]], report: VerifyReport) -> None:
    """Every pack is as long as what was committed to it."""
    with view() as now:
        short = {line.pack for _, line in short_packs(packs, now)}
    if not short:
        return
    with view() as now:  # a fresh look: gc may have retired one meanwhile
        for _, line in short_packs(packs, now):
            if line.pack in short:
                name, size = line.pack.hex(), packs.size(line.pack)
                what = f"pack {name} has {size} bytes where {line.length} were committed"
                report.damaged.append(Damage(what, check="packs", pack=name, why="it is too short"))


def short_packs(packs: PackDir, view: View) -> Iterator[tuple[int, PackLine]]:
    """Yield (number, pack) of those whose file is missing or shorter than what was committed."""
    for number, line in view.packs():
        if not line.retired and packs.size(line.pack) < line.length:
            yield number, line
