"""The index, on real files: real forks, kills, full disks and damage."""

import errno
import faulthandler
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import (
    AlreadyExists,
    ChainError,
    Damaged,
    ForkedHandle,
    InvalidInput,
    ReadOnly,
    StorageError,
    StoreFull,
    UnsuitablePlace,
)
from chainstore.storage import fs
from chainstore.storage import index as module
from chainstore.storage.index import MAX_KEY_BYTES, ONE_PAGE_VALUE_BYTES, TABLES, Index
from chainstore.storage.mounts import Mount
from chainstore.storage.rows import close_row, open_row

SOON = 10.0  # seconds that another thread or process may take on a busy machine
SMALL_MAP = 1 << 20
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[2])}  # for other interpreters


def in_child(function: Callable[[], object], patience: int = 30) -> str:
    """Return what `function` returns, or the name of what it raises, in a forked child; "killed N" if that died."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(patience)
        try:
            answer = str(function())
        except BaseException as error:
            answer = type(error).__name__
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return f"killed {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else answer


def start_child(function: Callable[[Callable[[], None]], object]) -> int:
    """Run `function` in a forked child and return its pid once it has called the `ready` it is given."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            function(lambda: os.write(writing, b"x"))
        finally:
            os._exit(1)
    os.close(writing)
    assert os.read(reading, 1) == b"x", "the child died"
    os.close(reading)
    return pid


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def row(index: Index, table: str, key: bytes) -> bytes | None:
    with index.read() as reader:
        return reader.get(table, key)


def put(index: Index, table: str, rows: dict[bytes, bytes]) -> None:
    with index.write() as writer:
        for key, value in rows.items():
            writer.put(table, key, value)


