"""Where a repository may lie: full disks, read-only ones, network ones, and disks that fail."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.errors import ChainError, ReadOnly, StorageError, StoreFull, UnsuitablePlace
from chainstore.observe import Notice
from chainstore.repository import rebuild
from chainstore.storage import fs, mounts
from tests.repository.conftest import Child, noise

Mounter = Callable[..., Path]


def _unable(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounter]:
    """Give a function that mounts something on a new directory; all is unmounted at the end."""
    places: list[Path] = []

    def mount(*arguments: str, name: str = "disk") -> Path:
        place = tmp_path / name
        place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *arguments, str(place)], capture_output=True, text=True)
        if done.returncode:
            _unable(f"mount is not permitted here: {done.stderr.strip()}")
        places.append(place)
        return place

    yield mount
    for place in reversed(places):
        subprocess.run(["umount", "-l", str(place)], check=True)


def state(seed: int, nbytes: int = 600_000) -> dict[str, object]:
    return {"w": noise(seed, nbytes), "step": seed}


def same(a: object, b: dict[str, object]) -> bool:
    return isinstance(a, dict) and a["step"] == b["step"] and np.array_equal(a["w"], b["w"])  # type: ignore[arg-type]


def fill(disk: Path, leave: int) -> Path:
    """Take all space of a disk but `leave` bytes; return the file that takes it."""
    ballast = disk / "ballast"
    room = fs.free_bytes(disk) - leave
    with open(ballast, "ab") as file:
        while room > 0:
            try:
                room -= file.write(bytes(min(room, 1 << 16)))
                file.flush()
            except OSError:
                break
    return ballast


# ---- full


@pytest.mark.parametrize("left", [0, 8_192, 100_000, 700_000, 2_000_000])
def test_a_full_disk_loses_nothing_that_was_acknowledged(mounted: Mounter, left: int) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=16m", "none")
    repo = cs.open(disk / "r", create=True)
    repo.commit(state(0), "0")
    ballast = fill(disk, left)
    acknowledged = 0
    with pytest.raises(StoreFull) as caught:
        for seed in range(1, 30):
            repo.commit(state(seed), str(seed))
            acknowledged = seed
    assert caught.value.exit_code == 16
    assert acknowledged == (left - 8_192) // 610_000 if left > 700_000 else acknowledged <= 1
    for seed in range(acknowledged + 1):
        assert same(repo.checkout(f"main~{acknowledged - seed}"), state(seed))
    with pytest.raises(StoreFull):
        repo.commit(state(50), "again")
    with cs.open(disk / "r", readonly=True) as reader:
        assert same(reader.checkout(), state(acknowledged))
    ballast.unlink()
    repo.commit(state(99), "after")
    assert [commit.message for commit in repo.log()] == ["after", *map(str, range(acknowledged, -1, -1))]
    assert repo.verify("data").ok
    repo.close()
    with cs.open(disk / "r") as again:
        assert same(again.checkout(), state(99))


def test_a_full_disk_can_be_opened_and_read(mounted: Mounter) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=8m", "none")
    with cs.open(disk / "r", create=True) as repo:
        repo.commit(state(0), "0")
    fill(disk, 0)
    for readonly in (False, True):
        with cs.open(disk / "r", readonly=readonly) as repo:
            assert same(repo.checkout(), state(0))
            assert repo.verify("data").ok
    with cs.open(disk / "r") as repo, pytest.raises(StoreFull):
        repo.commit(state(1))


def test_many_small_commits_fill_a_disk_without_harm(mounted: Mounter) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=8m", "none")
    repo = cs.open(disk / "r", create=True)
    repo.commit({"n": 0})
    ballast = fill(disk, 400_000)
    done = 0
    with pytest.raises(StoreFull):
        while True:
            repo.commit({"n": done + 1}, str(done + 1))
            done += 1
    assert done
    assert repo.checkout() == {"n": done}
    assert repo.verify("data").ok
    ballast.unlink()
    repo.commit({"n": -1})
    repo.close()
    with cs.open(disk / "r") as again:
        assert again.checkout("main~1") == {"n": done}
        assert again.verify("data").ok


def test_a_disk_too_small_for_a_repository_is_full_and_a_larger_one_is_not(mounted: Mounter) -> None:
    disk = mounted("-t", "tmpfs", "-o", "size=3m", "none")
    ballast = fill(disk, 1_200_000)
    with pytest.raises(StoreFull):
        cs.open(disk / "r", create=True)
    ballast.unlink()
    with cs.open(disk / "r", create=True) as repo:
        repo.commit({"n": 1})
        assert repo.verify("data").ok


LIMITED = """
import resource
repo = cs.open(root)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
done = 0
try:
    for seed in range(1, 100):
        repo.commit({"w": np.random.default_rng(seed).bytes(300_000)}, str(seed))
        done = seed
