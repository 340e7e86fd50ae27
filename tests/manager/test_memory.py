"""Memory of captures: warm, without a name, of one process to write, and as much as may be had."""

import ctypes
import mmap
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from chainstore.errors import ForkedHandle, MemoryShort
from chainstore.limits import memory_left
from chainstore.manager.memory import Buffer, make_buffer

MIB = 1 << 20


@pytest.fixture(params=[True, False], ids=["shared", "private"])
def buffer(request: pytest.FixtureRequest) -> Iterator[Buffer]:
    made = make_buffer(3 * MIB, shared=request.param)
    yield made
    made.close()


def run(program: str) -> str:
    """Run a program in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_child(work) -> str:
    """Return the text that `work` returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = work()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def test_it_is_as_large_as_asked_and_writable(buffer):
    assert buffer.capacity >= 3 * MIB and len(buffer.view) == buffer.capacity and buffer.version == 1
    buffer.view[-3:] = b"end"
    assert ctypes.string_at(buffer.address + buffer.capacity - 3, 3) == b"end"


def test_its_pages_are_there_before_they_are_written(buffer):
    buffer.ensure(32 * MIB)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    ctypes.memset(buffer.address, 1, buffer.capacity)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < buffer.capacity // mmap.PAGESIZE // 20


def test_another_mapping_of_a_shared_one_shows_what_is_written_and_cannot_write():
    buffer = make_buffer(MIB, shared=True)
    seen = memoryview(mmap.mmap(buffer.fd, buffer.capacity, mmap.MAP_SHARED, mmap.PROT_READ))
    buffer.view[:5] = b"bytes"
    assert seen[:5] == b"bytes"
    with pytest.raises(PermissionError):
        mmap.mmap(buffer.fd, buffer.capacity)
    with pytest.raises(PermissionError):
        os.ftruncate(buffer.fd, 0)
    buffer.close()
    assert seen[:5] == b"bytes"


def test_a_shared_one_has_no_name_in_any_file_system():
    before = sorted(os.listdir("/dev/shm"))
    buffer = make_buffer(MIB, shared=True)
    assert os.readlink(f"/proc/self/fd/{buffer.fd}") == "/memfd:chainstore-capture (deleted)"
    assert os.fstat(buffer.fd).st_nlink == 0
    assert {name for name in os.listdir("/dev/shm") if "chainstore" in name} <= set(before)
    buffer.close()


def test_a_private_one_has_no_descriptor():
    assert make_buffer(MIB, shared=False).fd == -1


def test_it_grows_into_new_memory_and_keeps_it_while_that_suffices(buffer):
    buffer.ensure(MIB)
    address = buffer.address
    assert buffer.version == 1
    kept = buffer.view[:4]
    kept[:] = b"kept"
    buffer.ensure(50 * MIB)
    assert buffer.version == 2 and buffer.capacity >= 50 * MIB
    assert kept == b"kept"  # whoever reads what was there before still may
    buffer.ensure(50 * MIB)
    assert buffer.version == 2 and buffer.address != address


def test_one_that_was_made_without_a_size_gets_it_later():
    buffer = make_buffer(0, shared=True)
    assert buffer.capacity == 0 and buffer.version == 0 and buffer.fd == -1 and len(buffer.view) == 0
    buffer.ensure(10)
    assert buffer.capacity >= 10 and buffer.version == 1 and buffer.fd >= 0
    buffer.close()


def test_closing_twice_is_fine_and_slices_outlive_it(buffer):
    piece = buffer.view[:3]
    piece[:] = b"abc"
    buffer.close()
    buffer.close()
    assert piece == b"abc" and buffer.fd == -1 and buffer.capacity == 0
    with pytest.raises(ValueError, match="closed"):
        buffer.ensure(1)


def test_closing_gives_descriptor_and_memory_back():
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("chainstore-capture")

    before = held()
    for _ in range(3):
        buffer = make_buffer(MIB, shared=True)
        buffer.ensure(4 * MIB)
        assert held() == (before[0] + 1, before[1] + 1)
        buffer.close()
        assert held() == before


def test_whoever_told_a_driver_is_called_before_the_memory_goes(buffer):
    told = []
    for step in (lambda: buffer.ensure(20 * MIB), buffer.close):
        address = buffer.address
        buffer.before_release = lambda: told.append(buffer.address)
        step()
        assert told.pop() == address and not told and buffer.before_release is None


def test_more_than_there_is_is_refused_and_the_buffer_works_on(buffer):
    with pytest.raises(MemoryShort) as caught:
        buffer.ensure(1 << 50)
    assert caught.value.needed == 1 << 50 and 0 < caught.value.left < 1 << 50
    assert "MB are left" in str(caught.value) and "max_pending=1" in caught.value.hint
    assert buffer.capacity == 0 and len(buffer.view) == 0
    buffer.ensure(MIB)
    assert buffer.capacity >= MIB


@pytest.mark.parametrize("shared", [True, False])
def test_a_limit_on_address_space_is_a_shortage(shared):
    program = f"""
        import resource
        from chainstore.errors import MemoryShort
        from chainstore.manager.memory import make_buffer
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
        buffer = make_buffer(1 << 20, shared={shared})
        try:
            buffer.ensure(5 << 30)
        except MemoryShort:
            print("short", buffer.capacity)
    """
    if memory_left() < 6 << 30:
        pytest.skip("less than 6 GB of memory are left")
    assert run(program).split() == ["short", "0"]