@pytest.fixture
def index(tmp_path):
    with Index.create(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def mounted(tmp_path):
    """Run a mount command on a fresh directory; skip where that is not permitted."""
    points = []

    def mount(*options: str, name: str = "mounted") -> Path:
        point = tmp_path / name
        point.mkdir(exist_ok=True)
        command = ["mount", *(option.format(point=point) for option in options), str(point)]
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting is not permitted here")
        points.append(point)
        return point

    yield mount
    for point in points:
        subprocess.run(["umount", "-l", str(point)], capture_output=True)


# -- rows ------------------------------------------------------------------------------------------------------------


def test_a_row_is_there_after_its_transaction_and_after_opening_again(tmp_path):
    with Index.create(tmp_path / "index") as index:
        put(index, "refs", {b"main": b"tip"})
        assert row(index, "refs", b"main") == b"tip"
        assert row(index, "refs", b"other") is None
        assert row(index, "reflog", b"main") is None
    with Index.open(tmp_path / "index", readonly=True) as index:
        assert row(index, "refs", b"main") == b"tip"


def test_an_exception_undoes_a_transaction(index):
    put(index, "refs", {b"main": b"old"})
    with pytest.raises(KeyError), index.write() as writer:
        writer.put("refs", b"main", b"new")
        writer.put("refs", b"more", b"x")
        raise KeyError
    assert row(index, "refs", b"main") == b"old"
    assert row(index, "refs", b"more") is None


def test_a_writer_sees_its_own_rows_and_a_reader_its_moment(index):
    put(index, "refs", {b"main": b"old", b"gone": b"x"})
    with index.read() as before, index.write() as writer:
        writer.put("refs", b"main", b"new")
        assert writer.delete("refs", b"gone")
        assert not writer.delete("refs", b"gone")
        assert writer.get("refs", b"main") == b"new"
        assert writer.get("refs", b"gone") is None
        assert before.get("refs", b"main") == b"old"
        with index.read() as inner:
            assert inner.get("refs", b"gone") == b"x"
    assert row(index, "refs", b"main") == b"new"


def test_every_table_exists_and_is_apart_from_the_others(index):
    with index.write() as writer:
        for table in TABLES:
            writer.put(table, b"key", table.encode())
    with index.read() as reader:
        assert {table: reader.get(table, b"key") for table in TABLES} == {name: name.encode() for name in TABLES}
        assert all(reader.count(table) == 1 for table in TABLES)


def test_keys_that_lmdb_cannot_hold_are_refused(index):
    with index.write() as writer:
        writer.put("refs", b"k" * MAX_KEY_BYTES, b"")
        assert writer.get("refs", b"k" * MAX_KEY_BYTES) == b""
    for key in (b"", b"k" * (MAX_KEY_BYTES + 1)):
        with pytest.raises(InvalidInput, match="1 to 511"), index.write() as writer:
            writer.put("refs", key, b"")


def test_an_unknown_table_is_a_mistake_in_the_program(index):
    with index.read() as reader, pytest.raises(KeyError):
        reader.get("no such table", b"x")


def test_the_longest_cheap_value_takes_one_page_and_one_byte_more_takes_two(tmp_path):
    used = []
    for length in (ONE_PAGE_VALUE_BYTES, ONE_PAGE_VALUE_BYTES + 1):
        with Index.create(tmp_path / str(length)) as index:
            put(index, "inline", {b"%04d" % i: bytes(length) for i in range(100)})
            used.append(index.used_bytes())
    assert used[1] - used[0] == 100 * 4096


keys = st.binary(min_size=1, max_size=4) | st.sampled_from([b"\xff", b"\xff\xff", b"a\xff", b"a\xff\xff", b"b"])


@settings(deadline=None, max_examples=60)
@given(
    st.dictionaries(keys, st.binary(max_size=20), max_size=30),
    st.sampled_from([b"", b"a", b"a\xff", b"\xff", b"\x00"]) | st.binary(max_size=2),
    st.none() | keys,
    st.booleans(),
)
def test_a_scan_gives_what_a_sorted_dict_gives(tmp_path_factory, rows, prefix, start, reverse):
    with Index.create(tmp_path_factory.mktemp("scan") / "index") as index:
        put(index, "reflog", rows)
        with index.read() as reader:
            found = list(reader.scan("reflog", prefix, start=start, reverse=reverse))
    expected = sorted((k, v) for k, v in rows.items() if k.startswith(prefix))
    if start is not None:
        expected = [(k, v) for k, v in expected if (k <= start if reverse else k >= start)]
    assert found == (expected[::-1] if reverse else expected)


@settings(deadline=None, max_examples=30)
@given(before=st.sets(st.integers(0, 40)), new=st.sets(st.integers(0, 60)))
def test_rows_put_at_once_are_those_that_were_not_there(tmp_path_factory, before, new):
    def row(number: int) -> bytes:
        return b"%03d" % number

    with Index.create(tmp_path_factory.mktemp("many") / "index") as index:
        put(index, "objects", {row(number): b"old" for number in before})
        with index.write() as writer:
            assert writer.put_new("objects", [(row(number), b"new") for number in sorted(new)]) == len(new - before)
            found = writer.get_many("objects", [row(number) for number in range(70)])
        assert found == {row(n): b"old" if n in before else b"new" for n in before | new}
        with index.read() as reader:
            assert dict(reader.scan("objects")) == found


def test_a_row_that_rotted_is_seen_among_many(index):
    with index.write() as writer:
        writer.put_new("objects", [(b"one", b"1"), (b"two", b"2")])
    with index.write() as writer:
        writer._opened().put(
            b"two", b"3" + close_row("objects", b"two", b"2")[1:], db=index._shared().tables["objects"]
        )
    with index.read() as reader, pytest.raises(Damaged, match=b"two".hex()):
        reader.get_many("objects", [b"one", b"two"])


@pytest.mark.parametrize("count", [255, 256, 257, 512, 1000])
def test_a_scan_of_many_steps_misses_and_repeats_nothing(index, count):
    rows = {b"p%04d" % i: b"%d" % i for i in range(count)}
    put(index, "objects", rows | {b"o": b"before", b"q": b"after"})
    with index.read() as reader:
        assert dict(reader.scan("objects", b"p")) == rows
        assert [key for key, _ in reader.scan("objects", b"p", reverse=True)] == sorted(rows, reverse=True)


def test_rows_may_be_changed_while_they_are_scanned(index):
    put(index, "objects", {b"%04d" % i: b"old" for i in range(1000)})
    with index.write() as writer:
        for key, _ in writer.scan("objects"):
            if int(key) % 2:
                writer.delete("objects", key)
            else:
                writer.put("objects", key, b"new" * 50)
    with index.read() as reader:
        assert list(reader.scan("objects")) == [(b"%04d" % i, b"new" * 50) for i in range(0, 1000, 2)]


def test_a_scan_may_be_left_half_way(index):
    put(index, "objects", {b"%04d" % i: b"" for i in range(1000)})
    with index.read() as reader:
        scan = reader.scan("objects")
        assert next(scan) == (b"0000", b"")
    with pytest.raises(StorageError, match="ended"):
        list(scan)


def test_what_was_read_stays_valid_after_the_transaction(index):
    put(index, "inline", {b"k": b"value" * 500})
    with index.read() as reader:
        value = reader.get("inline", b"k")
    for i in range(20):
        put(index, "inline", {b"k": b"%d" % i * 2500})
    assert value == b"value" * 500


# -- handles, threads and transactions -------------------------------------------------------------------------------


def test_a_transaction_that_ended_refuses(index):
    with index.read() as reader:
        pass
    with pytest.raises(StorageError, match="ended"):
        reader.get("refs", b"x")


def test_opening_twice_shares_one_environment_and_the_last_close_closes(tmp_path):
    first = Index.create(tmp_path / "index")
    (tmp_path / "link").symlink_to(tmp_path / "index")
    second = Index.open(tmp_path / "link", readonly=True)
    put(first, "refs", {b"main": b"1"})
    first.close()
    first.close()
    assert row(second, "refs", b"main") == b"1"
    with pytest.raises(StorageError, match="closed"):
        first.read()
    second.close()
    with pytest.raises(StorageError, match="closed"):
        second.read()
    with Index.open(tmp_path / "index") as third:
        assert row(third, "refs", b"main") == b"1"


def test_a_transaction_not_yet_begun_does_not_reopen_a_closed_index(tmp_path):
    index = Index.create(tmp_path / "index")
    reader = index.read()
    index.close()
    with pytest.raises(StorageError, match="closed"), reader:
        pass


def test_a_handle_for_reading_cannot_write_though_another_can(index):
    with Index.open(index.path, readonly=True) as reading:
        with pytest.raises(ReadOnly):
            reading.write()
        put(index, "refs", {b"main": b"1"})
        assert row(reading, "refs", b"main") == b"1"


def test_an_index_open_for_reading_is_opened_for_writing_when_somebody_asks(tmp_path):
    Index.create(tmp_path / "index").close()
    with Index.open(tmp_path / "index", readonly=True) as reading, Index.open(tmp_path / "index") as writing:
        put(writing, "refs", {b"main": b"1"})
        assert row(reading, "refs", b"main") == b"1"


def test_transactions_nest_in_a_thread_and_run_in_many(index):
    put(index, "objects", {b"%04d" % i: b"%d" % i for i in range(200)})
    errors = []

    def look_up(seed: int) -> None:
        order = random.Random(seed)
        try:
            for _ in range(200):
                with index.read() as outer, index.read() as inner:
                    i = order.randrange(200)
                    assert outer.get("objects", b"%04d" % i) == inner.get("objects", b"%04d" % i) == b"%d" % i
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=look_up, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for i in range(30):
        put(index, "refs", {b"main": b"%d" % i})
    for thread in threads:
        thread.join(SOON)
    assert not errors


def test_a_transaction_may_be_handed_to_another_thread(index):
    put(index, "refs", {b"main": b"1"})
    found = []
    with index.read() as reader:
        thread = threading.Thread(target=lambda: found.append(reader.get("refs", b"main")))
        thread.start()
        thread.join(SOON)
    assert found == [b"1"]


def test_two_threads_write_one_after_the_other(index):
    def write(name: bytes) -> None:
        for i in range(20):
            with index.write() as writer:
                count = int(writer.get("refs", b"count") or b"0")
                writer.put("refs", b"count", b"%d" % (count + 1))
                writer.put("refs", name, b"%d" % i)

    threads = [threading.Thread(target=write, args=(b"%d" % i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert row(index, "refs", b"count") == b"60"


def test_a_second_writer_in_one_thread_is_refused_not_a_deadlock(index):
    with index.write() as writer:
        with pytest.raises(StorageError, match="deadlock"), index.write():
            pass
        writer.put("refs", b"main", b"1")
    assert row(index, "refs", b"main") == b"1"


# -- the map -----------------------------------------------------------------------------------------------------------


def big_rows(count: int) -> dict[bytes, bytes]:
    return {b"%08d" % i: bytes(ONE_PAGE_VALUE_BYTES) for i in range(count)}


def test_a_transaction_larger_than_the_map_is_refused_and_nothing_is_lost(tmp_path):
    with Index.create(tmp_path / "index", map_bytes=SMALL_MAP) as index:
        put(index, "refs", {b"main": b"1"})
        with pytest.raises(StorageError, match="larger than the room"):
            put(index, "inline", big_rows(1000))
        assert row(index, "refs", b"main") == b"1"
        put(index, "refs", {b"main": b"2"})
        assert row(index, "refs", b"main") == b"2"


@pytest.mark.parametrize("shape", ["big values", "small rows", "scattered rows"])
def test_room_that_was_made_is_enough(tmp_path, shape):
    order = random.Random(1)
    make = {
        "big values": lambda: big_rows(500),
        "small rows": lambda: {b"%08d" % i: b"" for i in range(20_000)},
        "scattered rows": lambda: {order.randbytes(32): order.randbytes(50) for _ in range(10_000)},
    }[shape]
    with Index.create(tmp_path / "index", map_bytes=SMALL_MAP) as index:
        for _ in range(3):
            rows = make()
            index.ensure_room(sum(len(key) + len(value) for key, value in rows.items()))
            put(index, "inline", rows)
        with index.read() as reader:
            assert reader.count("inline") == len(rows) * (3 if shape == "scattered rows" else 1)


def test_the_map_grows_only_when_no_transaction_of_the_process_is_open(tmp_path):
    with Index.create(tmp_path / "index", map_bytes=SMALL_MAP) as index:
        put(index, "refs", {b"main": b"1"})
        with index.read() as reader:
            with pytest.raises(StorageError, match="this thread has a transaction open"):
                index.ensure_room(100 << 20)
            assert reader.get("refs", b"main") == b"1"
        leave, inside, seen = threading.Event(), threading.Event(), []

        def hold() -> None:
            with index.read() as held:
                inside.set()
                leave.wait(SOON)
                seen.append(held.get("refs", b"main"))

        thread = threading.Thread(target=hold)
        thread.start()
        inside.wait(SOON)
        threading.Timer(0.1, leave.set).start()
        index.ensure_room(100 << 20)
        assert seen == [b"1"]
        thread.join(SOON)


def test_a_map_that_another_process_has_grown_is_adopted(tmp_path):
    with Index.create(tmp_path / "index", map_bytes=SMALL_MAP) as index:

        def grow() -> str:
            index.ensure_room(1000 * 4096)
            put(index, "inline", big_rows(1000))
            return "grown"

        assert in_child(grow) == "grown"
        assert row(index, "inline", b"%08d" % 999) == bytes(ONE_PAGE_VALUE_BYTES)
        put(index, "refs", {b"main": b"2"})
        assert row(index, "refs", b"main") == b"2"


def test_an_index_is_opened_where_address_space_is_limited(index):
    put(index, "refs", {b"main": b"1"})

    def look() -> bytes | None:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * 4096
        resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), resource.RLIM_INFINITY))
        return row(index, "refs", b"main")

    index.close()
    index = Index.open(index.path)
    assert in_child(look) == "b'1'"
    index.close()


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_opens_the_index_anew_and_parent_and_child_see_each_other(index):
    put(index, "refs", {b"main": b"1"})

    def work() -> bytes | None:
        put(index, "refs", {b"child": b"2"})
        return row(index, "refs", b"main")

    assert in_child(work) == "b'1'"
    assert row(index, "refs", b"child") == b"2"
    put(index, "refs", {b"main": b"3"})
    assert in_child(lambda: row(index, "refs", b"main")) == "b'3'"


def test_a_transaction_across_a_fork_is_a_forked_handle_in_the_child(index):
    put(index, "refs", {b"main": b"1"})
    with index.read() as reader:
        assert in_child(lambda: reader.get("refs", b"main")) == ForkedHandle.__name__
        assert in_child(lambda: list(reader.scan("refs"))) == ForkedHandle.__name__
        assert reader.get("refs", b"main") == b"1"
    with index.write() as writer:
        assert in_child(lambda: writer.put("refs", b"main", b"child")) == ForkedHandle.__name__
        assert in_child(lambda: writer.__exit__(None, None, None)) == ForkedHandle.__name__
        writer.put("refs", b"main", b"2")
    assert row(index, "refs", b"main") == b"2"


def test_a_child_that_leaves_an_inherited_transaction_does_not_free_the_parents_pages(index):
    """LMDB's abort in the child would clear the parent's slot in the table of readers."""
    put(index, "inline", big_rows(50))

    def leave_and_work() -> str:
        reader.__exit__(None, None, None)
        assert row(index, "inline", b"%08d" % 7) is not None
        index.close()
        return "left"

    with index.read() as reader:
        assert in_child(leave_and_work) == "left"
        for i in range(5):  # would reuse the pages that the reader still needs
            put(index, "inline", {key: b"%d" % i * 2000 for key in big_rows(50)})
        assert dict(reader.scan("inline")) == big_rows(50)


def test_a_child_forked_while_other_threads_read_and_write_can_use_the_index(index):
    put(index, "objects", {b"%04d" % i: b"%d" % i for i in range(500)})
    stop = threading.Event()

    def keep_reading() -> None:
        while not stop.is_set():
            with index.read() as reader:
                for _ in reader.scan("objects"):
                    pass

    def keep_writing() -> None:
        while not stop.is_set():
            put(index, "refs", {b"main": b"x"})

    threads = [threading.Thread(target=target) for target in (keep_reading, keep_reading, keep_writing)]
    for thread in threads:
        thread.start()
    try:
        answers = [in_child(lambda: row(index, "objects", b"0123")) for _ in range(20)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(SOON)
    assert answers == ["b'123'"] * 20


def test_a_writer_killed_in_the_middle_leaves_the_state_before_it(index):
    put(index, "refs", {b"main": b"old"} | {b"%04d" % i: b"old" for i in range(500)})

    def write_and_hang(ready: Callable[[], None]) -> None:
        with index.write() as writer:
            for i in range(500):
                writer.put("refs", b"%04d" % i, b"new" * 100)
            ready()
            time.sleep(60)

    for _ in range(3):
        kill(start_child(write_and_hang))
        assert row(index, "refs", b"main") == b"old"
        put(index, "refs", {b"after": b"1"})  # the dead writer's lock was taken over
    with index.read() as reader:
        assert {value for key, value in reader.scan("refs") if key != b"after"} == {b"old"}
    assert Index.verify_file(index.path) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_writer_killed_at_any_moment_leaves_whole_transactions(tmp_path, seed):
    with Index.create(tmp_path / "index") as index:

        def write_on(ready: Callable[[], None]) -> None:
            for i in range(100_000):
                put(index, "refs", {b"%02d" % k: b"%d" % i * 30 for k in range(40)})
                if i == 2:
                    ready()

        pid = start_child(write_on)
        time.sleep(random.Random(seed).uniform(0, 0.05))
        kill(pid)
        with index.read() as reader:
            assert len({value for _, value in reader.scan("refs")}) == 1
            assert reader.count("refs") == 40
        assert Index.verify_file(index.path) == []


def test_dead_readers_are_found_and_their_space_is_used_again(index):
    put(index, "inline", big_rows(20))

    def read_and_hang(ready: Callable[[], None]) -> None:
        with index.read() as reader:
            reader.get("inline", b"x")
            ready()
            time.sleep(60)

    pid = start_child(read_and_hang)
    assert index.drop_dead_readers() == 0
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for i in range(10):
        put(index, "inline", {key: b"%d" % i * 4000 for key in big_rows(20)})
    pinned = index.used_bytes()
    assert index.drop_dead_readers() == 1
    assert index.drop_dead_readers() == 0
    for i in range(20):
        put(index, "inline", {key: b"%d" % i * 4000 for key in big_rows(20)})
    assert index.used_bytes() == pinned


def test_opening_drops_dead_readers(index):
    def read_and_hang(ready: Callable[[], None]) -> None:
        index.read().__enter__()
        ready()
        time.sleep(60)

    kill(start_child(read_and_hang))
    assert in_child(lambda: (row(index, "refs", b"x"), index.drop_dead_readers())) == "(None, 0)"


def test_slots_of_dead_readers_are_used_when_none_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_READERS", 4)
    with Index.create(tmp_path / "index") as index:

        def read_and_hang(ready: Callable[[], None]) -> None:
            for _ in range(4):
                index.read().__enter__()
            ready()
            time.sleep(60)

        pid = start_child(read_and_hang)
        with pytest.raises(StorageError):
            row(index, "refs", b"x")
        kill(pid)
        assert row(index, "refs", b"x") is None


def test_processes_in_two_pid_namespaces_with_one_number_are_told_apart(index, tmp_path):
    """LMDB marks a reader by its pid: two containers, both pid 1, would take each other's readers for dead."""
    script = tmp_path / "hold.py"
    script.write_text(
        "import sys, time; from pathlib import Path; from chainstore.storage.index import Index\n"
        "with Index.open(Path(sys.argv[1])) as index, index.read() as reader:\n"
        "    reader.get('refs', b'x'); print('held', flush=True)\n"
        "    time.sleep(float(sys.argv[2]))\n"
    )
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, str(script), str(index.path)]
    index.close()
    first = subprocess.Popen([*command, "30"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT)
    try:
        if first.stdout.readline() != b"held\n":
            pytest.skip("pid namespaces are not permitted here")
        second = subprocess.run([*command, "0"], capture_output=True, text=True, env=ENVIRONMENT, timeout=SOON * 2)
    finally:
        first.kill()
        first.communicate()
    assert second.returncode != 0
    assert UnsuitablePlace.__name__ in second.stderr, second.stderr


# -- places ------------------------------------------------------------------------------------------------------------


def test_an_index_is_made_once(index):
    with pytest.raises(AlreadyExists):
        Index.create(index.path)


def test_no_index_is_damaged_with_the_way_out_and_none_is_made(tmp_path):
    with pytest.raises(Damaged, match="no index") as caught:
        Index.open(tmp_path / "index")
    assert "rebuild-index" in caught.value.hint
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("type", ["nfs4", "lustre", "fuse.sshfs"])
def test_a_network_file_system_is_refused_with_the_way_out(tmp_path, monkeypatch, type):
    monkeypatch.setattr(fs, "find_mount", lambda path: Mount("/", type, frozenset()))
    for open_or_create in (Index.create, Index.open):
        with pytest.raises(UnsuitablePlace, match=type) as caught:
            open_or_create(tmp_path / "index")
        assert "index_dir=" in caught.value.hint
    assert not (tmp_path / "index").exists()


def test_another_index_put_at_the_path_is_told_by_its_inode(index, tmp_path):
    Index.create(tmp_path / "other").close()
    assert index.inode == fs.inode_of(index.path / "data.mdb")
    os.replace(tmp_path / "other" / "data.mdb", index.path / "data.mdb")
    assert index.inode != fs.inode_of(index.path / "data.mdb")
    assert in_child(lambda: row(index, "refs", b"x")) == StorageError.__name__


def test_a_full_file_system_is_store_full_and_nothing_is_lost(mounted):
    disk = mounted("-t", "tmpfs", "-o", "size=1m", "none")
    with Index.create(disk / "index") as index:
        put(index, "refs", {b"main": b"1"})
        for _ in range(3):
            with pytest.raises(StoreFull):
                put(index, "inline", big_rows(400))
            assert row(index, "refs", b"main") == b"1"
            assert row(index, "inline", b"%08d" % 1) is None
        put(index, "refs", {b"main": b"2"})
        assert row(index, "refs", b"main") == b"2"
    assert Index.verify_file(disk / "index") == []


def test_a_file_system_filled_by_somebody_else_is_store_full_until_there_is_space_again(mounted):
    disk = mounted("-t", "tmpfs", "-o", "size=1m", "none")
    with Index.create(disk / "index") as index:
        put(index, "refs", {b"main": b"1"})
        (disk / "filler").write_bytes(bytes(fs.free_bytes(disk)))
        with pytest.raises(StoreFull):
            put(index, "inline", big_rows(20))
        assert row(index, "refs", b"main") == b"1"
        (disk / "filler").unlink()
        put(index, "inline", big_rows(20))
        assert row(index, "inline", b"%08d" % 19) == bytes(ONE_PAGE_VALUE_BYTES)


def test_no_index_is_made_on_a_full_file_system(mounted):
    disk = mounted("-t", "tmpfs", "-o", "size=512k", "none")
    (disk / "filler").write_bytes(bytes(fs.free_bytes(disk) - 8192))
    with pytest.raises(StoreFull):
        Index.create(disk / "index")
    (disk / "filler").unlink()
    (disk / "index" / "other").touch()
    with Index.create(disk / "index") as index:
        assert row(index, "refs", b"x") is None


def test_a_limit_on_the_size_of_files_is_store_full(index):
    put(index, "refs", {b"main": b"1"})

    def write() -> str:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        with pytest.raises(StoreFull):
            put(index, "inline", big_rows(400))
        put(index, "refs", {b"child": b"2"})
        return "full"

    assert in_child(write) == "full"
    assert row(index, "refs", b"main") == b"1"
    assert row(index, "refs", b"child") == b"2"


def test_a_read_only_file_system_is_read_and_not_written(index, mounted):
    put(index, "refs", {b"main": b"1"})
    path = index.path
    index.close()
    point = mounted("--bind", str(path))
    mounted("-o", "remount,ro,bind")
    with pytest.raises(ReadOnly):
        Index.open(point)
    with Index.open(point, readonly=True) as reading:
        assert row(reading, "refs", b"main") == b"1"


def test_a_reader_without_locks_refuses_what_may_have_been_overwritten(index, mounted):
    put(index, "refs", {b"main": b"1"})
    path = index.path
    index.close()
    point = mounted("--bind", str(path))
    mounted("-o", "remount,ro,bind")

    def write() -> None:
        script = "from pathlib import Path; import sys; from chainstore.storage.index import Index\n"
        script += "with Index.open(Path(sys.argv[1])) as index, index.write() as w: w.put('refs', b'main', b'2')"
        subprocess.run([sys.executable, "-c", script, str(path)], check=True, env=ENVIRONMENT)

    with Index.open(point, readonly=True) as reading:
        with reading.read() as reader:
            assert reader.get("refs", b"main") == b"1"
            write()
            with pytest.raises(StorageError, match="without locks"):
                reader.get("refs", b"main")
        assert row(reading, "refs", b"main") == b"2"


def test_a_failed_meta_page_leaves_the_old_state_and_the_index_usable(tmp_path):
    """LMDB panics after it could not write its newest page; the environment is then opened anew."""
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=pwrite64"]
    script = (
        "from pathlib import Path; import sys\n"
        "from chainstore.errors import StorageError; from chainstore.storage.index import Index\n"
        "index = Index.open(Path(sys.argv[1])); failures = 0\n"
        "for i in range(6):\n"
        "    try:\n"
        "        with index.write() as writer: writer.put('refs', b'main', b'%d' % i); last = i\n"
        "    except StorageError: failures += 1; last = None\n"
        "    with index.read() as reader: seen = reader.get('refs', b'main')\n"
        "    assert last is None or seen == b'%d' % last, (i, seen)\n"
        "print(failures)\n"
    )
    failures = set()
    for when in range(1, 5):
        path = tmp_path / str(when)
        Index.create(path).close()
        inject = ["-e", f"inject=pwrite64:error=EIO:when={when}"]
        command = [*strace, *inject, sys.executable, "-c", script, str(path)]
        try:
            found = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
        except FileNotFoundError:
            (pytest.fail if "CI" in os.environ else pytest.skip)("strace is not installed")
        if "ptrace" in found.stderr:
            pytest.skip("strace is not permitted here")
        assert found.returncode == 0, found.stderr
        failures.add(int(found.stdout))
        assert Index.verify_file(path) == []
    assert failures == {1}


# -- damage ------------------------------------------------------------------------------------------------------------


def damaged(index: Index, change: Callable[[bytearray], object]) -> Path:
    """Close the index and change the bytes of its file."""
    index.close()
    data = bytearray((index.path / "data.mdb").read_bytes())
    change(data)
    (index.path / "data.mdb").write_bytes(data)
    return index.path


@pytest.mark.parametrize("length", [0, 1, 100, 4096, 8191])
def test_an_empty_or_tiny_file_is_damaged_not_an_empty_index(index, length):
    put(index, "refs", {b"main": b"1"})

    def cut(data: bytearray) -> None:
        del data[length:]

    path = damaged(index, cut)
    for readonly in (False, True):
        with pytest.raises(Damaged, match="empty or cut off") as caught:
            Index.open(path, readonly=readonly)
        assert "rebuild-index" in caught.value.hint
    assert Index.verify_file(path) != []
    assert (path / "data.mdb").stat().st_size == length


def test_a_zeroed_file_is_damaged(index):
    def zero(data: bytearray) -> None:
        data[:] = bytes(len(data))

    path = damaged(index, zero)
    with pytest.raises(Damaged):
        Index.open(path)
    assert Index.verify_file(path) != []


@pytest.mark.parametrize("zeroed", [512, 4096])
@pytest.mark.parametrize("page", [0, 1])
def test_a_zeroed_meta_page_is_damaged(index, page, zeroed):
    put(index, "refs", {b"main": b"1"})

    def zero(data: bytearray) -> None:
        data[page * 4096 : page * 4096 + zeroed] = bytes(zeroed)

    path = damaged(index, zero)
    with pytest.raises(Damaged):
        Index.open(path)
    assert Index.verify_file(path) != []


def test_a_file_that_is_no_database_is_damaged(index):
    def scramble(data: bytearray) -> None:
        data[:] = random.Random(1).randbytes(len(data))

    path = damaged(index, scramble)
    with pytest.raises(Damaged):
        Index.open(path)
    assert Index.verify_file(path) != []


def test_a_file_without_our_tables_is_damaged(tmp_path):
    Index.create(tmp_path / "index").close()

    def rename(data: bytearray) -> None:
        data[:] = data.replace(b"reflog", b"replog")

    path = damaged(Index.open(tmp_path / "index"), rename)
    with pytest.raises(Damaged):
        Index.open(path)


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.9])
def test_a_cut_file_is_damaged_and_does_not_kill_the_process(index, kept):
    put(index, "inline", big_rows(100))

    def cut(data: bytearray) -> None:
        del data[int(len(data) * kept) :]

    path = damaged(index, cut)
    assert in_child(lambda: Index.open(path)) == Damaged.__name__
    assert Index.verify_file(path) != []


