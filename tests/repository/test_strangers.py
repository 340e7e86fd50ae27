"""Files that are not what they were: cut off, of another repository, of another time, of a later version."""

import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.crypto.keys import Argon2Cost, generate_key_file
from chainstore.errors import (
    ChainError,
    Damaged,
    FormatTooNew,
    IdMismatch,
    InvalidInput,
    NotFound,
    StaleKeyring,
    WrongKey,
    WrongRepository,
)
from chainstore.ids import fingerprint
from chainstore.model.frame import FIXED_BYTES, crc32c
from chainstore.model.wire import encode
from chainstore.repository import rebuild
from tests.repository.conftest import noise

CHEAP = Argon2Cost(memory_kib=64, passes=1, lanes=1)


def passphrase(text: str) -> cs.Passphrase:
    return cs.Passphrase(text, CHEAP)


def state(seed: int) -> dict[str, object]:
    return {"shared": noise(0, 100_000), "own": noise(seed, 100_000), "step": seed}


def made(path: Path, commits: int = 2, **how: object) -> Path:
    with cs.init(path, **how) as repo:  # type: ignore[arg-type]
        for seed in range(1, commits + 1):
            repo.commit(state(seed), str(seed), step=seed)
    return path


def packs(root: Path) -> list[Path]:
    return sorted(path for path in (root / "packs").rglob("*") if path.is_file())


def reads(root: Path, revision: str, key: str) -> object:
    with cs.open(root, readonly=True) as repo:
        return repo[revision][key]


# ---- packs


@pytest.mark.parametrize("left", [0, 10, 100, 50_000, 150_000])
def test_a_truncated_pack_is_damage_and_nothing_wrong_is_handed_out(tmp_path: Path, left: int) -> None:
    root = made(tmp_path / "r")
    (pack,) = packs(root)
    os.truncate(pack, left)
    with cs.open(root) as repo:
        with pytest.raises(IdMismatch) as caught:
            repo.checkout()
        assert caught.value.exit_code == 4
        assert caught.value.commit == str(repo.resolve("main"))
        assert [commit.message for commit in repo.log()] == ["2", "1"]  # commits are small, the index holds them
        assert not repo.verify("links").ok
        assert pack.name in " ".join(damage.what for damage in repo.verify("quick").damaged)


