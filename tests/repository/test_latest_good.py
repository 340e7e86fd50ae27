"""The latest good commit and repair, as a user of the face sees them."""

import shutil
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.errors import InvalidInput, RevisionNotFound, SnapshotNotFound, WrongRepository
from chainstore.repository import heal_small_files, verify_without_key
from tests.repository.conftest import noise


def state(seed: int) -> dict[str, object]:
    return {"model": {"shared": noise(0, 100_000), "own": noise(seed, 100_000)}, "step": seed}


@pytest.fixture(params=[True, False], ids=["encrypted", "plain"])
def root(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    with cs.init(tmp_path / "r", encrypt=request.param) as repo:
        for seed in range(1, 4):
            repo.commit(state(seed), str(seed), step=seed)
    return tmp_path / "r"


@pytest.fixture
def copy(root: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(root, tmp_path / "copy"))


def packs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "packs").rglob("*") if path.is_file())


def spoil(root: Path, revision: str, key: str) -> None:
    """Flip a bit in the middle of the first chunk of a tensor."""
    with cs.open(root) as repo, repo._db.view() as view:
        entry = next(e for e in repo[revision].manifest.entries if e.path[-1:] == (key,))
        place = view.place(entry.extents[0].chunk)
        assert place is not None
        path = repo._db.packs.path(view.pack(place.pack).pack)
    data = bytearray(path.read_bytes())
    data[place.offset + place.length // 2] ^= 1
    path.write_bytes(data)


def test_the_latest_good_commit_of_a_branch_is_found(root: Path):
    spoil(root, "main", "own")
    with cs.open(root, readonly=True) as repo:
        good = repo.latest_good()
        assert good.step == 2 and repo.latest_good("main") == good
        assert (repo.checkout(good)["model"]["own"] == noise(2, 100_000)).all()
    with cs.open(root) as repo:
        repo.branch("side", "main~2")
        assert repo.latest_good("side").step == 1


def test_without_a_good_commit_there_is_none(root: Path):
    spoil(root, "main", "shared")
    with cs.open(root) as repo:
        with pytest.raises(SnapshotNotFound, match="main"):
            repo.latest_good()
        with pytest.raises(RevisionNotFound, match="nowhere"):
            repo.latest_good("nowhere")


def test_before_the_first_commit_there_is_none(tmp_path: Path):
    with cs.init(tmp_path / "empty", encrypt=False) as repo, pytest.raises(SnapshotNotFound):
        repo.latest_good()


@pytest.mark.parametrize("given", [str, Path, cs.open], ids=["text", "path", "repository"])
def test_a_flipped_bit_is_named_by_commit_and_path_and_healed(root: Path, copy: Path, given):
    spoil(root, "main~1", "own")
    with cs.open(root) as repo:
        (damage,) = repo.verify("data").damaged
        assert damage.paths == ("model/own",) and damage.commits == (str(repo.resolve("main~1")),)
        source = given(copy)
        report = repo.verify("data", repair_from=source)
        if isinstance(source, cs.Repository):
            source.close()
        assert report.ok and report.healed == [damage] and report.taken == 1
        assert repo.verify("data").ok
        assert (repo["main~1"]["model"]["own"] == noise(2, 100_000)).all()
    with cs.open(copy) as repo:
        assert repo.verify("data").ok


def test_a_lost_pack_is_named_by_commit_and_path_and_healed(root: Path, copy: Path):
    for pack in packs(root):
        pack.unlink()
    with cs.open(root) as repo:
        lost = repo.verify("data").damaged
        assert {path for damage in lost for path in damage.paths} >= {"model/own", "model/shared", "step"}
        assert {id for damage in lost for id in damage.commits} == {str(commit.id) for commit in repo.log()}
        assert repo.verify("data", repair_from=copy).ok
        assert repo.verify("data").ok
    with cs.open(root) as repo:
        for seed in range(1, 4):
            found = repo.checkout(f"step:{seed}")
            assert (found["model"]["own"] == noise(seed, 100_000)).all()
        repo.commit(state(4), "4")
        assert not repo.rebuild_index().problems and repo.verify("data").ok


def test_a_rotten_log_is_healed_before_anything_is_taken(root: Path, copy: Path):
    log = root / "log" / "00000001"
    with cs.open(root) as repo:
        data = bytearray(log.read_bytes())
        data[len(data) // 2] ^= 1
        log.write_bytes(data)
        spoil(copy, "main", "own")
        report = repo.verify("data", repair_from=copy)
        assert report.ok and "log" in {damage.check for damage in report.healed}
        assert repo.verify("data").ok


def test_a_copy_of_something_else_is_refused(root: Path, tmp_path: Path):
    with cs.init(tmp_path / "other", encrypt=False) as other:
        other.commit({"x": 1})
    with cs.open(root) as repo:
        kind = cs.errors.Denied if repo.encrypted else WrongRepository
        with pytest.raises(kind):
            repo.verify("data", repair_from=tmp_path / "other")
        with pytest.raises(cs.errors.RepositoryNotFound):
            repo.verify("data", repair_from=tmp_path / "nowhere")


def test_a_sample_is_told_and_reads_no_more(root: Path):
    with cs.open(root) as repo:
        every = repo.verify("data").chunks_read
        parts = [repo.verify("data", sample=f"{number}/3") for number in (1, 2, 3)]
        assert sum(part.chunks_read for part in parts) == every and all(part.seed is None for part in parts)
        drawn = repo.verify("data", sample="30%")
        again = repo.verify("data", sample="30%", seed=drawn.seed)
        assert (again.sample, again.chunks_read, again.read_bytes) == ("30%", drawn.chunks_read, drawn.read_bytes)


def test_damage_is_found_by_the_part_it_lies_in(root: Path):
    spoil(root, "main", "own")
    with cs.open(root) as repo:
        found = [len(repo.verify("data", sample=f"{number}/5").damaged) for number in range(1, 6)]
        assert sorted(found) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "how",
    [
        {"sample": "5%"},
        {"level": "data", "seed": 3},
        {"level": "data", "sample": "nonsense"},
        {"no_key": True, "sample": "5%"},
        {"no_key": True, "level": "quick"},
        {"dry_run": True},
        {"level": "records"},
    ],
)
def test_options_that_contradict_each_other_are_refused(root: Path, how: dict[str, object]):
    with cs.open(root) as repo, pytest.raises(InvalidInput):
        repo.verify(**how)


def test_without_a_key_rot_is_found(root: Path, own_settings: Path, monkeypatch: pytest.MonkeyPatch):
    assert verify_without_key(root).ok
    with cs.open(root) as repo:
        assert repo.verify(no_key=True).ok
    spoil(root, "main", "own")
    for key in own_settings.rglob("*"):
        if key.is_file():
            key.unlink()
    report = verify_without_key(root)
    (damage,) = report.damaged
    assert damage.pack == packs(root)[0].name and damage.offset >= 0 and len(damage.id) == 64
    assert report.level == "records" and report.records > 10


def test_small_files_are_healed_where_nothing_opens_without_them(root: Path, copy: Path):
    names = [path.name for path in root.iterdir() if path.name.startswith(("format", "keyring"))]
    whole = {name: (root / name).read_bytes() for name in names}
    for name in names:
        (root / name).write_bytes(b"rot")
    with pytest.raises(cs.errors.Damaged):
        cs.open(root)
    assert heal_small_files(root, copy, dry_run=True) == []
    assert sorted(heal_small_files(root, copy)) == sorted(names)
    assert {name: (root / name).read_bytes() for name in names} == whole
    with cs.open(root) as repo:
        assert repo.verify("data").ok


def test_a_whole_repository_is_not_touched_by_a_repair(root: Path, copy: Path):
    with cs.open(root) as repo:
        before = {
            path: path.read_bytes()
            for folder in ("packs", "log")
            for path in (root / folder).rglob("*")
            if path.is_file()
        }
        report = repo.verify("data", repair_from=copy)
        assert report.ok and report.healed == [] and report.taken == 0
        assert {path: path.read_bytes() for path in before} == before and not list((root / "quarantine").iterdir())


def test_arrays_come_back_bit_for_bit_after_two_half_damaged_copies_healed_each_other(root: Path, copy: Path):
    spoil(root, "main", "own")
    spoil(copy, "main", "shared")
    spoil(copy, "main~2", "own")
    with cs.open(root) as repo:
        assert repo.verify("data", repair_from=copy).ok
    with cs.open(copy) as repo:
        assert repo.verify("data", repair_from=root).ok
    for path in (root, copy):
        with cs.open(path) as repo:
            assert repo.verify("data").ok
            for seed in range(1, 4):
                assert np.array_equal(repo[f"step:{seed}"]["model"]["own"], noise(seed, 100_000))