except errors.StoreFull as error:
    print(done)
else:
    sys.exit("nothing happened")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert [commit.message for commit in repo.log()] == [str(n) for n in range(done, -1, -1)]
repo.commit({}, "after")
assert repo.verify("data").ok
"""


@pytest.mark.parametrize("limit", [60_000, 400_000, 1_500_000])
def test_a_limit_on_the_size_of_files_is_a_full_disk(tmp_path: Path, child: Child, limit: int) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit({}, "0")
    done = int(child(LIMITED, tmp_path / "r", str(limit)).stdout)
    with cs.open(tmp_path / "r") as repo:
        assert [commit.message for commit in repo.log()] == ["after", *(str(n) for n in range(done, -1, -1))]
        assert repo.verify("data").ok


# ---- failing


def failing(monkeypatch: pytest.MonkeyPatch, name: str, where: str, code: int) -> list[int]:
    """Make one kind of operation fail once, on paths that hold `where`."""
    left = [1]

    def failpoint(operation: str, path: Path) -> None:
        if operation == name and where in str(path) and left[0]:
            left[0] -= 1
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fs, "failpoint", failpoint)
    return left


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("fdatasync", "/packs/"),
        ("pwrite", "/packs/"),
        ("truncate", "/packs/"),
        ("flock", "/packs/"),
        ("create", "/packs/"),
        ("pwrite", "/log/"),
        ("fdatasync", "/log/"),
    ],
)
def test_after_one_failure_of_the_disk_the_next_commit_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str, code: int
) -> None:
    repo = cs.open(tmp_path / "r", create=True)
    if name != "create":
        repo.commit(state(0), "0")
    left = failing(monkeypatch, name, where, code)
    with pytest.raises(StoreFull if code == errno.ENOSPC else StorageError):
        repo.commit(state(1), "1")
    assert left == [0]
    before = [commit.message for commit in repo.log()]
    assert "1" not in before
    repo.commit(state(2), "2")
    assert [commit.message for commit in repo.log()] == ["2", *before]
    assert repo.verify("data").ok
    repo.close()
    with cs.open(tmp_path / "r") as again:
        assert again.verify("data").ok


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_lease_that_takes_no_note_stops_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        left = failing(monkeypatch, "pwrite", "/leases/", code)
        repo.commit({"n": 0}, "0")
        assert left == [0]
        repo.commit({"n": 1}, "1")
        assert [commit.message for commit in repo.log()] == ["1", "0"]


# ---- read-only


def test_a_read_only_file_system_can_be_read_and_says_so_when_written(mounted: Mounter, tmp_path: Path) -> None:
    with cs.open(tmp_path / "disk" / "r", create=True) as repo:
        repo.commit(state(0), "0")
    disk = mounted("--bind", str(tmp_path / "disk"))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(disk)], check=True)
    with cs.open(disk / "r", readonly=True) as repo:
        assert same(repo.checkout(), state(0))
        assert repo["main"].keys() == ["w", "step"]
        assert repo.verify("data").ok
        with pytest.raises(ReadOnly):
            repo.commit(state(1))
        with pytest.raises(ReadOnly):
            repo.tag("v1")
        with pytest.raises(ReadOnly):
            repo.switch("other", create=True)
    for write in (cs.open, rebuild, lambda path: cs.open(path.parent / "new", create=True)):
        with pytest.raises(ReadOnly) as caught:
            write(disk / "r")
        assert caught.value.exit_code == 1


def test_a_repository_opened_for_reading_stays_as_it_is(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as repo:
        repo.commit(state(0), "0")

    def contents() -> dict[str, tuple[int, bytes]]:
        files = (path for path in (tmp_path / "r").rglob("*") if path.is_file() and path.name != "lock.mdb")
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = contents()
    with cs.open(tmp_path / "r", readonly=True) as reader:
        reader.checkout()
        for change in (
            lambda: reader.commit(state(1)),
            lambda: reader.branch("b"),
            lambda: reader.tag("t"),
            lambda: reader.delete_ref("main"),
            lambda: reader.reset("main", "main"),
            lambda: reader.detach("main"),
            lambda: reader.add_key(cs.Passphrase("p")),
            lambda: reader.rebuild_index(),
            lambda: reader.writer().__enter__(),
        ):
            with pytest.raises(ChainError) as caught:
                change()
            assert isinstance(caught.value, ReadOnly) or caught.value.code == "invalid-input"
    assert contents() == before


def test_a_reader_sees_what_a_writer_commits(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True) as writer, cs.open(tmp_path / "r", readonly=True) as reader:
        for seed in range(3):
            writer.commit(state(seed, 50_000))
            assert same(reader.checkout(), state(seed, 50_000))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_somebody_who_may_not_write_may_read(tmp_path: Path, child: Child, own_settings: Path) -> None:
    root = Path("/tmp") / f"chainstore-test-{os.getpid()}"
    try:
        with cs.open(root, create=True) as repo:
            repo.commit({"w": np.arange(10_000)})
        shutil.copy(own_settings / "user.key", root / "user.key")
        for path in (root, *root.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        child(
            """
            cs.open(root, readonly=True).close()  # everything is imported now
            os.setuid(65534)
            with cs.open(root, readonly=True) as repo:
                assert repo.checkout()["w"][-1] == 9999
            try:
                cs.open(root)
            except errors.ReadOnly as error:
                assert str(root) in str(error)
            else:
                sys.exit("it was opened for writing")
            """,
            root,
            env={"CHAIN_CONFIG_DIR": "/nowhere"},
        )
    finally:
        shutil.rmtree(root)


# ---- network


NETWORK = ["nfs4", "lustre", "fuse.sshfs", "cifs"]


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Let a directory look like one on a network disk; returns it."""

    def pretend(kind: str, *options: str, name: str = "net") -> Path:
        there = mounts.Mount(str(tmp_path / name), kind, frozenset(options))
        before = fs.parse_mounts
        monkeypatch.setattr(fs, "parse_mounts", lambda text: [*before(text), there])
        return tmp_path / name

    return pretend


