"""Packs: ranges for several threads, one owner at a time, and what is found in one that was damaged."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import Damaged, Malformed
from chainstore.ids import Kind, ObjectId
from chainstore.model.frame import (
    ALIGNMENT,
    KIND_CONTENTS,
    RECORD_MAGIC,
    Header,
    frame_record,
    parse_contents,
    split_record,
)
from chainstore.storage import fs, pack
from chainstore.storage.pack import PackDir, PackWriter, salvage, scan

REPO = b"R" * 16
NAME = bytes(range(16))


def record(number: int, payload: bytes) -> tuple[Header, list]:
    header = Header(
        Kind.CHUNK, 0, 0, bytes(4), len(payload), len(payload), ObjectId(number.to_bytes(32, "big")), 0, (), REPO
    )
    return header, frame_record(header, payload)


def fill(writer: PackWriter, sizes: list[int]) -> list[tuple[int, Header]]:
    found = []
    for number, size in enumerate(sizes):
        header, parts = record(number, bytes([number % 256]) * size)
        offset = writer.reserve(header.record_bytes)
        assert offset is not None
        writer.write(offset, parts)
        found.append((offset, header))
    writer.sync()
    return found


def test_a_pack_lies_in_a_folder_of_its_first_two_digits(tmp_path):
    packs = PackDir(tmp_path)
    packs.create(NAME).close()
    assert (tmp_path / "00" / NAME.hex()).is_file()
    (tmp_path / "00" / "not a pack").write_bytes(b"")
    assert packs.names() == [NAME]


def test_threads_write_into_ranges_that_do_not_overlap(tmp_path):
    writer = PackDir(tmp_path).create(NAME)

    def put(number: int) -> tuple[int, Header]:
        header, parts = record(number, bytes([number]) * (number * 37))
        offset = writer.reserve(header.record_bytes)
        assert offset is not None
        writer.write(offset, parts)
        return offset, header

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(put, range(100)))
    writer.sync()
    assert list(scan(writer.file, 0, writer.end, "pack")) == sorted(found)
    for offset, header in found:
        data = memoryview(writer.file.pread(offset, header.record_bytes))
        assert set(split_record(data, "pack")[1]) <= {int.from_bytes(header.id, "big")}
    writer.close()


def test_a_full_pack_gives_no_more_room_but_an_empty_one_takes_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "PACK_BYTES", 1000)
    writer = PackDir(tmp_path).create(NAME)
    assert writer.reserve(5000) == 0
    assert writer.reserve(64) is None
    writer.close()


def test_a_closing_record_lists_all_the_others(tmp_path):
    writer = PackDir(tmp_path).create(NAME)
    found = fill(writer, [10, 2000, 0])
    offset = writer.finish(found, REPO)
    header, payload = split_record(memoryview(writer.file.pread(offset, 1 << 16)), "pack")
    assert header.kind == KIND_CONTENTS
    assert list(parse_contents(payload, "pack")) == found
    assert writer.end == writer.file.size()
    writer.close()


def test_only_one_writer_holds_a_pack(tmp_path):
    writer = PackDir(tmp_path).create(NAME)
    fill(writer, [10])
    other = PackDir(tmp_path)
    assert other.take_over(NAME) is None
    writer.rest()
    file = other.take_over(NAME)
    assert file is not None
    assert not writer.file.flock(exclusive=True)
    file.close()
    assert writer.file.flock(exclusive=True)
    writer.close()


def test_a_pack_that_is_gone_or_replaced_is_not_taken_over(tmp_path):
    packs = PackDir(tmp_path)
    assert packs.take_over(NAME) is None
    assert packs.size(NAME) == 0
    writer = packs.create(NAME)
    writer.rest()
    packs.path(NAME).unlink()
    packs.path(NAME).write_bytes(b"")
    assert writer.file.flock(exclusive=True)
    assert not writer.file.is_at(packs.path(NAME))
    writer.close()


def test_a_pack_that_is_replaced_just_before_it_is_locked_is_not_taken_over(tmp_path, monkeypatch):
    packs = PackDir(tmp_path)
    packs.create(NAME).close()

    def replace_it(name, path):
        if name == "flock":
            path.unlink()
            path.write_bytes(b"another")

    monkeypatch.setattr(fs, "failpoint", replace_it)
    assert packs.take_over(NAME) is None


def test_resuming_cuts_what_nobody_committed(tmp_path):
    packs = PackDir(tmp_path)
    first = packs.create(NAME)
    found = fill(first, [10, 20, 30])
    first.close()
    file = packs.take_over(NAME)
    writer = packs.resume(NAME, file, found[1][0])
    assert file.size() == writer.start == writer.end == found[1][0]
    writer.close()


def test_nothing_is_added_to_a_pack_that_is_shorter_than_committed(tmp_path):
    packs = PackDir(tmp_path)
    packs.create(NAME).close()
    file = packs.take_over(NAME)
    assert packs.resume(NAME, file, 100) is None
    assert packs.size(NAME) == 0
    file = packs.take_over(NAME)
    assert file is not None  # the flock was given up
    file.close()


def test_a_missing_pack_is_damage_to_readers_and_to_whoever_settles(tmp_path):
    with pytest.raises(Damaged, match="missing"):
        PackDir(tmp_path).read_into(NAME, 0, memoryview(bytearray(10)))
    with pytest.raises(Damaged, match="missing"):
        PackDir(tmp_path).sync(NAME)


def test_few_files_stay_open_for_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "OPEN_READERS", 4)
    packs = PackDir(tmp_path)
    names = [bytes([n]) * 16 for n in range(20)]
    for name in names:
        packs.create(name).close()
    before = len(os.listdir("/proc/self/fd"))
    for name in names:
        packs.read_into(name, 0, memoryview(bytearray(1)))
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    packs.close()


@pytest.fixture(scope="module")
def small_pack(tmp_path_factory) -> tuple[Path, list[tuple[int, Header]]]:
    folder = tmp_path_factory.mktemp("packs")
    writer = PackDir(folder).create(NAME)
    found = fill(writer, [0, 5, 100, 3000, 40_000, 7, 64, 20_000, 1])
    writer.close()
    return PackDir(folder).path(NAME), found


def test_scanning_refuses_a_gap_and_a_record_beyond_the_end(small_pack):
    path, found = small_pack
    with fs.open_file(path) as file:
        assert list(scan(file, found[2][0], file.size(), "pack")) == found[2:]
        with pytest.raises(Malformed):
            list(scan(file, ALIGNMENT, file.size(), "pack"))
        with pytest.raises(Malformed):
            list(scan(file, 0, file.size() - ALIGNMENT, "pack"))


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_damaged_header_hides_its_own_record_only(small_pack, tmp_path_factory, data):
    path, found = small_pack
    raw = bytearray(path.read_bytes())
    hit = data.draw(st.sets(st.integers(0, len(found) - 1), max_size=3))
    for number in hit:
        at = found[number][0] + data.draw(st.integers(0, found[number][1].header_bytes - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    damaged = tmp_path_factory.mktemp("damaged") / "pack"
    damaged.write_bytes(raw)
    with fs.open_file(damaged) as file:
        left = [pair for number, pair in enumerate(found) if number not in hit]
        assert list(salvage(file, 0, len(raw), "pack")) == left


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=2000), st.integers(0, 40))
def test_any_bytes_salvage_to_nothing(tmp_path_factory, data, shift):
    path = tmp_path_factory.mktemp("noise") / "pack"
    path.write_bytes(bytes(shift) + RECORD_MAGIC + data)
    with fs.open_file(path) as file:
        assert list(salvage(file, 0, file.size(), "pack")) == []


def test_salvage_finds_records_behind_a_long_stretch_of_damage(tmp_path):
    header, parts = record(1, b"payload")
    noise = (RECORD_MAGIC + b"x" * 57) * 40_000  # 2.5 MB of what looks like records
    path = tmp_path / "pack"
    path.write_bytes(noise + b"".join(parts))
    with fs.open_file(path) as file:
        assert list(salvage(file, 0, file.size(), "pack")) == [(len(noise), header)]
