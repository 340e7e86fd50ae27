"""Writers: captures become commits in the loop, in a thread, in another process; whatever goes wrong is told."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.crypto.keys import KeyCommand, KeyFile, Passphrase, generate_key_file
from chainstore.errors import ForkedHandle, InvalidInput
from chainstore.manager.messages import Durable, Failed, Request
from chainstore.manager.writers import ProcessWriter, SyncWriter, ThreadWriter, Writer, make_writer
from chainstore.observe import Event, Notice
from chainstore.repository import FileContent, Repository, hand_on, init, take_up
from tests.manager.captures import Camera, is_state_of, state_of
from tests.repository.conftest import script

MODES = ("sync", "thread", "process")
PATIENCE = 30.0


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with init(tmp_path / "repo") as repo:
        yield repo


@contextmanager
def writing(mode: str, repo: Repository, observer: Callable[[Event], None] | None = None) -> Iterator[Writer]:
    writer = make_writer(mode, repo, observer=observer or (lambda event: None))  # type: ignore[arg-type]
    try:
        yield writer
    finally:
        writer.close(PATIENCE)


@contextmanager
def process_writing(repo: Repository) -> Iterator[ProcessWriter]:
    with writing("process", repo) as writer:
        assert isinstance(writer, ProcessWriter)
        yield writer


def outcome(writer: Writer) -> Durable | Failed:
    """Wait for the one capture that is pending, and return what became of it."""
    assert writer.drain(PATIENCE)
    (told,) = writer.poll()
    assert writer.pending == 0
    return told


def submit(writer: Writer, camera: Camera, step: int, request: Request | None = None) -> int:
    captured = camera.take(state_of(step))
    writer.submit(captured, camera.buffer, request or Request(step=step))
    return captured.number


def runs(pid: int) -> bool:
    """Whether a process is there that is more than a line in its parent's book."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(pid: int, patience: float = PATIENCE) -> bool:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if not runs(pid):
            return True
        time.sleep(0.01)
    return False


def ended(writer: ProcessWriter) -> bool:
    """Whether the writer process ends: all of it, where the first thread of a dying one may be gone before others."""
    deadline = time.monotonic() + PATIENCE
    while writer.alive and time.monotonic() < deadline:
        time.sleep(0.01)
    return not writer.alive


# ---- all of them


@pytest.mark.parametrize("mode", MODES)
def test_captures_become_commits_of_the_handle_that_sees_them_at_once(
    mode: str, repo: Repository, tmp_path: Path
) -> None:
    (tmp_path / "a.yaml").write_text("lr: 1")
    camera = Camera()
    with writing(mode, repo) as writer:
        assert writer.poll() == []
        commits = []
        for step in range(1, 6):
            request = Request(
                branch="main",
                message=f"every step: step {step}",
                step=step,
                epoch=step // 2,
                metrics={"loss": 1 / step},
                meta={"argv": ["train.py"]},
                tags=(f"t{step}",),
                files={"conf/a.yaml": tmp_path / "a.yaml"},
            )
            number = submit(writer, camera, step, request)
            told = outcome(writer)
            assert isinstance(told, Durable), told
            assert told.number == number
            assert told.seconds > 0
            assert told.raw_bytes > 300_000 > told.stored_bytes
            assert repo.head is not None
            assert str(repo.head.id) == told.commit
            assert is_state_of(step, repo.checkout())
            commits.append(told.commit)
        assert [str(commit.id) for commit in repo.log()] == commits[::-1]
        head = repo.head
        assert (head.step, head.epoch, head.message) == (5, 2, "every step: step 5")
        assert head.metrics == {"loss": 0.2}
        assert head.meta == {"argv": ["train.py"]}
        assert repo.tags()["t3"].hex() == commits[2]
        assert "conf/a.yaml" in repo.snapshot().files
        repo.commit({"by": "the trainer"}, "between")
        submit(writer, camera, 6)
        told = outcome(writer)
        assert isinstance(told, Durable), told
        assert [commit.message for commit in repo.log(max_count=2)] == ["", "between"]
    assert repo.verify("data").damaged == []


@pytest.mark.parametrize("mode", MODES)
def test_an_error_reaches_the_trainer_and_the_next_snapshot_works(mode: str, repo: Repository) -> None:
    camera = Camera()
    with writing(mode, repo) as writer:
        repo.commit({}, "0", branch="other")
        for request, code in (
            (Request(step=1, expected_head="other"), "ref-conflict"),
            (Request(step=1, branch="a..b"), "invalid-ref-name"),
            (Request(step=1, files={"../x": FileContent(b"")}), "invalid-input"),
            (Request(step=1, tags=("main~1",)), "invalid-ref-name"),
        ):
            number = submit(writer, camera, 1, request)
            told = outcome(writer)
            assert isinstance(told, Failed)
            assert (told.number, told.code) == (number, code)
            assert told.text
        submit(writer, camera, 2)
        assert isinstance(outcome(writer), Durable)
        assert is_state_of(2, repo.checkout())