@pytest.mark.parametrize("kind", NETWORK)
def test_on_a_network_disk_a_directory_for_the_index_may_be_named(
    tmp_path: Path, network: Callable[..., Path], kind: str
) -> None:
    net = network(kind)
    with cs.open(net / "r", create=True, index_dir=tmp_path / "local") as repo:
        repo.commit(state(1), "on the net")
    assert not list(net.rglob("*.mdb"))
    with cs.open(net / "r", index_dir=tmp_path / "local") as repo:
        assert same(repo.checkout(), state(1))
        repo.rebuild_index()
        repo.commit(state(2), "after a rebuild")
        assert repo.verify("data").ok


@pytest.mark.parametrize("kind", NETWORK)
def test_on_a_network_disk_the_index_goes_to_a_local_one_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: Callable[..., Path], kind: str
) -> None:
    net, told = network(kind), []
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    with cs.open(net / "r", create=True, observer=told.append) as repo:
        repo.commit(state(1), "on the net")
        chosen = repo.status().index_outside
        assert chosen is not None and chosen.is_relative_to(tmp_path / "tmp" / "chainstore" / "index" / repo.id)
    assert not list(net.rglob("*.mdb"))
    assert [event.text for event in told if isinstance(event, Notice) and event.code == "index-place"] == [
        f"{net / 'r'} is on a network disk; its index was made in {chosen.parent}"
    ]
    told.clear()
    with cs.open(net / "r", observer=told.append) as repo:
        assert same(repo.checkout(), state(1))
        assert repo.status().index_outside == chosen
        repo.rebuild_index()
        assert repo.status().index_outside != chosen
        repo.commit(state(2), "after a rebuild")
        assert repo.verify("data").ok
    assert sum(1 for _ in (tmp_path / "tmp").rglob("data.mdb")) == 1
    assert sum(1 for event in told if isinstance(event, Notice) and event.code == "index-place") == 1


