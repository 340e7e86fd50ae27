"""What refs, reflogs and readers lead to, why it is kept, and that nothing is forgotten of what others publish."""

import random
from contextlib import closing

import pytest

from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Mark, SetRef, Unmark
from chainstore.model.tree import Root, page_links
from chainstore.observe import silent
from chainstore.odb.local import LocalDatabase
from chainstore.odb.standing import Standing
from chainstore.ops.history import read_commit
from chainstore.ops.reach import Reach, Why
from tests.faults.seeds import base_seed, replayable
from tests.odb.stores import MAIN, Store, commit, put, tip
from tests.ops.rubbish import drop_ref, forget

SIDE = "heads/side"
STEPS = 40


def reach_of(db: LocalDatabase) -> tuple[Reach, Standing]:
    standing = Standing(db.log, db.sealer)
    standing.advance(db.position())
    reach = Reach(db, standing, silent)
    reach.mark()
    reach.add_all_bases()
    return reach, standing


def snapshot(db: LocalDatabase, id: ObjectId) -> set[bytes]:
    """Return everything below a commit, found in the simplest way."""
    tree = read_commit(db, id).tree
    root = Root.from_bytes(bytes(db.read(tree)))
    found, queue = {bytes(tree)}, [page for page in (root.state, root.files, root.ranks) if page is not None]
    while queue:
        page = queue.pop()
        links = page_links(bytes(db.read(page)))
        found |= {bytes(page), *map(bytes, links.chunks)}
        queue += links.pages
    return found


def expected(db: LocalDatabase) -> set[bytes]:
    """Return what is reachable, word for word as the invariant says it, from the index."""
    with db.view() as view:
        tips = {row.target for row in view.refs() if isinstance(row.target, ObjectId)}
        starts = tips | {each for line in view.reflogs() for each in (line.old, line.new) if isinstance(each, ObjectId)}
        marks = {mark.commit: mark for mark in view.marks()}
    commits, queue = set(), list(starts)
    while queue:
        id = queue.pop()
        if id not in commits:
            commits.add(id)
            queue += read_commit(db, id).parents
    kept = {id for id in commits if id not in marks or id in tips}
    return {bytes(id) for id in commits}.union(*(snapshot(db, id) for id in kept))


def test_why_something_is_kept_is_the_first_reason_there_is(tmp_path):
    with closing(Store(tmp_path / "store", encrypted=False).create()) as db:
        both = commit(db, b"shared", b"main")
        db.publish(None, [SetRef("heads/tagged", None, both), SetRef(SIDE, None, both)])
        tagged = commit(db, b"shared", b"tagged", ref="heads/tagged")
        side = commit(db, b"shared", b"side", ref=SIDE)
        db.publish(None, [SetRef("tags/v1", None, tagged)])
        drop_ref(db, "heads/tagged")
        drop_ref(db, SIDE)
        read = commit(db, b"read", ref="heads/read")
        old = commit(db, b"kept", ref="heads/read")
        forget(db, [read])
        reach, _ = reach_of(db)
        chunk = {name: db.sealer.id(Kind.CHUNK, name.encode()) for name in ("shared", "main", "tagged", "side", "read")}
        assert {name: reach.found.get(id) for name, id in chunk.items()} == {
            "shared": Why.BRANCH,
            "main": Why.BRANCH,
            "tagged": Why.TAG,
            "side": Why.REFLOG,
            "read": None,
        }
        assert [reach.found[id] for id in (both, tagged, side, read, old)] == [1, 2, 3, 1, 1]
        reach.add_snapshots({read: read_commit(db, read).tree})
        assert reach.found[chunk["read"]] is Why.READER
        assert (reach.forgotten, len(reach.problems)) == (0, 0)


@pytest.mark.parametrize("follows", [False, True], ids=["afresh", "followed"])
def test_it_is_what_the_invariant_says_after_random_changes(tmp_path, follows):
    """What is followed only grows: it has everything that is reachable now, and whatever was at the beginning."""
    seed = base_seed()
    with replayable(seed, tmp_path):
        source = random.Random(seed)
        with closing(Store(tmp_path / "store", encrypted=False).create()) as db:
            made = [commit(db, b"first")]
            first = expected(db)
            reach, standing = reach_of(db)
            for number in range(STEPS):
                change(db, source, made, number)
                if follows and source.random() < 0.5:
                    reach.follow(standing.advance(db.position()))
                    assert expected(db) | first <= {bytes(id) for id in reach.found}
            if not follows:
                reach, _ = reach_of(db)
                assert {bytes(id) for id in reach.found} == expected(db)
                assert (reach.kept > 0) and reach.kept + reach.forgotten <= len(set(made))


def change(db: LocalDatabase, source: random.Random, made: list[ObjectId], number: int) -> None:
    ref = f"heads/{source.choice(['main', 'a', 'b'])}"
    old, somewhere = tip(db, ref), source.choice(made)
    with db.view() as view:
        named = {row.target for row in view.refs()}
    match source.choice(["commit", "commit", "commit", "move", "delete", "mark", "mark", "unmark", "put"]):
        case "commit":
            made.append(commit(db, b"shared", source.randbytes(20), ref=ref, message=str(number)))
        case "move":
            db.publish(None, [SetRef(ref, old, somewhere)])
        case "delete" if old is not None and ref != MAIN:
            db.publish(None, [SetRef(ref, old, None)])
        case "mark" if somewhere not in named:
            db.publish(None, [Mark((somewhere,), "x")])
        case "unmark":
            db.publish(None, [Unmark((somewhere,))])
        case "put":
            put(db, source.randbytes(20))


def test_what_is_gone_from_a_reflog_is_told_and_what_is_gone_from_a_branch_is_damage(tmp_path):
    with closing(Store(tmp_path / "store", encrypted=False).create()) as db:
        commit(db, b"main")
        side = commit(db, b"side", ref=SIDE)
        drop_ref(db, SIDE)
        with db._index.write() as rows:
            for table in ("objects", "inline"):
                rows.delete(table, side)
        reach, _ = reach_of(db)
        assert reach.problems == [f"the reflog of {SIDE} leads to {side.short}, which is not there"]
        assert side not in reach and db.sealer.id(Kind.CHUNK, b"main") in reach
