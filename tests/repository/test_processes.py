"""Several processes: forked, spawned, side by side, and interrupted."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import pytest

import chainstore as cs
from chainstore.errors import ForkedHandle, InvalidInput, RefConflict
from chainstore.storage import log
from chainstore.storage.index import Writer
from tests.repository.conftest import Child, noise, script


def in_child(work: Callable[[], object], seconds: float = 30) -> None:
    """Run `work` in a forked child; AssertionError if it fails there or does not end."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException as error:
            print(f"in the child: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError("the child does not end")


# ---- fork


def test_a_forked_child_reads_and_commits_by_itself(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"by": "parent", "data": noise(0, 100_000)}, "0")

        def work() -> None:
            assert repo.checkout()["by"] == "parent"
            repo.commit({"by": "child", "data": noise(1, 100_000)}, "1")
            repo.close()

        in_child(work)
        assert repo.checkout()["by"] == "child"
        repo.commit({"by": "parent", "data": noise(2, 100_000)}, "2")
        assert [commit.message for commit in repo.log()] == ["2", "1", "0"]
        assert repo.verify("data").ok


def test_parent_and_child_may_take_turns(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        for turn in range(3):
            repo.commit({"turn": turn, "data": noise(turn, 50_000)}, "parent")
            in_child(lambda: repo.commit({"data": noise(100, 50_000)}, "child"))
        assert [commit.message for commit in repo.log()] == ["child", "parent"] * 3
        assert repo.verify("data").ok


def test_a_childs_end_does_not_disturb_the_parent(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0})
        snapshot = repo["main"]
        for ending in (lambda: None, repo.close, lambda: repo.checkout(), lambda: repo.__exit__(None, None, None)):
            in_child(ending)
            assert snapshot.load() == {"n": 0}
            repo.commit({"n": 1}, branch="other")
        assert repo.verify("data").ok


def test_a_snapshot_may_be_read_in_a_forked_child(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"data": noise(0, 100_000)})
        snapshot = repo["main"]
        snapshot.keys()

        def work() -> None:
            assert (snapshot["data"] == noise(0, 100_000)).all()

        in_child(work)


def test_a_writer_across_a_fork_is_refused_in_the_child_and_goes_on_in_the_parent(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        with repo.writer(message="by the parent") as writer:
            writer["a"] = noise(0, 50_000)

            def work() -> None:
                with pytest.raises(ForkedHandle):
                    writer["b"] = noise(1, 50_000)
                with pytest.raises(ForkedHandle):
                    writer.add("c/d", 1)

            in_child(work)
            writer["b"] = noise(2, 50_000)
        assert [commit.message for commit in repo.log()] == ["by the parent"]
        assert repo.verify("data").ok


def test_leaving_a_writers_block_in_a_child_commits_nothing(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0}, "before")
        manager = repo.writer(message="lost")
        writer = manager.__enter__()
        writer["a"] = noise(0, 50_000)

        def work() -> None:
            with pytest.raises(ForkedHandle):
                manager.__exit__(None, None, None)

        in_child(work)
        assert [commit.message for commit in repo.log()] == ["before"]
        manager.__exit__(None, None, None)
        assert [commit.message for commit in repo.log()] == ["lost", "before"]
        assert repo.verify("data").ok


def test_a_child_forked_while_another_thread_commits_can_commit(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0}, "before")
        inside, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            with repo.writer(branch="slow") as writer:
                writer["a"] = 1
                inside.set()
                go_on.wait()

        thread = threading.Thread(target=slow)
        thread.start()
        inside.wait()
        try:
            in_child(lambda: repo.commit({"n": 1}, "child", codec="fast"), seconds=10)
        finally:
            go_on.set()
            thread.join()
        assert [commit.message for commit in repo.log()] == ["child", "before"]
        assert sorted(repo.branches()) == ["main", "slow"]


def test_a_child_forked_while_another_thread_opens_can_open(tmp_path: Path) -> None:
    cs.init(tmp_path / "r", key=cs.Passphrase("slow to open")).close()
    opening = threading.Thread(target=lambda: cs.open(tmp_path / "r", key=cs.Passphrase("slow to open")).close())
    opening.start()
    time.sleep(0.02)
    try:
        in_child(lambda: cs.open(tmp_path / "other", create=True).close(), seconds=10)
    finally:
        opening.join()


# ---- other processes