def test_a_place_for_the_index_is_passed_over_where_it_is_no_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: Callable[..., Path]
) -> None:
    net = network("nfs")
    network("lustre", name="scratch")
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("CHAIN_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "tmp" / "chainstore").write_text("in the way")
    with cs.open(net / "r", create=True) as repo:
        chosen, name = repo.status().index_outside, repo.id
    assert chosen.is_relative_to(tmp_path / "cache" / "index")
    assert chosen.parent.stat().st_mode & 0o777 == 0o700
    # others may write to it: who knows whose index that is
    chosen.parent.chmod(0o777)
    with pytest.raises(UnsuitablePlace) as caught:
        cs.open(net / "r")
    assert all(why in str(caught.value) for why in ("is on lustre", "cannot be written", "others may write to"))
    assert all(way in caught.value.hint for way in ("index_dir=", "--index-dir", "CHAIN_INDEX_DIR"))
    assert caught.value.exit_code == 16
    monkeypatch.setenv("CHAIN_INDEX_DIR", str(tmp_path / "mine"))
    with cs.open(net / "r") as repo:
        assert repo.status().index_outside.parent == tmp_path / "mine" / name


def test_an_index_that_another_place_of_this_machine_has_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: Callable[..., Path]
) -> None:
    net = network("fuse.sshfs")
    with cs.open(net / "r", create=True) as repo:
        repo.commit({"n": 1})
        chosen = repo.status().index_outside
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))  # as in a job, where the shell before had none
    with cs.open(net / "r") as repo:
        assert repo.status().index_outside == chosen
        repo.commit({"n": 2})


def test_an_index_beside_a_repository_that_forgot_it_is_made_anew_inside(tmp_path: Path) -> None:
    with cs.open(tmp_path / "r", create=True, index_dir=tmp_path / "local") as repo:
        repo.commit({"n": 1})
    with cs.open(tmp_path / "r", readonly=True) as repo:  # reads without touching it
        assert repo.checkout() == {"n": 1}
        assert repo.status().index_private
    with cs.open(tmp_path / "r", index_dir=tmp_path / "local") as repo:
        assert not repo.status().index_private
    with cs.open(tmp_path / "r") as repo:
        assert repo.status().index_outside is None
        repo.commit({"n": 2})
        assert repo.verify("data").ok


def test_repositories_may_share_a_directory_for_their_indexes(tmp_path: Path) -> None:
    local = tmp_path / "local"
    one = cs.open(tmp_path / "one", create=True, index_dir=local)
    two = cs.open(tmp_path / "two", create=True, index_dir=local)
    one.commit({"of": 1})
    two.commit({"of": 2})
    two.close()
    one.rebuild_index()
    assert one.checkout() == {"of": 1}
    with cs.open(tmp_path / "two", index_dir=local) as again:
        assert again.checkout() == {"of": 2}


def test_a_rebuild_leaves_everything_else_in_the_directory_of_indexes_alone(tmp_path: Path) -> None:
    mine = [tmp_path / "local" / "thesis" / "chapter1.tex", tmp_path / "local" / ("a" * 32) / "data.csv"]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_text("years of work")
    with cs.open(tmp_path / "r", create=True, index_dir=tmp_path / "local") as repo:
        repo.commit({"n": 1})
        repo.rebuild_index()
        assert repo.checkout() == {"n": 1}
    assert all(path.read_text() == "years of work" for path in mine)
    assert sum(1 for _ in (tmp_path / "local").rglob("data.mdb")) == 1