@pytest.mark.parametrize("mode", MODES)
def test_a_branch_that_was_deleted_is_not_begun_anew(mode: str, repo: Repository) -> None:
    camera = Camera()
    with writing(mode, repo) as writer:
        submit(writer, camera, 1)
        assert isinstance(outcome(writer), Durable)
        with take_up(hand_on(repo)) as other:
            other.switch("elsewhere", create=True)
            other.delete_ref("main")
        for _ in range(2):
            submit(writer, camera, 2)
            told = outcome(writer)
            assert isinstance(told, Failed)
            assert told.code == "branch-deleted"
            assert "was deleted" in told.text
            if isinstance(writer, ProcessWriter):  # the next one must know as well
                os.kill(writer.pid, signal.SIGKILL)
                assert ended(writer)
        assert list(repo.branches()) == ["elsewhere"]


@pytest.mark.parametrize("mode", MODES)
def test_commits_go_to_the_trainers_branch_wherever_head_went(mode: str, repo: Repository) -> None:
    repo.commit({}, "0")
    with cs.open(repo.path) as other:
        other.switch("elsewhere", create=True)
    camera = Camera()
    with writing(mode, repo) as writer:
        submit(writer, camera, 1)
        told = outcome(writer)
        assert isinstance(told, Durable)
        assert repo.branches()["main"].hex() == told.commit
        submit(writer, camera, 2, Request(step=2, branch="run-2"))
        told = outcome(writer)
        assert isinstance(told, Durable)
        assert repo.branches()["run-2"].hex() == told.commit


@pytest.mark.parametrize("mode", MODES)
def test_what_no_commit_can_say_is_refused_at_once(mode: str, repo: Repository) -> None:
    camera = Camera()
    with writing(mode, repo) as writer:
        with pytest.raises(InvalidInput, match="loss"):
            submit(writer, camera, 1, Request(metrics={"loss": "low"}))
        assert (writer.pending, writer.poll()) == (0, [])


@pytest.mark.parametrize("mode", MODES)
def test_old_snapshots_are_dropped_aside(mode: str, repo: Repository) -> None:
    camera = Camera()
    with writing(mode, repo) as writer:
        for step in range(6):
            submit(writer, camera, step)
            assert isinstance(outcome(writer), Durable)
        writer.tidy("last=2")
    assert len(repo.marks()) == 4
    assert all(mark.swept for mark in repo.marks().values())


@pytest.mark.parametrize("mode", MODES)
def test_garbage_that_cannot_be_taken_is_told_as_a_notice(mode: str, repo: Repository) -> None:
    camera, told = Camera(), []
    with writing(mode, repo, told.append) as writer:
        writer.tidy("nonsense=2")
        deadline = time.monotonic() + PATIENCE
        while not told and time.monotonic() < deadline:
            submit(writer, camera, 1)
            assert isinstance(outcome(writer), Durable)
    (notice,) = told
    assert isinstance(notice, Notice)
    assert notice.code == "tidy-failed"
    assert "nonsense" in notice.text


@pytest.mark.parametrize("mode", MODES)
def test_a_forked_child_neither_uses_nor_ends_the_parents_writer(mode: str, repo: Repository) -> None:
    camera = Camera()
    with writing(mode, repo) as writer:
        captured = camera.take(state_of(1))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                writer.close(1.0)
                try:
                    writer.submit(captured, camera.buffer, Request(step=1))
                except ForkedHandle:
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert writer.alive
        submit(writer, camera, 2)
        assert isinstance(outcome(writer), Durable)
        assert is_state_of(2, repo.checkout())


# ---- thread


def test_what_was_submitted_to_a_thread_is_finished_when_the_interpreter_ends(tmp_path: Path) -> None:
    code = """
    from chainstore.manager.writers import Request, ThreadWriter
    from tests.manager.captures import Camera, state_of
    repo = cs.open(root, create=True, threads=2)
    camera, writer = Camera(shared=False), ThreadWriter(repo)
    writer.submit(camera.take(state_of(1, 40_000_000)), camera.buffer, Request(step=1))
    """
    subprocess.run([sys.executable, "-c", script(code), str(tmp_path / "r")], check=True, timeout=60)
    with cs.open(tmp_path / "r") as repo:
        assert is_state_of(1, repo.checkout(), 40_000_000)


