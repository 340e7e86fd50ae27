"""What differs from HEAD goes with the snapshots: once, whole, so that `git apply` makes the work tree again."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.ids import content_hash
from chainstore.manager import course, worktree
from chainstore.manager.manager import SnapshotManager
from chainstore.manager.worktree import GIT_DIFF, look
from chainstore.repository import open as open_repository

HOSTILE = """
[user]
    name = a
    email = a@b
[color]
    ui = always
[diff]
    noprefix = true
    mnemonicPrefix = true
    relative = true
    context = 0
    renames = copies
    submodule = log
    external = false
[core]
    quotePath = false
    abbrev = 5
"""


@pytest.fixture(autouse=True)
def own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let git read a configuration that makes `git diff` print what nothing can apply."""
    if shutil.which("git") is None:
        pytest.skip("there is no git")
    (tmp_path / "gitconfig").write_text(HOSTILE)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"):
        monkeypatch.delenv(name, raising=False)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """Return a clean work tree of one commit."""
    root = tmp_path / "code"
    (root / "src" / "deep").mkdir(parents=True)
    for name, data in {
        "train.py": b"".join(b"line %d\n" % number for number in range(50)),
        "latin.txt": "gr\u00fc\u00dfe\n".encode("latin-1"),
        "windows.txt": b"one\r\ntwo\r\n",
        "no-end.txt": b"one\ntwo",
        "gone.py": b"print(1)\n",
        "old name.py": b"".join(b"kept %d\n" % number for number in range(50)),
        "weights.bin": bytes(range(256)) * 8,
        "run.sh": b"#!/bin/sh\n",
        "src/deep/model.py": b"width = 1\n",
        "empty": b"",
    }.items():
        (root / name).write_bytes(data)
    (root / "link").symlink_to("train.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def change(root: Path) -> None:
    """Change everything that can be changed in a work tree."""
    (root / "train.py").write_bytes((root / "train.py").read_bytes().replace(b"line 7\n", b"line seven  \n\n"))
    (root / "latin.txt").write_bytes("gr\u00fc\u00dfe, w\u00f6rtlich\n".encode("latin-1"))
    (root / "windows.txt").write_bytes(b"one\r\nthree\r\n")
    (root / "no-end.txt").write_bytes(b"one\nthree")
    (root / "gone.py").unlink()
    (root / "weights.bin").write_bytes(os.urandom(3000))
    (root / "run.sh").chmod(0o755)
    (root / "src" / "deep" / "model.py").write_bytes(b"width = 2\n")
    (root / "link").unlink()
    (root / "link").symlink_to("run.sh")
    (root / "empty").write_bytes(b"no more\n")
    git(root, "mv", "old name.py", "new name.py")
    with (root / "new name.py").open("ab") as file:
        file.write("\u65b0\n".encode())
    (root / "added.py").write_bytes(b"import os\n")
    git(root, "add", "added.py")


def tree(root: Path) -> dict[str, tuple[str, bytes]]:
    """Return what is in a work tree: kind and content of everything, by name."""
    found = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if name.split("/")[0] == ".git" or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_symlink():
            found[name] = "link", os.readlink(path).encode()
        else:
            executable = bool(path.stat().st_mode & stat.S_IXUSR)
            found[name] = "executable" if executable else "file", path.read_bytes()
    return found


def run(root: Path, code: Path, monkeypatch: pytest.MonkeyPatch, steps: int = 1, **options: Any) -> None:
    """Make snapshots from within a work tree."""
    monkeypatch.chdir(code)
    with SnapshotManager(root, mode="sync", on_signal=(), **options) as manager:
        for step in range(1, steps + 1):
            manager.save({"step": step, "w": np.full(1000, step)})


def told(root: Path) -> dict[str, Any]:
    """Return what the newest commit says of git."""
    with open_repository(root) as repo:
        meta: Any = repo.get_commit("main").meta
        return dict(meta["run"].get("git", {}))


# ---- there and back


def test_the_work_tree_can_be_made_again(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(code)
    (code / "untracked.py").write_bytes(b"")
    run(tmp_path / "run", code / "src", monkeypatch)
    said = told(tmp_path / "run")
    assert said["revision"] == git(code, "rev-parse", "HEAD") and said["dirty"] is True
    cat = [sys.executable, "-m", "chainstore.cli.main", "-C", str(tmp_path / "run"), "cat", "main", GIT_DIFF]
    done = subprocess.run(cat, capture_output=True)
    assert done.returncode == 0, done.stderr
    assert said["diff"] == {"name": GIT_DIFF, "bytes": len(done.stdout), "blake3": content_hash(done.stdout)}
    (tmp_path / "git.diff").write_bytes(done.stdout)
    git(tmp_path, "clone", "-q", str(code), "clone")
    clone = tmp_path / "clone"
    git(clone, "checkout", "-q", said["revision"])
    assert tree(clone) != tree(code)
    git(clone, "apply", str(tmp_path / "git.diff"))
    expected = tree(code)
    assert expected.pop("untracked.py")
    assert tree(clone) == expected


def test_a_merge_that_was_not_finished_can_be_made_again(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(code, "checkout", "-q", "-b", "other")
    (code / "src" / "deep" / "model.py").write_bytes(b"width = 3\n")
    git(code, "commit", "-q", "-a", "-m", "three")
    git(code, "checkout", "-q", "-")
    (code / "src" / "deep" / "model.py").write_bytes(b"width = 4\n")
    git(code, "commit", "-q", "-a", "-m", "four")
    assert subprocess.run(["git", "merge", "other"], cwd=code, capture_output=True).returncode
    run(tmp_path / "run", code, monkeypatch)
    with open_repository(tmp_path / "run") as repo:
        (tmp_path / "git.diff").write_bytes(repo["main"].read_file(GIT_DIFF))
    git(tmp_path, "clone", "-q", str(code), "clone")
    git(tmp_path / "clone", "apply", str(tmp_path / "git.diff"))
    assert b"<<<<<<<" in (tmp_path / "clone" / "src" / "deep" / "model.py").read_bytes()
    assert tree(tmp_path / "clone") == tree(code)


def test_folders_to_be_published_are_made_without_it(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "train.py").write_text("password = 'secret'\n")
    run(tmp_path / "run", code, monkeypatch, track_files=[code / "run.sh"])
    for form, files in (("hf", {"run.sh", "model.safetensors"}), ("dir", {"run.sh", GIT_DIFF})):
        out = tmp_path / form
        words = ["-C", str(tmp_path / "run"), "checkout", "main", "-o", str(out), "--format", form]
        done = subprocess.run([sys.executable, "-m", "chainstore.cli.main", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert files <= set(os.listdir(out))
        assert (GIT_DIFF in os.listdir(out)) is (form == "dir")
        assert (f"{GIT_DIFF} left out" in done.stderr) is (form == "hf")


@pytest.mark.parametrize("mode", ["process", "thread", "sync"])
def test_it_is_stored_once_however_many_snapshots_there_are(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    (code / "weights.bin").write_bytes(os.urandom(100_000))
    monkeypatch.chdir(code)
    for part in range(2):  # two runs with the same code
        with SnapshotManager(tmp_path / "run", mode=mode, on_signal=(), when_full="wait") as manager:  # type: ignore
            manager.load_latest() if part else None
            for step in range(part * 5 + 1, part * 5 + 6):
                manager.save({"step": step, "w": np.full(1000, step)})
    with open_repository(tmp_path / "run") as repo:
        commits = list(repo.log())
        assert len(commits) == 10
        assert [commit.step for commit in commits if GIT_DIFF not in repo[commit].files] == []
        chunks = {e.chunk for commit in commits for entry in repo[commit].file_entries for e in entry.extents}
        (nbytes,) = {repo[commit].file_info(GIT_DIFF)[0] for commit in commits}
        assert nbytes > 100_000
        assert len(chunks) == 1
        assert sum(commit.stats.new_bytes for commit in commits) < nbytes + 10 * 20_000


# ---- where there is none


def test_of_a_clean_work_tree_nothing_is_stored(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "untracked.py").write_bytes(b"secret\n")
    run(tmp_path / "run", code, monkeypatch)
    assert told(tmp_path / "run") == {"revision": git(code, "rev-parse", "HEAD"), "dirty": False}
    with open_repository(tmp_path / "run") as repo:
        assert repo["main"].files == []


def test_what_is_larger_than_1_mib_is_left_out_and_the_commit_says_so(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "weights.bin").write_bytes(os.urandom(1_500_000))
    run(tmp_path / "run", code, monkeypatch)
    said = told(tmp_path / "run")
    assert said["dirty"] is True and said["diff"] == {"left_out": "it is larger than 1 MiB"}
    with open_repository(tmp_path / "run") as repo:
        assert repo["main"].files == []


def say_in_the_environment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIN_GIT_DIFF", "off")


def say_in_the_users_settings(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(os.environ["CHAIN_CONFIG_DIR"], "config.toml").write_text("git_diff = false\n")


def say_in_the_repository(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SnapshotManager(place, mode="sync", on_signal=()) as manager:
        manager.repo.set_setting("git_diff", "no")


def say_nonsense(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAIN_GIT_DIFF", "perhaps")


@pytest.mark.parametrize(
    ("say", "why"),
    [
        (say_in_the_environment, "git_diff is no (environment)"),
        (say_in_the_users_settings, "git_diff is no (the user's settings)"),
        (say_in_the_repository, "git_diff is no (the repository)"),
        (say_nonsense, "perhaps"),
    ],
)
def test_whoever_does_not_want_it_stored_says_so(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, say: Callable[..., None], why: str
) -> None:
    (code / "train.py").write_text("password = 'secret'\n")
    say(tmp_path / "run", monkeypatch)
    run(tmp_path / "run", code, monkeypatch)
    said = told(tmp_path / "run")
    assert said["dirty"] is True and why in said["diff"]["left_out"]
    with open_repository(tmp_path / "run") as repo:
        assert repo["main"].files == []


def test_outside_of_a_work_tree_and_before_a_first_commit_nothing_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "new").mkdir()
    (tmp_path / "plain").mkdir()
    git(tmp_path / "new", "init", "-q")
    for name in ("new", "plain"):
        run(tmp_path / f"run-{name}", tmp_path / name, monkeypatch)
        assert told(tmp_path / f"run-{name}") == {}


# ---- git that does not do what it should


def fake_git(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a program called git first."""
    folder.mkdir()
    (folder / "git").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "git").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_without_git_nothing_is_said(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    run(tmp_path / "run", code, monkeypatch)
    assert told(tmp_path / "run") == {}


def test_git_that_fails_says_nothing(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_git(tmp_path / "bin", monkeypatch, "echo nonsense; exit 128")
    run(tmp_path / "run", code, monkeypatch)
    assert told(tmp_path / "run") == {}


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Return where a program writes the ids of processes, all of which must have ended in the end."""
    yield tmp_path / "pids"
    deadline = time.monotonic() + 10
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        while Path(f"/proc/{pid}").exists():
            assert time.monotonic() < deadline, f"{pid} still runs"
            time.sleep(0.01)


def test_snapshots_do_not_wait_for_git_that_hangs(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, pids: Path
) -> None:
    monkeypatch.setattr(course, "_DESCRIBE_SECONDS", 0.0)
    monkeypatch.setattr(worktree, "_SECONDS", 600.0)
    fake_git(tmp_path / "bin", monkeypatch, f'echo $$ >> "{pids}"; exec sleep 300')
    run(tmp_path / "run", code, monkeypatch, steps=3)
    (describing,) = [thread for thread in threading.enumerate() if thread.name == "chainstore-describe"]
    with open_repository(tmp_path / "run") as repo:
        assert [commit.step for commit in repo.log()] == [3, 2, 1]
    assert told(tmp_path / "run") == {}
    assert describing.is_alive()  # git hangs still
    deadline = time.monotonic() + 30
    while not pids.exists() or not pids.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(int(pids.read_text()), signal.SIGKILL)
    describing.join(30)
    assert not describing.is_alive()


def test_git_that_takes_too_long_is_ended_with_all_that_it_started(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, pids: Path
) -> None:
    monkeypatch.setattr(worktree, "_SECONDS", 0.2)
    fake_git(tmp_path / "bin", monkeypatch, f'sleep 300 & echo $$ $! >> "{pids}"; wait')
    assert look(code) == worktree.WorkTree()


def test_git_that_closes_its_output_and_goes_on_is_ended_too(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch, pids: Path
) -> None:
    monkeypatch.setattr(worktree, "_SECONDS", 0.2)
    fake_git(tmp_path / "bin", monkeypatch, f'echo $$ >> "{pids}"; echo abc; exec >&-; exec sleep 300')
    assert look(code) == worktree.WorkTree()


def test_a_diff_that_git_does_not_make_is_left_out(tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "train.py").write_text("changed\n")
    real = shutil.which("git")
    fake_git(tmp_path / "bin", monkeypatch, f'case "$*" in *--binary*) echo half; exit 1;; esac; exec "{real}" "$@"')
    found = look(code)
    assert found.told["dirty"] is True and "git failed" in found.told["diff"]["left_out"]
    assert not found.files


def test_of_a_submodule_its_commit_is_told_and_not_what_is_changed_in_it(
    tmp_path: Path, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "clone", "-q", str(code), "library")
    git(code, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library"), "library")
    git(code, "commit", "-q", "-a", "-m", "with a submodule")
    (code / "library" / "train.py").write_bytes(b"secret\n")
    found = look(code)
    assert found.told["diff"] == {"left_out": "only what submodules hold differs"} and not found.files
    git(code / "library", "commit", "-q", "-a", "-m", "secret")
    text = look(code).files[GIT_DIFF].data.decode()
    assert f"+Subproject commit {git(code / 'library', 'rev-parse', 'HEAD')}\n" in text and "secret" not in text


def test_a_resume_with_other_code_says_so(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code)
    runs = tmp_path / "runs"

    def notices() -> list[str]:
        told: list[str] = []
        with SnapshotManager(
            runs, mode="sync", on_signal=(), observer=lambda event: told.append(str(event))
        ) as manager:
            if manager.repo.branches():
                manager.load_latest()
            manager.save({"x": np.zeros(3)})
        return [text for text in told if "run-differs" in text]

    assert notices() == []
    assert notices() == []  # the same code
    (code / "train.py").write_text("edited\n")
    with pytest.warns(RuntimeWarning, match="not committed of the code was something else"):
        (text,) = notices()
    before = git(code, "rev-parse", "HEAD")
    git(code, "commit", "-qam", "edited")
    with pytest.warns(RuntimeWarning, match=f"the code was at {before[:12]} and is at"):
        (text,) = notices()
    assert "may go on otherwise" in text
