"""Log healing: the longest chain of lines that the log and the old index make together, put back as the log.

A line that the log lost is taken from the old index, where it is kept whole; a line that neither has ends the chain
of what can be known.
"""

from chainstore.errors import Damaged, Malformed, StorageError
from chainstore.model.change import Checkpoint, decode_changes
from chainstore.model.frame import LINE_MAGIC, Line, parse_line
from chainstore.odb.layout import Format, Layout
from chainstore.odb.rebuild_report import RebuildReport
from chainstore.odb.record import Sealer
from chainstore.odb.view import View
from chainstore.storage import fs
from chainstore.storage.index import Index
from chainstore.storage.log import Log

_LOG_LIMIT = 1 << 40  # bytes of a segment that are read; more than any disk of today holds


def heal_log(layout: Layout, format: Format, sealer: Sealer, report: RebuildReport) -> None:
    """Make the log whole, as far as the log and the old index know it; the caller holds the publish lock.

    Raises:
        Damaged: neither of them can be read.
    """
    log = Log(layout.log)
    kept = _lines_of_old_index(layout, sealer)
    chain = _merge(_lines_of_log(log), kept, sealer, format.hash, report)
    if _holds(log, chain):
        return
    segments = log.segments()
    report.log_healed = True
    number = segments[0] if segments else 1
    fs.write_atomic(log.path(number), b"".join(line.to_bytes() for line in chain))
    for other in segments[1:]:
        fs.unlink(log.path(other))


def _lines_of_old_index(layout: Layout, sealer: Sealer) -> dict[int, Line]:
    """Return the lines that the index in force holds, if it can be opened without risk."""
    try:
        path = layout.index(layout.read_owner().uuid)
        if Index.verify_file(path):
            return {}
        with Index.open(path, readonly=True) as index, index.read() as rows:
            found: dict[int, Line] = {}
            for seq, data in View(rows, sealer).lines():
                found[seq] = parse_line(memoryview(data), "index", 0)
            return found
    except (Damaged, StorageError):
        return {}  # it is what is being replaced; the log has to do


def _lines_of_log(log: Log) -> list[Line]:
    """Return every intact line of every segment, in order, whatever stands between them."""
    found = []
    for segment in log.segments():
        data = fs.read_all(log.path(segment), limit=_LOG_LIMIT)
        view, offset = memoryview(data), 0
        while (offset := data.find(LINE_MAGIC, offset)) >= 0:
            try:
                line = parse_line(view[offset:], f"log segment {segment}", offset)
            except Malformed:
                offset += 1
                continue
            found.append(line)
            offset += line.line_bytes
    return found


def _merge(
    logged: list[Line], kept: dict[int, Line], sealer: Sealer, format_hash: bytes, report: RebuildReport
) -> list[Line]:
    """Return the longest chain of lines of this repository that the log and the old index make together."""
    by_seq: dict[int, list[Line]] = {}
    for line in [*logged, *kept.values()]:
        by_seq.setdefault(line.seq, []).append(line)
    starts = sorted(
        (line for lines in by_seq.values() for line in lines if _is_checkpoint(line, sealer, format_hash)),
        key=lambda line: line.seq,
    )
    best: list[Line] = []
    for start in starts:
        chain = _follow(start, by_seq)
        if not best or chain[-1].seq > best[-1].seq:
            best = chain
    if not best:
        raise Damaged(
            "neither the log nor the index can be read: refs are lost",
            hint="restore log/ or index/ from a copy; the packs are left as they are",
        )
    report.lost_lines = max(by_seq) > best[-1].seq
    if report.lost_lines:
        report.problems.append(f"lines {best[-1].seq + 1} to {max(by_seq)} of the log cannot be joined to the rest")
    return best


def _follow(start: Line, by_seq: dict[int, list[Line]]) -> list[Line]:
    chain = [start]
    while True:
        tip = chain[-1].hash
        following = [line for line in by_seq.get(chain[-1].seq + 1, []) if line.previous == tip]
        if not following:
            return chain
        chain.append(following[0])


def _is_checkpoint(line: Line, sealer: Sealer, format_hash: bytes) -> bool:
    """Whether a chain of this repository may start at `line`; without keys, lines of others can be read too."""
    try:
        changes = decode_changes(sealer.open_line(line))[1]
        return any(isinstance(change, Checkpoint) and change.format_hash == format_hash for change in changes)
    except Damaged:
        return False


def _holds(log: Log, chain: list[Line]) -> bool:
    try:
        data = b"".join(fs.read_all(log.path(segment), limit=_LOG_LIMIT) for segment in log.segments())
    except FileNotFoundError:
        return False
    return data == b"".join(line.to_bytes() for line in chain)