def test_a_commit_needs_no_threads_where_none_can_be_started(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: object) -> None:  # as Python 3.12 has it while the interpreter ends
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr("threading.Thread.start", start)
    camera = Camera(shared=False)
    with cs.open(repo.path, threads=4) as other:
        writer = ThreadWriter(other)
        captured = camera.take(state_of(1, 20_000_000))
        writer.submit(captured, camera.buffer, Request(step=1))
        assert isinstance(outcome(writer), Durable)
        writer.close(1.0)
        assert is_state_of(1, other.checkout(), 20_000_000)


def test_a_thread_takes_several_captures_in_their_order(repo: Repository) -> None:
    cameras = [Camera(shared=False) for _ in range(3)]
    writer = ThreadWriter(repo)
    for step, camera in enumerate(cameras):
        captured = camera.take(state_of(step, 5_000_000))
        writer.submit(captured, camera.buffer, Request(step=step))
    writer.close(PATIENCE)
    assert [type(told) for told in writer.poll()] == [Durable] * 3
    assert [commit.step for commit in repo.log()] == [2, 1, 0]
    with pytest.raises(InvalidInput, match="closed"):
        submit(writer, cameras[0], 1)


def test_close_waits_no_longer_than_it_may(repo: Repository) -> None:
    camera = Camera(shared=False)
    for writer in (ThreadWriter(repo), SyncWriter(repo)):
        captured = camera.take(state_of(1, 30_000_000))
        writer.submit(captured, camera.buffer, Request(step=1))
        writer.close(0.0)
        assert writer.drain(PATIENCE)
        assert isinstance(writer.poll()[0], Durable)


# ---- process


def test_the_writer_process_is_without_torch_in_a_session_of_its_own_and_steps_back(repo: Repository) -> None:
    camera = Camera()
    with process_writing(repo) as writer:
        submit(writer, camera, 1)
        assert isinstance(outcome(writer), Durable)
        maps = Path(f"/proc/{writer.pid}/maps").read_text()
        assert "chainstore" in Path(f"/proc/{writer.pid}/cmdline").read_text()
        assert "libtorch" not in maps
        assert "torch/_C" not in maps
        assert os.getsid(writer.pid) == writer.pid != os.getsid(0)
        assert os.getpriority(os.PRIO_PROCESS, writer.pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 5)
        assert os.sched_getscheduler(writer.pid) == os.SCHED_BATCH
        os.kill(writer.pid, signal.SIGINT)
        submit(writer, camera, 2)
        assert isinstance(outcome(writer), Durable)
        pid = writer.pid
    assert not runs(pid)


KEYS = {
    "file": lambda folder: generate_key_file(folder / "some.key", lambda count: b"\xf5" * count),
    "command": lambda folder: KeyCommand("echo " + "ab" * 32),
    "passphrase": lambda folder: Passphrase("correct horse battery staple"),
    "as usual": lambda folder: None,
}