COMMIT = """
with cs.open(root) as repo:
    for n in range(int(sys.argv[3])):
        while True:
            try:
                repo.commit({"by": sys.argv[2], "n": n, "data": np.full(20_000, n)}, f"{sys.argv[2]} {n}")
                break
            except errors.RefConflict:
                continue
"""


def test_processes_that_commit_to_one_branch_make_one_chain(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        command = [sys.executable, "-c", script(COMMIT), str(tmp_path / "r")]
        children = [subprocess.Popen([*command, name, "5"]) for name in ("a", "b")]
        assert [child.wait(60) for child in children] == [0, 0]
        messages = [commit.message for commit in repo.log()]
        assert sorted(messages) == sorted(f"{name} {n}" for name in "ab" for n in range(5))
        assert repo.verify("data").ok


def test_a_branch_that_another_process_moved_is_a_conflict_with_both_ids(tmp_path: Path, child: Child) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        first = repo.commit({"n": 0}, "first")
        with pytest.raises(RefConflict) as caught, repo.writer(message="mine") as writer:
            writer["a"] = 1
            child("cs.open(root).commit({'n': 1}, 'theirs')", tmp_path / "r")
        second = repo.resolve("main")
        assert second != first.id
        assert caught.value.exit_code == 13
        assert (caught.value.expected, caught.value.found) == (str(first.id), str(second))
        assert str(first.id) in str(caught.value) and str(second) in str(caught.value)
        assert [commit.message for commit in repo.log()] == ["theirs", "first"]
        repo.commit({"n": 2}, "mine, again")


def test_what_another_process_commits_is_seen_at_once(tmp_path: Path, child: Child) -> None:
    with cs.open(tmp_path / "r", create=True) as repo, cs.open(tmp_path / "r", readonly=True) as reader:
        child("cs.open(root).commit({'n': 1, 'w': np.arange(50_000)}, 'theirs')", tmp_path / "r")
        for handle in (repo, reader):
            assert handle.head is not None and handle.head.message == "theirs"
            assert handle.checkout(select="n") == {"n": 1}


def test_processes_that_create_it_at_once_make_one_repository(tmp_path: Path) -> None:
    code = script("print(cs.open(root, create=True).commit({}, branch=sys.argv[2]) and cs.open(root).id)")
    command = [sys.executable, "-c", code, str(tmp_path / "r")]
    children = [subprocess.Popen([*command, f"b{n}"], stdout=subprocess.PIPE, text=True) for n in range(4)]
    ids = {child.communicate(timeout=60)[0] for child in children}
    assert len(ids) == 1 and "" not in ids
    with cs.open(tmp_path / "r") as repo:
        assert sorted(repo.branches()) == ["b0", "b1", "b2", "b3"]
        assert repo.verify("data").ok


def test_two_containers_on_one_index_are_told_why_not(tmp_path: Path, child: Child) -> None:
    isolated = ("unshare", "--pid", "--fork", "--mount-proc")
    if subprocess.run([*isolated, "true"], capture_output=True).returncode:
        if os.environ.get("CI"):
            pytest.fail("unshare --pid is not permitted here")
        pytest.skip("unshare --pid is not permitted here")
    cs.open(tmp_path / "r", create=True).close()
    first = subprocess.Popen(
        [
            *isolated,
            sys.executable,
            "-c",
            script("repo = cs.open(root); print(os.getpid(), flush=True); input()"),
            str(tmp_path / "r"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert first.stdout is not None and first.stdout.readline() == "1\n"
        child(
            """
            assert os.getpid() == 1
            try:
                cs.open(root).commit({})
            except errors.UnsuitablePlace as error:
                assert error.exit_code == 16
                assert "pid namespace" in error.hint and "index_dir=" in error.hint
            else:
                sys.exit("both were let in")
            """,
            tmp_path / "r",
            wrap=isolated,
        )
    finally:
        first.communicate("\n", timeout=30)
    assert first.returncode == 0
    with cs.open(tmp_path / "r") as repo:
        repo.commit({})


# ---- spawned


def work_with(repo: cs.Repository, queue: "object") -> None:
    repo.commit({"by": "spawned"}, "spawned")
    queue.put((repo.id, repo.checkout("main~1")))  # type: ignore[attr-defined]


def test_a_repository_can_be_handed_to_a_spawned_process(tmp_path: Path) -> None:
    context = get_context("spawn")
    with cs.open(tmp_path / "r", create=True, observer=lambda event: None) as repo:
        repo.commit({"by": "parent"})
        queue = context.Queue()
        process = context.Process(target=work_with, args=(repo, queue))
        process.start()
        id, state = queue.get(timeout=60)
        process.join(30)
        assert process.exitcode == 0
        assert (id, state) == (repo.id, {"by": "parent"})
        assert repo.checkout() == {"by": "spawned"}


@pytest.mark.parametrize("readonly", [False, True])
def test_a_pickled_repository_opens_the_same_way_again(tmp_path: Path, readonly: bool) -> None:
    key = cs.Passphrase("p")
    cs.init(tmp_path / "r", key=key, index_dir=tmp_path / "index").close()
    with cs.open(tmp_path / "r", key=key, readonly=readonly, index_dir=tmp_path / "index", threads=3) as repo:
        data, id = pickle.dumps(repo), repo.id
    with pickle.loads(data) as again:
        assert again.id == id
        assert again._handle.settings.readonly is readonly
        assert again._handle.settings.threads == 3
        assert again._handle.settings.index_dir == tmp_path / "index"


# ---- interrupted

INTERRUPTED = """
import threading
from chainstore.storage import fs
repo = cs.open(root, threads=int(sys.argv[2]))
base = [commit.message for commit in repo.log()]
where, delay = sys.argv[3], float(sys.argv[4])

def interrupt(name, path):
    if name == where and "r/" in str(path) and threading.current_thread().name != "killer":
        fs.failpoint = lambda name, path: None
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(delay)

rng = np.random.default_rng(1)
state = {f"w{n}": rng.integers(0, 256, 3_000_000, dtype=np.uint8) for n in range(8)}
fs.failpoint = interrupt
try:
    repo.commit(state, "interrupted")
except KeyboardInterrupt:
    pass
else:
    sys.exit("not interrupted")
assert [commit.message for commit in repo.log()] == base, "something was committed"
repo.commit({"w": state["w0"]}, "next")
assert [commit.message for commit in repo.log()] == ["next", *base]
assert repo.verify("data").ok
"""


@pytest.mark.parametrize("threads", ["1", "2"])
@pytest.mark.parametrize("where", ["create", "pwrite", "fdatasync"])
def test_ctrl_c_in_the_middle_of_a_commit_commits_nothing(
    tmp_path: Path, child: Child, threads: str, where: str
) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0}, "before")
        child(INTERRUPTED, tmp_path / "r", threads, where, "0.05")
        repo.commit({"n": 1}, "after")
        assert [commit.message for commit in repo.log()] == ["after", "next", "before"]


def test_an_exception_in_a_writers_block_commits_nothing(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        with pytest.raises(KeyboardInterrupt), repo.writer(message="lost") as writer:
            writer["a"] = noise(0, 50_000)
            raise KeyboardInterrupt
        with pytest.raises(InvalidInput, match="finished"):
            writer["b"] = 1
        assert repo.head is None
        repo.commit({"a": noise(0, 50_000)}, "kept")
        assert repo.verify("data").ok


class LateInterrupt:
    """Raises KeyboardInterrupt at the end of the next transaction that changes the index, once it is committed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        end, self.armed = Writer.__exit__, True

        def late(writer: Writer, *arguments: object) -> None:
            end(writer, *arguments)  # type: ignore[arg-type]
            if self.armed:
                self.armed = False
                raise KeyboardInterrupt

        monkeypatch.setattr(Writer, "__exit__", late)


def test_an_interrupt_just_after_a_commit_is_heard_and_the_commit_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0}, "before")
        LateInterrupt(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            repo.commit({"n": 1}, "done all the same")
        assert [commit.message for commit in repo.log()] == ["done all the same", "before"]
        repo.commit({"n": 2}, "after")
        assert repo.verify("data").ok


def test_an_interrupt_while_a_segment_of_the_log_is_begun_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({"n": 0}, "before")
        monkeypatch.setattr(log, "SEGMENT_BYTES", 0)
        LateInterrupt(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            repo.commit({"n": 1}, "lost")
        repo.commit({"n": 2}, "after")
        assert [commit.message for commit in repo.log()] == ["after", "before"]
        assert repo.verify("data").ok
    with cs.open(tmp_path / "r") as again:
        assert again.checkout() == {"n": 2}