def test_where_no_memfd_may_be_that_large_memory_is_private():
    program = """
        import resource
        from chainstore.manager.memory import make_buffer
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        buffer = make_buffer(8 << 20, shared=True)
        buffer.view[:2] = b"ok"
        print(buffer.fd, buffer.capacity >= 8 << 20)
    """
    assert run(program).split() == ["-1", "True"]


def test_where_there_is_no_memfd_memory_is_private(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    buffer = make_buffer(MIB, shared=True)
    assert buffer.fd == -1 and buffer.capacity >= MIB


# ---- fork and exec ----------------------------------------------------------------------------------------------


def test_a_forked_child_can_neither_see_nor_change_it(buffer):
    buffer.view[:6] = b"parent"
    kept = buffer.view[:6]

    def child() -> str:
        seen = bytes(kept)
        kept[:] = b"child!"
        return f"{seen!r} {bytes(kept)!r}"

    assert in_child(child) == f"{bytes(6)!r} b'child!'"
    assert kept == b"parent" and buffer.view[:6] == b"parent"


def test_a_forked_child_is_told_so(buffer):
    assert in_child(lambda: str(buffer.view)).startswith("ForkedHandle")
    assert in_child(lambda: str(buffer.ensure(1))).startswith("ForkedHandle")
    assert in_child(lambda: f"{buffer.close()}") == "None"
    with pytest.raises(ForkedHandle):
        buffer._in_child()
        buffer.view  # noqa: B018


def test_a_forked_child_does_not_keep_the_memory_alive():
    buffer = make_buffer(MIB, shared=True)

    def child() -> str:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        names = [os.readlink(link) for link in links if os.path.lexists(link)]
        return f"{names} {Path('/proc/self/maps').read_text()}"

    assert "chainstore-capture" in Path("/proc/self/maps").read_text()
    assert "chainstore-capture" not in in_child(child)
    buffer.close()


def test_a_program_that_is_started_gets_no_descriptor():
    buffer = make_buffer(MIB, shared=True)
    shown = subprocess.run(["ls", "-l", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
    assert "chainstore-capture" not in shown.stdout and "/proc/" in shown.stdout
    buffer.close()


# ---- how much is left ---------------------------------------------------------------------------------------------


def make_root(root: Path, files: dict[str, str]) -> Path:
    """Return a root of a file system with the given files and 8 GiB available."""
    for name, text in {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8388608 kB\n", **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2 = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
V1 = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
V1 += "31 23 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"


def v2(folder: str, most: str, current: int, inactive: int = 0) -> dict[str, str]:
    return {
        f"{folder}/memory.max": f"{most}\n",
        f"{folder}/memory.current": f"{current}\n",
        f"{folder}/memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 7\n",
    }


def test_what_is_left_here_is_something():
    assert 0 < memory_left() < 1 << 50


def test_without_limits_it_is_what_the_host_has_available(tmp_path):
    assert memory_left(make_root(tmp_path, {})) == 8 << 30


def test_a_cgroup_limits_it_and_old_pages_of_files_count_as_free(tmp_path):
    files = {"proc/self/cgroup": "0::/job/step\n", "proc/self/mountinfo": V2}
    files |= v2("sys/fs/cgroup/job/step", str(4 * MIB), 3 * MIB, MIB // 2)
    assert memory_left(make_root(tmp_path, files)) == MIB + MIB // 2


def test_the_limits_of_cgroups_above_count(tmp_path):
    files = {"proc/self/cgroup": "0::/job/step\n", "proc/self/mountinfo": V2}
    files |= v2("sys/fs/cgroup/job/step", "max", 3 * MIB) | v2("sys/fs/cgroup/job", str(9 * MIB), 5 * MIB)
    assert memory_left(make_root(tmp_path, files)) == 4 * MIB


def test_the_first_version_of_cgroups_counts(tmp_path):
    files = {"proc/self/cgroup": "4:cpu,cpuacct:/other\n3:memory:/slurm/job_7\n0::/\n", "proc/self/mountinfo": V1}
    folder = "sys/fs/cgroup/memory/slurm/job_7"
    files |= {f"{folder}/memory.limit_in_bytes": f"{64 * MIB}\n", f"{folder}/memory.usage_in_bytes": f"{60 * MIB}\n"}
    files |= {f"{folder}/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * MIB}\n"}
    files |= {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}
    files |= {"sys/fs/cgroup/memory/memory.usage_in_bytes": "1000\n"}
    assert memory_left(make_root(tmp_path, files)) == 6 * MIB


@pytest.mark.parametrize("own", ["/docker/abc", "/../../docker/abc", "/"])
def test_in_a_container_the_mounted_cgroup_counts(tmp_path, own):
    files = {"proc/self/cgroup": f"0::{own}\n", "proc/self/mountinfo": V2.replace("0:26 / ", "0:26 /docker/abc ")}
    files |= v2("sys/fs/cgroup", str(20 * MIB), 8 * MIB)
    assert memory_left(make_root(tmp_path, files)) == 12 * MIB


def test_more_used_than_allowed_is_nothing_left(tmp_path):
    files = {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": V2} | v2("sys/fs/cgroup", "10", 50)
    assert memory_left(make_root(tmp_path, files)) == 0


@pytest.mark.parametrize("odd", ["", "garbage", "-\n - \n", "1 2 3 4 5 - cgroup2\n", "::\n"])
def test_odd_texts_of_the_kernel_limit_nothing(tmp_path, odd):
    files = {"proc/self/cgroup": odd, "proc/self/mountinfo": odd}
    assert memory_left(make_root(tmp_path, files)) == 8 << 30