@pytest.mark.parametrize("kind", KEYS)
def test_the_key_reaches_the_writer_process_and_nobody_else(kind: str, tmp_path: Path) -> None:
    key = KEYS[kind](tmp_path)
    camera = Camera()
    with init(tmp_path / "r", key=key) as repo, process_writing(repo) as writer:
        submit(writer, camera, 1)
        assert isinstance(outcome(writer), Durable)
        shown = b"".join(Path(f"/proc/{writer.pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
        for secret in (b"correct horse", b"ab" * 32, b"some.key"):
            assert secret not in shown


def test_a_repository_that_cannot_be_opened_is_told_with_each_snapshot(tmp_path: Path) -> None:
    key = generate_key_file(tmp_path / "some.key", lambda count: b"\xf5" * count)
    camera = Camera()
    with init(tmp_path / "r", key=key) as repo:
        (tmp_path / "some.key").rename(tmp_path / "away")
        with process_writing(repo) as writer:
            for _ in range(2):
                submit(writer, camera, 1)
                told = outcome(writer)
                assert isinstance(told, Failed)
                assert told.code == "key-required"
                assert "some.key" in told.text
                assert told.hint
            (tmp_path / "away").rename(tmp_path / "some.key")
            submit(writer, camera, 2)
            assert isinstance(outcome(writer), Durable)
        assert isinstance(KeyFile(tmp_path / "some.key"), KeyFile)


def test_a_writer_process_that_dies_is_told_and_replaced(repo: Repository) -> None:
    camera = Camera()
    with process_writing(repo) as writer:
        submit(writer, camera, 1)
        assert isinstance(outcome(writer), Durable)
        first = writer.pid
        os.kill(first, signal.SIGSTOP)
        number = submit(writer, camera, 2)
        os.kill(first, signal.SIGKILL)
        told = outcome(writer)
        assert isinstance(told, Failed)
        assert (told.number, told.code) == (number, "writer-died")
        assert "SIGKILL" in told.text
        assert not writer.alive
        submit(writer, camera, 3)
        assert writer.pid != first
        assert isinstance(outcome(writer), Durable)
        os.kill(writer.pid, signal.SIGKILL)  # with nothing to do: nothing is lost, and nothing is told
        assert ended(writer)
        assert writer.poll() == []
        submit(writer, camera, 4)
        assert isinstance(outcome(writer), Durable)
        assert [commit.step for commit in repo.log()] == [4, 3, 1]


def test_several_captures_are_lost_together_and_each_is_told(repo: Repository) -> None:
    cameras = [Camera(), Camera()]
    with process_writing(repo) as writer:
        os.kill(writer.pid, signal.SIGSTOP)
        for step, camera in enumerate(cameras):
            captured = camera.take(state_of(step))
            writer.submit(captured, camera.buffer, Request(step=step))
        try:
            assert writer.pending == 2
            assert not writer.drain(0.05)
        finally:
            os.kill(writer.pid, signal.SIGKILL)
        assert writer.drain(PATIENCE)
        assert [told.code for told in writer.poll() if isinstance(told, Failed)] == ["writer-died"] * 2


def test_after_sigterm_a_writer_process_still_takes_the_last_snapshot(repo: Repository) -> None:
    camera = Camera()
    with process_writing(repo) as writer:
        submit(writer, camera, 1)
        assert isinstance(outcome(writer), Durable)
        pid = writer.pid
        os.kill(pid, signal.SIGTERM)
        time.sleep(0.1)
        submit(writer, camera, 2)
        assert isinstance(outcome(writer), Durable)
        assert writer.pid == pid
    assert not runs(pid)


def test_a_state_that_changes_its_structure_and_its_size_arrives(repo: Repository) -> None:
    camera = Camera()
    with process_writing(repo) as writer:
        for step, nbytes in enumerate((300_000, 8_000_000, 400_000, 400_000)):
            captured = camera.take(state_of(step, nbytes) | {f"only-{step // 2}": np.arange(step + 5)})
            writer.submit(captured, camera.buffer, Request(step=step))
            assert isinstance(outcome(writer), Durable)
            state = repo.checkout()
            assert (state.pop(f"only-{step // 2}") == np.arange(step + 5)).all()
            assert is_state_of(step, state, nbytes)


def test_memory_of_this_process_alone_cannot_go_to_another(repo: Repository) -> None:
    with process_writing(repo) as writer, pytest.raises(InvalidInput, match="no other process can see"):
        submit(writer, Camera(shared=False), 1)


def test_close_leaves_a_writer_process_that_takes_longer_to_itself(repo: Repository) -> None:
    camera = Camera()
    writer = ProcessWriter(repo)
    captured = camera.take(state_of(1, 50_000_000))
    writer.submit(captured, camera.buffer, Request(step=1))
    writer.close(0.0)
    with pytest.raises(InvalidInput, match="closed"):
        submit(writer, Camera(), 2)
    camera.buffer.close()
    assert gone(writer.pid)
    assert is_state_of(1, repo.checkout(), 50_000_000)
    writer.close(0.0)


def test_a_child_of_the_trainer_that_outlives_it_does_not_keep_the_writer_process(tmp_path: Path) -> None:
    code = """
    from chainstore.manager.writers import ProcessWriter, Request
    from tests.manager.captures import Camera, state_of
    repo = cs.open(root, create=True)
    camera, writer = Camera(), ProcessWriter(repo)
    child = os.fork()
    if child == 0:
        time.sleep(600)
    writer.submit(camera.take(state_of(1)), camera.buffer, Request(step=1))
    print(writer.pid, child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.Popen(
        [sys.executable, "-c", script(code), str(tmp_path / "r")], stdout=subprocess.PIPE, text=True
    )
    assert done.stdout is not None
    writer, child = map(int, done.stdout.readline().split())
    try:
        assert done.wait(PATIENCE) == -signal.SIGKILL
        assert runs(child)
        assert gone(writer)
    finally:
        os.kill(child, signal.SIGKILL)
        done.stdout.close()
    with cs.open(tmp_path / "r") as repo:
        assert is_state_of(1, repo.checkout())


def test_nothing_is_left_open(repo: Repository) -> None:
    def use() -> None:
        camera = Camera()
        with process_writing(repo) as writer:
            submit(writer, camera, 1)
            assert isinstance(outcome(writer), Durable)
            os.kill(writer.pid, signal.SIGKILL)
            submit(writer, camera, 2)
            outcome(writer)
        camera.buffer.close()

    use()
    before = sorted(os.listdir("/proc/self/fd"))
    use()
    assert sorted(os.listdir("/proc/self/fd")) == before
