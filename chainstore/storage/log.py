"""The commit log: the truth about refs, in append-only segments.

    log/00000001, log/00000002, ...     lines one after the other; the first of a segment is a checkpoint

A line is durable once `append` returns: that instant is the commit.  Each line names the hash of the one before,
so that a line can be neither dropped nor put elsewhere without being seen.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from chainstore.errors import Damaged, Malformed
from chainstore.model.frame import LINE_HEADER_BYTES, LINE_MAGIC, Line, line_bytes, parse_line
from chainstore.storage import fs

SEGMENT_BYTES = 64 << 20
NO_HASH = bytes(32)


@dataclass(frozen=True, slots=True)
class Position:
    """A line of the log: its number and hash, and the bytes [start, end) of its segment that it takes."""

    seq: int
    hash: bytes
    segment: int
    start: int
    end: int


BEGINNING = Position(0, NO_HASH, 0, 0, 0)


class Log:
    """The segments in one folder; whoever appends or cuts holds the publish lock."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def path(self, segment: int) -> Path:
        """Return where a segment lies."""
        return self._directory / f"{segment:08d}"

    def segments(self) -> list[int]:
        """Return the numbers of the segments that exist, oldest first."""
        try:
            names = fs.list_dir(self._directory)
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if _SEGMENT.fullmatch(name))

    def ends_at(self, position: Position) -> bool:
        """Whether nothing follows `position`."""
        segments = self.segments()
        if not segments or segments[-1] != position.segment:
            return False
        return _size(self.path(position.segment)) == position.end

    def stamp(self) -> object:
        """Return what changes whenever a line is added or undone; cheap."""
        segments = self.segments()
        try:
            return segments[-1:], fs.stamp_of(self.path(segments[-1])) if segments else None
        except FileNotFoundError:
            return None  # never the same as one that was seen: whoever asks looks closer

    def check(self, position: Position) -> None:
        """Verify that the log still holds the line at `position`.

        Raises:
            Damaged: it is cut short, or another line stands there.
        """
        path = self.path(position.segment)
        data = _read(path, position.start, position.end - position.start)
        if len(data) < position.end - position.start:
            raise Damaged(f"the log ends before line {position.seq}, which was acknowledged", hint=_HEAL)
        line = parse_line(memoryview(data), path.name, position.start)
        if line.hash != position.hash:
            raise Damaged(f"the log holds another line {position.seq} than the one acknowledged", hint=_HEAL)

    def after(self, position: Position) -> Iterator[tuple[Position, Line]]:
        """Yield the lines that follow `position`, and stop before a torn tail.

        A tail is torn when the last line of the last segment is incomplete and nothing intact follows it: that line
        was never acknowledged.

        Raises:
            Damaged: a line in the middle is broken, or the chain of hashes is.
        """
        segments = [number for number in self.segments() if number >= position.segment]
        for segment in segments:
            base = position.end if segment == position.segment else 0
            data = memoryview(_read(self.path(segment), base, _EVERYTHING))
            offset = 0
            while offset < len(data):
                try:
                    line = parse_line(data[offset:], f"log segment {segment}", base + offset)
                except Malformed:
                    if segment == segments[-1] and not _anything_intact(data, offset + 1):
                        return
                    raise
                position = _step(position, line, segment, base + offset)
                yield position, line
                offset += line.line_bytes

    def sync(self, after: Position) -> None:
        """Make durable what follows `after`, which the process that wrote it may not have done."""
        for segment in self.segments():
            if segment >= after.segment:
                with fs.open_file(self.path(segment), write=True) as file:
                    file.fdatasync()
        fs.sync_dir(self._directory)

    def is_full(self, position: Position) -> bool:
        """Whether the segment that ends at `position` holds enough beside the checkpoint that it opens with."""
        if position.end <= SEGMENT_BYTES:
            return False
        head = _read(self.path(position.segment), 0, LINE_HEADER_BYTES)
        return position.end - line_bytes(memoryview(head)) > SEGMENT_BYTES

    def append(self, line: Line, after: Position, *, new_segment: bool = False) -> Position:
        """Write `line` behind `after` and make it durable; return where it stands."""
        segment = after.segment + 1 if new_segment else after.segment
        start = 0 if new_segment else after.end
        path = self.path(segment)
        with fs.open_file(path, write=True, create=new_segment) as file:
            file.pwrite(start, line.to_bytes())
            file.fdatasync()
        if new_segment:
            fs.sync_dir(self._directory)
        return Position(line.seq, line.hash, segment, start, start + line.line_bytes)

    def cut(self, position: Position) -> None:
        """Remove everything behind `position`: a torn tail, or a line that is to be undone."""
        for segment in reversed(self.segments()):
            if segment > position.segment:
                fs.unlink(self.path(segment))
        if position.segment:
            with fs.open_file(self.path(position.segment), write=True) as file:
                if file.size() > position.end:
                    file.truncate(position.end)
                    file.fdatasync()
        fs.sync_dir(self._directory)

    def drop_before(self, segment: int) -> None:
        """Remove the segments before `segment`, whose checkpoint sums them up and is durable."""
        for number in self.segments():
            if number < segment:
                fs.unlink(self.path(number))


_HEAL = "`chain rebuild-index` restores the log from the index"
_SEGMENT = re.compile(r"[0-9]{8,18}")
_EVERYTHING = 1 << 62


def _read(path: Path, offset: int, length: int) -> bytes:
    try:
        with fs.open_file(path) as file:
            return file.pread(offset, length)
    except FileNotFoundError:
        raise Damaged(f"log segment {path.name} is missing", hint=_HEAL) from None


def _size(path: Path) -> int:
    try:
        return fs.size_of(path)
    except FileNotFoundError:
        return -1


def _step(before: Position, line: Line, segment: int, offset: int) -> Position:
    first_seen = before.seq == 0 and line.seq > 0  # a reader that starts at the oldest segment trusts its checkpoint
    if not first_seen and (line.seq != before.seq + 1 or line.previous != before.hash):
        raise Damaged(f"log line {line.seq} does not follow line {before.seq}", hint=_HEAL)
    return Position(line.seq, line.hash, segment, offset, offset + line.line_bytes)


def _anything_intact(data: memoryview, offset: int) -> bool:
    raw = bytes(data[offset:])
    found = raw.find(LINE_MAGIC)
    while found >= 0:
        try:
            parse_line(data[offset + found :], "log", offset + found)
        except Malformed:
            found = raw.find(LINE_MAGIC, found + 1)
            continue
        return True
    return False