def test_a_flipped_bit_in_a_value_is_damaged_and_names_its_row(index):
    put(index, "refs", {b"main": b"precious bytes", b"other": b"fine"})

    def flip(data: bytearray) -> None:
        position = data.index(b"precious")
        while position >= 0:
            data[position] ^= 1
            position = data.find(b"precious", position)

    with Index.open(damaged(index, flip)) as opened, opened.read() as reader:
        assert reader.get("refs", b"other") == b"fine"
        with pytest.raises(Damaged, match=f"row {b'main'.hex()} of table refs"):
            reader.get("refs", b"main")
        with pytest.raises(Damaged, match="table refs"):
            list(reader.scan("refs"))


def test_rows_out_of_order_are_damaged(index):
    put(index, "refs", {b"a": b"precious", b"b": b"precious"})

    def swap(data: bytearray) -> None:
        for page in range(8192, len(data), 4096):
            if b"precious" in data[page : page + 4096]:  # LMDB's page header has 16 bytes; the places of nodes follow
                data[page + 16 : page + 20] = data[page + 18 : page + 20] + data[page + 16 : page + 18]

    with Index.open(damaged(index, swap)) as opened, opened.read() as reader:
        for reverse in (False, True):
            with pytest.raises(Damaged, match="out of order"):
                list(reader.scan("refs", reverse=reverse))
    assert Index.verify_file(index.path) != []