def test_work_goes_on_after_a_pack_was_truncated_and_heals_what_is_committed_again(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    (pack,) = packs(root)
    os.truncate(pack, 50_000)
    with cs.open(root) as repo:
        repo.commit({"other": noise(9, 100_000)}, "goes on")
        assert (repo["main"]["other"] == noise(9, 100_000)).all()
        for key in ("shared", "own"):
            with pytest.raises(IdMismatch):
                repo["step:2"][key]
        repo.commit(state(2), "again")
        assert (repo["step:2"]["own"] == noise(2, 100_000)).all()
    assert pack.stat().st_size == 50_000


def test_a_rebuild_after_a_pack_was_truncated_keeps_what_the_old_index_holds_whole(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    with cs.open(root) as repo, repo._db.view() as view:
        place = view.place(repo.resolve("step:1"))
        assert place is not None
    os.truncate(packs(root)[0], place.offset)  # the chunks of the first commit are there, its record is not
    with cs.open(root) as repo:
        first, second = repo.resolve("step:1"), repo.resolve("step:2")
        assert repo.rebuild_index().moved == {"heads/main": (str(second), str(first))}
        assert (repo.checkout()["own"] == noise(1, 100_000)).all()
        assert repo["main@{1}"]["step"] == 2
        repo.commit({"n": 1}, "after a rebuild")
        assert [commit.message for commit in repo.log()] == ["after a rebuild", "1"]


def test_a_rebuild_leaves_a_branch_without_a_complete_commit_where_it_is(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    os.truncate(packs(root)[0], 50_000)
    with cs.open(root) as repo:
        report = repo.rebuild_index()
        assert report.moved == {} and any("heads/main" in problem for problem in report.problems)
        assert [commit.message for commit in repo.log()] == ["2", "1"]
        assert repo["main"]["step"] == 2
        repo.commit({"n": 1}, "after a rebuild")
        assert repo.checkout() == {"n": 1}


def test_a_rebuild_prefers_the_old_index_to_small_records_that_rotted_in_their_pack(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    (pack,) = packs(root)
    with cs.open(root) as repo, repo._db.view() as view:
        place = view.place(repo.resolve("main"))
        assert place is not None
    data = bytearray(pack.read_bytes())
    data[place.offset + FIXED_BYTES + 20] ^= 1
    pack.write_bytes(data)
    assert not rebuild(root).moved
    with cs.open(root) as repo:
        assert [commit.message for commit in repo.log()] == ["2", "1"]
        assert repo.verify("links").ok
        (damage,) = repo.verify("data").damaged
        assert damage.id == str(repo.resolve("main")) and "the index still holds it" in damage.what


def test_a_missing_pack_is_damage_and_work_goes_on(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    packs(root)[0].unlink()
    with cs.open(root) as repo:
        with pytest.raises(IdMismatch, match="missing"):
            repo.checkout()
        repo.commit({"n": 1, "w": noise(5, 50_000)}, "on")
        assert (repo["main"]["w"] == noise(5, 50_000)).all()
        assert not repo.verify("quick").ok


@pytest.mark.parametrize("encrypt", [True, False])
def test_a_pack_of_another_repository_is_damage(tmp_path: Path, encrypt: bool) -> None:
    root, other = made(tmp_path / "r", encrypt=encrypt), made(tmp_path / "other", encrypt=encrypt)
    shutil.copy(packs(other)[0], packs(root)[0])
    with cs.open(root) as repo:
        with pytest.raises((IdMismatch, WrongRepository)):
            repo.checkout()
        report = repo.verify("data")
        assert {path for damage in report.damaged for path in damage.paths} >= {"shared", "own"}
    with cs.open(root) as repo:
        report_of_rebuild = repo.rebuild_index()
        assert report_of_rebuild.problems
        with pytest.raises(ChainError):
            repo.checkout()


def test_a_pack_of_another_repository_that_lies_beside_ours_is_ignored(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r", encrypt=False), made(tmp_path / "other", encrypt=False)
    stranger = packs(other)[0]
    place = root / stranger.relative_to(other)
    place.parent.mkdir(exist_ok=True)
    shutil.copy(stranger, place)
    with cs.open(root) as repo:
        assert repo.rebuild_index().objects == repo.stats().objects
        assert repo.verify("data").ok


def test_a_pack_committed_as_a_file_injects_nothing(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r"), made(tmp_path / "other", commits=1)
    with cs.open(root, create=True) as repo:
        repo.commit({}, "with a pack inside", files={"a pack": packs(other)[0], "ours": packs(root)[0]}, codec="none")
        before = repo.stats().objects
        repo.rebuild_index()
        assert repo.stats().objects == before
        assert repo["main"].read_file("a pack") == packs(other)[0].read_bytes()
        assert repo.verify("data").ok


# ---- index, log, keyring of another repository


def replaced_index(root: Path, other: Path) -> None:
    shutil.copy(next(other.glob("index/*/data.mdb")), next(root.glob("index/*/data.mdb")))


def replaced_index_and_owner(root: Path, other: Path) -> None:
    shutil.rmtree(root / "index")
    shutil.copytree(other / "index", root / "index")
    shutil.copy(other / "index.owner", root / "index.owner")


def replaced_log(root: Path, other: Path) -> None:
    shutil.rmtree(root / "log")
    shutil.copytree(other / "log", root / "log")


def replaced_keyring(root: Path, other: Path) -> None:
    for name in ("keyring", "keyring.bak"):
        shutil.copy(other / name, root / name)


def replaced_format(root: Path, other: Path) -> None:
    for name in ("format", "format.bak"):
        shutil.copy(other / name, root / name)


REPLACED = [replaced_index, replaced_index_and_owner, replaced_log, replaced_keyring, replaced_format]


@pytest.mark.parametrize("replace", REPLACED)
@pytest.mark.parametrize("readonly", [False, True])
def test_a_part_of_another_repository_is_refused(
    tmp_path: Path, replace: Callable[[Path, Path], None], readonly: bool
) -> None:
    key = cs.KeyFile(generate_key_file(tmp_path / "key").path)
    root, other = made(tmp_path / "r", key=key), made(tmp_path / "other", key=key)
    replace(root, other)
    with pytest.raises((WrongRepository, Damaged)):
        cs.open(root, key=key, readonly=readonly)


@pytest.mark.parametrize("replace", [replaced_index, replaced_index_and_owner])
def test_an_index_of_another_repository_is_healed_by_a_rebuild(
    tmp_path: Path, replace: Callable[[Path, Path], None]
) -> None:
    root, other = made(tmp_path / "r"), made(tmp_path / "other", commits=5)
    replace(root, other)
    rebuild(root)
    with cs.open(root) as repo:
        assert [commit.message for commit in repo.log()] == ["2", "1"]
        assert repo.verify("data").ok


def test_a_log_of_another_repository_is_healed_by_a_rebuild(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r"), made(tmp_path / "other", commits=5)
    replaced_log(root, other)
    rebuild(root)
    with cs.open(root) as repo:
        assert [commit.message for commit in repo.log()] == ["2", "1"]
        assert repo.verify("data").ok


def test_a_log_of_another_unencrypted_repository_is_healed_by_a_rebuild(tmp_path: Path) -> None:
    root, other = made(tmp_path / "r", encrypt=False), made(tmp_path / "other", commits=5, encrypt=False)
    replaced_log(root, other)
    rebuild(root)
    with cs.open(root) as repo:
        assert [commit.message for commit in repo.log()] == ["2", "1"]
        assert repo.verify("data").ok


# ---- of another time


def test_an_old_index_put_back_is_brought_up_to_date(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    data = next(root.glob("index/*/data.mdb"))
    old = data.read_bytes()
    with cs.open(root) as repo:
        repo.commit(state(3), "3")
    data.write_bytes(old)
    for readonly in (True, False):
        with cs.open(root, readonly=readonly) as repo:
            assert [commit.message for commit in repo.log()] == ["3", "2", "1"]
            assert repo.checkout()["step"] == 3


def test_an_old_log_put_back_is_damage_that_a_rebuild_heals(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    (log,) = (root / "log").iterdir()
    old = log.read_bytes()
    with cs.open(root) as repo:
        repo.commit(state(3), "3")
    log.write_bytes(old)
    for readonly in (True, False):
        with pytest.raises(Damaged, match="acknowledged") as caught:
            cs.open(root, readonly=readonly)
        assert "rebuild-index" in caught.value.hint
    assert rebuild(root).log_healed
    with cs.open(root) as repo:
        assert [commit.message for commit in repo.log()] == ["3", "2", "1"]
        assert repo.verify("data").ok


def test_an_old_pack_put_back_is_damage(tmp_path: Path) -> None:
    root = made(tmp_path / "r", commits=1)
    (pack,) = packs(root)
    old = pack.read_bytes()
    with cs.open(root) as repo:
        repo.commit(state(2), "2")
    pack.write_bytes(old)
    with cs.open(root) as repo:
        with pytest.raises(IdMismatch):
            repo.checkout()
        assert repo.checkout("main~1")["step"] == 1
        assert not repo.verify("quick").ok


def keyring_files(root: Path) -> dict[str, bytes]:
    return {name: (root / name).read_bytes() for name in ("keyring", "keyring.bak")}


def put_back(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).write_bytes(data)


def test_old_key_slots_put_back_are_stale_not_damage(tmp_path: Path) -> None:
    root = made(tmp_path / "r", key=passphrase("first"))
    before = keyring_files(root)
    with cs.open(root, key=passphrase("first")) as repo:
        repo.add_key(passphrase("second"), label="laptop")
    after = keyring_files(root)
    put_back(root, before)
    for readonly in (False, True):
        with pytest.raises(StaleKeyring) as caught:
            cs.open(root, key=passphrase("first"), readonly=readonly)
        assert caught.value.exit_code == 12
        assert not isinstance(caught.value, Damaged)
    put_back(root, after)
    for text in ("first", "second"):
        cs.open(root, key=passphrase(text)).close()


def test_a_key_that_was_removed_does_not_come_back_with_old_key_slots(tmp_path: Path) -> None:
    root = made(tmp_path / "r", key=passphrase("owner"))
    with cs.open(root, key=passphrase("owner")) as repo:
        repo.add_key(passphrase("leaver"), label="leaver")
        before = keyring_files(root)
        (slot,) = [text.split()[1] for text in repo.key_slots() if "leaver" in text]
        repo.remove_key(slot)
        assert not any("leaver" in text for text in repo.key_slots())
        with pytest.raises(NotFound):
            repo.remove_key(slot)
    for readonly in (False, True):
        with pytest.raises(WrongKey):
            cs.open(root, key=passphrase("leaver"), readonly=readonly)
    for name in ("keyring", "keyring.bak"):  # whichever copy is lost, the other holds the removal
        other = (root / name).read_bytes()
        (root / name).unlink()
        with pytest.raises(WrongKey):
            cs.open(root, key=passphrase("leaver"))
        (root / name).write_bytes(other)
    put_back(root, before)
    for text in ("leaver", "owner"):
        for open_it in (cs.open, rebuild):
            with pytest.raises(StaleKeyring):
                open_it(root, key=passphrase(text))


def test_one_old_copy_of_the_key_slots_does_not_win(tmp_path: Path) -> None:
    root = made(tmp_path / "r", key=passphrase("first"))
    before = keyring_files(root)
    with cs.open(root, key=passphrase("first")) as repo:
        repo.add_key(passphrase("second"))
    for name in before:
        now = (root / name).read_bytes()
        (root / name).write_bytes(before[name])
        cs.open(root, key=passphrase("second")).close()
        (root / name).write_bytes(now)


def test_stale_key_slots_are_seen_after_a_rebuild_too(tmp_path: Path) -> None:
    root = made(tmp_path / "r", key=passphrase("first"))
    before = keyring_files(root)
    with cs.open(root, key=passphrase("first")) as repo:
        repo.add_key(passphrase("second"))
        repo.rebuild_index()
    put_back(root, before)
    with pytest.raises(StaleKeyring):
        cs.open(root, key=passphrase("first"))


def test_the_last_key_cannot_be_removed(tmp_path: Path) -> None:
    with cs.init(tmp_path / "r", key=passphrase("only")) as repo:
        (slot,) = [text.split()[1] for text in repo.key_slots()]
        with pytest.raises(InvalidInput, match="last"):
            repo.remove_key(slot)


def test_keys_added_at_once_are_all_kept(tmp_path: Path) -> None:
    with cs.init(tmp_path / "r", key=passphrase("0")) as repo:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda n: repo.add_key(passphrase(str(n))), range(1, 5)))
        assert len(repo.key_slots()) == 5
    for n in range(5):
        cs.open(tmp_path / "r", key=passphrase(str(n))).close()


def test_who_opened_it_with_one_key_may_remove_that_key_and_go_on(tmp_path: Path) -> None:
    with cs.init(tmp_path / "r", key=passphrase("old")) as repo:
        (slot,) = [text.split()[1] for text in repo.key_slots()]
        repo.add_key(passphrase("new"))
        repo.remove_key(slot)
        repo.commit(state(1))
        assert len(repo.key_slots()) == 1
    with pytest.raises(WrongKey):
        cs.open(tmp_path / "r", key=passphrase("old"))
    cs.open(tmp_path / "r", key=passphrase("new")).close()


# ---- of a later version


@pytest.mark.parametrize("encrypt", [True, False])
@pytest.mark.parametrize("readonly", [True, False])
def test_a_change_in_the_log_that_a_later_version_made_is_refused_by_its_code(
    tmp_path: Path, encrypt: bool, readonly: bool
) -> None:
    root = made(tmp_path / "r", encrypt=encrypt)
    with cs.open(root) as repo:
        db = repo._db
        at = db._index.position()
        line = db.sealer.seal_line(at.seq + 1, at.hash, encode([1, [[77, b"news"]]]))
        db.log.append(line, at)
    with pytest.raises(FormatTooNew, match="77"):
        cs.open(root, readonly=readonly)
    with pytest.raises(FormatTooNew, match="77"):
        rebuild(root)


def test_a_record_of_a_later_version_is_refused_as_too_new_and_the_rest_reads(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    (pack,) = packs(root)
    with cs.open(root) as repo, repo._db.view() as view:
        (chunk,) = [
            extent.chunk
            for entry in repo["main"].manifest.entries
            if entry.path == ("own",)
            for extent in entry.extents
        ]
        place = view.place(chunk)
        assert place is not None
    data = bytearray(pack.read_bytes())
    data[place.offset + 8] = 9
    head = bytes(data[place.offset : place.offset + FIXED_BYTES])
    struct.pack_into("<I", data, place.offset + FIXED_BYTES, crc32c(head))
    pack.write_bytes(data)
    with cs.open(root) as repo:
        with pytest.raises(FormatTooNew, match="record version 9"):
            repo.checkout()
        assert (repo["main"]["shared"] == noise(0, 100_000)).all()
        with pytest.raises(FormatTooNew):
            repo.verify("data")


def test_key_slots_of_a_later_version_are_refused_as_too_new(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    body = bytearray((root / "keyring").read_bytes()[:-32])
    body[8] = 2
    for name in ("keyring", "keyring.bak"):
        (root / name).write_bytes(bytes(body) + fingerprint("keyring", bytes(body)))
    with pytest.raises(FormatTooNew, match="keyring version 2"):
        cs.open(root)


# ---- mixed forms


def test_an_unencrypted_record_in_an_encrypted_repository_is_damage(tmp_path: Path) -> None:
    root, plain = made(tmp_path / "r"), made(tmp_path / "plain", encrypt=False)
    shutil.copy(packs(plain)[0], packs(root)[0])
    with cs.open(root) as repo, pytest.raises(Damaged):
        repo.checkout()


def test_a_whole_copy_of_a_repository_works_on_its_own(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    shutil.copytree(root, tmp_path / "copy")
    with cs.open(tmp_path / "copy") as copy, cs.open(root) as repo:
        copy.commit(state(3), "copy")
        repo.commit(state(4), "original")
        assert [commit.message for commit in copy.log()] == ["copy", "2", "1"]
        assert [commit.message for commit in repo.log()] == ["original", "2", "1"]
        assert copy.verify("data").ok and repo.verify("data").ok


def test_a_repository_that_was_moved_works_where_it_is(tmp_path: Path) -> None:
    root = made(tmp_path / "r")
    root.rename(tmp_path / "moved")
    with cs.open(tmp_path / "moved") as repo:
        repo.commit({"w": np.arange(3)}, "3")
        assert repo.verify("data").ok
