"""The log: lines in order, torn tails, rot, segments."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import Damaged
from chainstore.model.frame import Line
from chainstore.storage import fs, log
from chainstore.storage.log import BEGINNING, Log, Position


def extend(lines: Log, at: Position, body: bytes, *, new_segment: bool = False) -> Position:
    return lines.append(Line(0, at.seq + 1, at.hash, body), at, new_segment=new_segment)


def written(folder: Path, bodies: list[bytes], every: int = 1000) -> tuple[Log, list[Position]]:
    """Return a log of these lines, a new segment after every few, and where they stand."""
    lines, at = Log(folder), BEGINNING
    positions = []
    for number, body in enumerate(bodies):
        at = extend(lines, at, body, new_segment=number % every == 0)
        positions.append(at)
    return lines, positions


def bodies_after(lines: Log, position: Position) -> list[bytes]:
    return [line.body for _, line in lines.after(position)]


def test_lines_come_back_from_any_position(tmp_path):
    bodies = [bytes([n]) * n for n in range(20)]
    lines, positions = written(tmp_path, bodies, every=6)
    assert lines.segments() == [1, 2, 3, 4]
    for number, at in enumerate([BEGINNING, *positions]):
        assert bodies_after(lines, at) == bodies[number:]
        assert lines.ends_at(at) == (number == 20)
    assert [at for at, _ in lines.after(BEGINNING)] == positions
    for at in positions:
        lines.check(at)


def test_a_folder_without_segments_or_no_folder_at_all_is_an_empty_log(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        assert Log(folder).segments() == []
        assert bodies_after(Log(folder), BEGINNING) == []
        assert not Log(folder).ends_at(Position(1, bytes(32), 1, 0, 10))


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_a_tail_that_was_cut_anywhere_is_left_out_and_removed(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("log")
    lines, positions = written(folder, [b"one", b"two", b"three"], every=data.draw(st.sampled_from([1, 2, 1000])))
    last, before = positions[-1], positions[-2]
    path = lines.path(last.segment)
    path.write_bytes(path.read_bytes()[: data.draw(st.integers(last.start, last.end - 1))])
    assert bodies_after(lines, BEGINNING) == [b"one", b"two"]
    lines.cut(before)
    assert lines.ends_at(before)
    at = extend(lines, before, b"again")
    assert bodies_after(lines, BEGINNING) == [b"one", b"two", b"again"]
    assert lines.ends_at(at)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_rot_in_the_middle_is_damage_and_in_the_last_line_a_torn_tail(tmp_path_factory, data):
    lines, positions = written(
        tmp_path_factory.mktemp("log"), [b"one", b"two", b"three", b"four"], every=data.draw(st.sampled_from([3, 1000]))
    )
    hit = data.draw(st.sampled_from(positions))
    path = lines.path(hit.segment)
    raw = bytearray(path.read_bytes())
    raw[data.draw(st.integers(hit.start, hit.end - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    if hit == positions[-1]:
        assert bodies_after(lines, BEGINNING) == [b"one", b"two", b"three"]
    else:
        with pytest.raises(Damaged):
            bodies_after(lines, BEGINNING)
    with pytest.raises(Damaged):
        lines.check(hit)


def test_a_line_that_is_missing_or_another_is_damage(tmp_path):
    lines, positions = written(tmp_path, [b"one", b"two", b"three"], every=1)
    lines.path(2).unlink()
    with pytest.raises(Damaged, match="does not follow"):
        bodies_after(lines, BEGINNING)
    with pytest.raises(Damaged, match="missing"):
        lines.check(positions[1])
    extend(lines, positions[0], b"another", new_segment=True)
    with pytest.raises(Damaged, match="another line"):
        lines.check(as_long_as_another(positions[1]))
    with pytest.raises(Damaged):
        bodies_after(lines, BEGINNING)


def as_long_as_another(position: Position) -> Position:
    return Position(
        position.seq, position.hash, 2, 0, position.start + len(Line(0, 2, bytes(32), b"another").to_bytes())
    )


def test_a_log_that_ends_before_the_position_is_damage(tmp_path):
    lines, positions = written(tmp_path, [b"one", b"two"])
    lines.cut(positions[0])
    with pytest.raises(Damaged, match="ends before line 2"):
        lines.check(positions[1])


def test_a_segment_without_a_single_byte_is_a_torn_tail(tmp_path):
    lines, positions = written(tmp_path, [b"one", b"two"])
    lines.path(2).write_bytes(b"")
    assert bodies_after(lines, positions[0]) == [b"two"]
    assert not lines.ends_at(positions[1])
    lines.cut(positions[1])
    assert lines.ends_at(positions[1])


def test_old_segments_go(tmp_path):
    lines, positions = written(tmp_path, [b"one", b"two", b"three"], every=1)
    (tmp_path / "notes.txt").write_text("not a segment")
    lines.drop_before(3)
    assert lines.segments() == [3]
    assert bodies_after(lines, BEGINNING) == [b"three"]  # whoever starts at the oldest segment trusts its first line
    assert lines.ends_at(positions[2])


def test_a_segment_is_full_by_what_follows_its_first_line(tmp_path, monkeypatch):
    monkeypatch.setattr(log, "SEGMENT_BYTES", 500)
    lines = Log(tmp_path)
    at = extend(lines, BEGINNING, bytes(2000), new_segment=True)
    assert not lines.is_full(at)  # or every line would open a segment, once the checkpoint itself is so long
    at = extend(lines, at, bytes(300))
    assert not lines.is_full(at)
    at = extend(lines, at, bytes(300))
    assert lines.is_full(at)


def test_an_append_is_synced_and_a_new_segment_with_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(fs, "failpoint", lambda name, path: done.append(name))
    at = extend(Log(tmp_path), BEGINNING, b"one", new_segment=True)
    assert done == ["create", "pwrite", "fdatasync", "sync_dir"]
    done.clear()
    extend(Log(tmp_path), at, b"two")
    assert done == ["pwrite", "fdatasync"]
    done.clear()
    Log(tmp_path).sync(at)
    assert done == ["fdatasync", "sync_dir"]