def test_a_value_under_another_key_or_table_is_damaged():
    stored = close_row("refs", b"main", b"tip")
    assert open_row("refs", b"main", stored) == b"tip"
    for table, key, data in [("reflog", b"main", stored), ("refs", b"mail", stored), ("refs", b"main", stored[:-1])]:
        with pytest.raises(Damaged):
            open_row(table, key, data)
    for short in (b"", b"abc"):
        with pytest.raises(Damaged):
            open_row("refs", b"main", short)


Rows = dict[tuple[str, bytes], bytes]


def look_at_everything(path: Path, states: list[Rows]) -> str:
    """Open, get and scan everything, and say what came of it.

    "newest" and "older": exactly that state of `states` (the last is the newest). "refused": an error, and nothing
    wrong. "less": no error, nothing wrong, and rows missing. "wrong": anything else.
    """
    faulthandler.disable()  # a death is counted, not explained
    seen: list[tuple[tuple[str, bytes], bytes]] = []
    outcome = ""
    try:
        with Index.open(path, readonly=True) as index, index.read() as reader:
            for step in [*states[-1], *TABLES]:
                try:
                    if isinstance(step, str):
                        seen += [((step, key), value) for key, value in reader.scan(step)]
                    elif (value := reader.get(*step)) is not None:
                        seen.append((step, value))
                except ChainError:
                    outcome = "refused"
    except ChainError:
        return "refused"
    matching = [number for number, state in enumerate(states) if all(state.get(key) == value for key, value in seen)]
    if not matching:
        return "wrong"
    if not outcome and len(seen) == 2 * len(states[-1]):
        return "newest" if matching[-1] == len(states) - 1 else "older"
    return outcome or "less"


