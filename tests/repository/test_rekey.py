"""New keys: old ones open nothing that is here any more, and whoever is at work goes on."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from chainstore import access
from chainstore.crypto.keyring import Bundle
from chainstore.crypto.keys import KeyFile, generate_key_file
from chainstore.errors import ChainError, InvalidInput, NotEncrypted, StoreFull
from chainstore.model.frame import Kind, is_record_kind, parse_line
from chainstore.observe import Progress
from chainstore.odb.folding import lay_out
from chainstore.odb.record import Sealer, row_generation
from chainstore.ops.moving import Mover
from chainstore.repository import Repository, init
from chainstore.repository import open as open_repository
from chainstore.storage import fs
from chainstore.storage.pack import scan
from tests.faults.children import Child, succeed


def state(number: int) -> dict[str, object]:
    source = np.random.default_rng(number)
    return {"w": source.standard_normal(20_000).astype(np.float32), "frozen": np.arange(30_000), "n": number}


@pytest.fixture
def key(tmp_path: Path) -> KeyFile:
    return generate_key_file(tmp_path / "key", random.Random(1).randbytes)


@pytest.fixture
def repo(tmp_path: Path, key: KeyFile) -> Repository:
    repo = init(tmp_path / "repo", key=key)
    for number in range(4):
        repo.commit(state(number), str(number), step=number)
    repo.tag("kept", "main~2")
    repo.forget(commits=["main~3"])
    repo.set_setting("codec", "fast")
    return repo


def bundle_of(repo: Repository) -> Bundle:
    db = repo._db
    return access.unlock(db.layout.root, db.layout.read_keyring(), repo._handle.settings.key)[0]


def generations(repo: Repository) -> set[int]:
    """Return the key generations of everything sealed that lies in the directory: records, lines, rows."""
    db = repo._db
    found = set()
    for name in db.packs.names():
        with db.view() as view:
            line = view.pack(view.pack_number(name))
        with fs.open_file(db.packs.path(name)) as file:
            found |= {h.generation for _, h in scan(file, 0, line.length, "pack") if is_record_kind(h.kind)}
    for segment in db.log.segments():
        data = memoryview(db.log.path(segment).read_bytes())
        while data:
            line = parse_line(data, "log")
            found.add(line.generation)
            data = data[line.line_bytes :]
    with db._index.read() as rows:
        for table in ("refs", "reflog", "marks", "config"):
            found |= {row_generation(value) for _, value in rows.scan(table)}
        found |= {parse_line(memoryview(value), "row").generation for _, value in rows.scan("log")}
    return found


def check(repo: Repository) -> None:
    assert [c.message for c in repo.log()] == ["3", "2", "1", "0"]
    assert list(repo.tags()) == ["kept"] and len(repo.marks()) == 1
    assert repo.settings()["codec"] == "fast"
    for back, number in ((0, 3), (1, 2), (2, 1)):
        got, want = repo.checkout(f"main~{back}"), state(number)
        assert all(np.array_equal(got[name], want[name]) for name in want)
    assert repo.verify("data").ok


def test_older_keys_open_nothing_after_everything_was_sealed_again(repo: Repository, key: KeyFile) -> None:
    old = bundle_of(repo)
    assert generations(repo) == {1}
    plan = repo.rekey(reencrypt=True, dry_run=True)
    assert (plan.generation, plan.rewritten_bytes) == (2, 0) and plan.outdated_bytes > 100_000
    assert generations(repo) == {1}
    report = repo.rekey(reencrypt=True)
    assert report.complete and not report.left and report.rewritten_bytes >= report.outdated_bytes / 2
    assert generations(repo) == {2}
    new = bundle_of(repo)
    assert list(new.data) == list(new.meta) == [2] and new.id == old.id and new.data[2] not in old.data.values()
    check(repo)
    sealer = Sealer(repo._db.sealer.repo_id, old, os.urandom)
    with repo._db.view() as view:
        ids = [id for id, place in view.objects() if place.kind == Kind.CHUNK]
        sources = repo._db._reader._sources(view, lay_out(view, dict.fromkeys(ids)))
    for id in ids:
        header, _, payload = repo._db._reader._fetch(repo._db.benches.take("auto"), sources[id])
        with pytest.raises(ChainError):
            sealer.open(header, payload, bytearray(len(payload)))
    repo.close()
    with open_repository(repo.path, key=key) as again:
        check(again)
        again.rebuild_index()
        check(again)
        again.commit(state(9), "9")


def test_without_reencrypt_only_what_comes_is_sealed_with_new_keys(repo: Repository) -> None:
    report = repo.rekey()
    assert not report.complete and report.rewritten_bytes == 0
    repo.commit(state(7), "7")
    assert generations(repo) == {1, 2}
    report = repo.rekey(reencrypt=True)
    assert report.resumed and report.generation == 2 and report.complete
    assert generations(repo) == {2}


def test_whoever_has_it_open_takes_up_the_new_keys(repo: Repository, key: KeyFile, tmp_path: Path) -> None:
    reader, writer = os.pipe(), os.pipe()

    def other() -> list[str]:
        with open_repository(repo.path, key=key) as theirs:
            theirs.commit(state(10), "10", branch="theirs")
            os.write(reader[1], b"x")
            os.read(writer[0], 1)
            theirs.commit(state(11), "11", branch="theirs")
            return [c.message for c in theirs.log("theirs")]

    child = Child(other)
    os.read(reader[0], 1)
    assert repo.rekey(reencrypt=True).complete
    os.write(writer[1], b"x")
    ending = child.join()
    assert not ending.error, ending.error
    assert ending.answer[0] == "11"
    assert generations(repo) == {2}
    assert repo.verify("data").ok


def test_a_commit_that_was_written_with_keys_renewed_meanwhile_is_written_again(repo: Repository, key: KeyFile) -> None:
    once = [True]

    def read(observed: object) -> None:
        if once and isinstance(observed, Progress):
            once.clear()
            succeed(lambda: _rekey_elsewhere(repo.path, key))

    with open_repository(repo.path, key=key, observer=read) as watched:
        watched.commit(state(12), "12", step=12)
    assert not once
    assert repo.checkout("main")["n"] == 12 and repo.verify("data").ok
    assert repo._db.sealer.generation == 2


def _rekey_elsewhere(path: Path, key: KeyFile) -> None:
    with open_repository(path, key=key) as repo:
        repo.rekey()


def test_a_handle_that_rotated_its_key_makes_new_ones_with_the_key_it_has_now(
    repo: Repository, key: KeyFile, tmp_path: Path
) -> None:
    other = generate_key_file(tmp_path / "other", random.Random(2).randbytes)
    repo.rotate_key(other)
    repo.rekey(reencrypt=True)
    repo.commit(state(9), "9", step=9)
    path = repo.path
    repo.close()
    with open_repository(path, key=other) as again:
        assert again.verify("data").ok
        assert again.get_commit("HEAD").step == 9


def test_interrupted_it_goes_on(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise StoreFull("simulated")

    with monkeypatch.context() as patch:
        patch.setattr(Mover, "move", fail)
        with pytest.raises(StoreFull):
            repo.rekey(reencrypt=True)
    check(repo)
    report = repo.rekey(reencrypt=True)
    assert report.resumed and report.complete and report.generation == 2
    assert generations(repo) == {2}


def test_other_keys_are_not_closed_unasked(repo: Repository, tmp_path: Path, key: KeyFile) -> None:
    other = generate_key_file(tmp_path / "other", random.Random(2).randbytes)
    repo.add_key(other, label="ada")
    with pytest.raises(InvalidInput, match="ada"):
        repo.rekey(reencrypt=True)
    assert generations(repo) == {1}
    assert len(repo.rekey(reencrypt=True, drop_other_keys=True).keys_removed) == 1
    repo.close()
    with pytest.raises(ChainError):
        open_repository(repo.path, key=other)
    with open_repository(repo.path, key=key) as again:
        check(again)


def test_an_unencrypted_repository_has_no_keys(tmp_path: Path) -> None:
    with init(tmp_path / "plain", encrypt=False) as repo, pytest.raises(NotEncrypted):
        repo.rekey(reencrypt=True)