def test_flipped_bits_never_give_wrong_bytes(tmp_path):
    """LMDB may die of a flipped page header, miss rows, or show an older state: never rows that were not put.

    Rows that are missed are what `verify` and the comparison with the log are there to find.
    """
    path = tmp_path / "index"
    states: list[Rows] = [{}]
    with Index.create(path) as index:
        for version in range(2):
            with index.write() as writer:
                states.append({})
                for i in range(40):
                    for table in ("objects", "refs", "inline"):
                        value = b"%d/%d/" % (version, i) * (300 if table == "inline" else 20)
                        states[-1][table, b"%04d" % i] = value
                        writer.put(table, b"%04d" % i, value)
    data = (path / "data.mdb").read_bytes()
    order, outcomes = random.Random(7), []
    for case in range(240):
        flipped = bytearray(data)
        page = order.randrange(2 if case % 3 == 0 else len(data) // 4096)
        position = page * 4096 + order.randrange((160, 48, 4096)[case % 3])  # metas, heads of pages, anywhere
        flipped[position] ^= 1 << order.randrange(8)
        (path / "data.mdb").write_bytes(flipped)
        outcome = in_child(lambda: look_at_everything(path, states))
        outcomes.append(outcome)
        assert outcome in ("newest", "refused", "less", "older") or outcome.startswith("killed"), (outcome, position)
        if outcome == "older":
            assert position < 8192, f"an older state after a flip at {position}, which is no meta page"
        if outcome.startswith("killed") or outcome == "less":
            assert Index.verify_file(path) != [], f"{outcome} after a flip at {position} that verify does not see"
    assert outcomes.count("refused") > 5
    assert sum(outcome.startswith("killed") for outcome in outcomes) <= 15


def test_verify_finds_nothing_in_a_good_index_and_never_crashes_on_a_bad_one(index):
    put(index, "inline", big_rows(10))
    assert Index.verify_file(index.path) == []
    index.close()
    data = (index.path / "data.mdb").read_bytes()
    order = random.Random(3)
    for _ in range(200):
        broken = bytearray(data)
        for _ in range(order.choice([1, 1, 10, 1000])):
            broken[order.randrange(len(broken))] = order.randrange(256)
        del broken[order.randrange(len(broken) + 1) if order.random() < 0.2 else len(broken) :]
        (index.path / "data.mdb").write_bytes(broken)
        assert isinstance(Index.verify_file(index.path), list)
    (index.path / "data.mdb").unlink()
    assert Index.verify_file(index.path) != []


def test_errors_of_the_system_are_told_by_name(index):
    environment = index._shared()
    told = {
        errno.ENOSPC: StoreFull,
        errno.EDQUOT: StoreFull,
        errno.EFBIG: StoreFull,
        errno.EIO: StorageError,
        errno.EACCES: ReadOnly,
        errno.EROFS: ReadOnly,
    }
    for code, kind in told.items():
        error = module.lmdb.Error("x")
        error.code = code
        assert type(environment.failure(error, "do")) is kind
    assert type(environment.failure(module.lmdb.LockError("x"), "do")) is UnsuitablePlace
