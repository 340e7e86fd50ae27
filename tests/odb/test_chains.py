"""Folding: each record decoded once, in little memory, without recursion; and who is to blame where one is damaged."""

import os
import sys
import tracemalloc
from contextlib import closing
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from chainstore.codecs import chain
from chainstore.codecs.base import DIFFERENCE, XOR
from chainstore.errors import IdMismatch
from chainstore.ids import Kind, ObjectId
from chainstore.model.change import Dead, Retired
from chainstore.odb.folding import Node, Step, lines, misfit, schedule
from chainstore.odb.rows import Place
from tests.odb.chains import (
    TAG,
    Sum,
    counting,
    differing,
    id_of,
    line,
    predicted,
    put_records,
    put_slots,
    slots,
    summed,
)
from tests.odb.stores import put
from tests.ops.damage import place_of, spoil

KIB = 1 << 10
CHUNK = 100


def node(number: int, *bases: int, depth: int = 0, nbytes: int = CHUNK) -> Node:
    place = Place(0, 64 * number, 64, nbytes, 0, 0, 3, depth, len(bases))
    return Node(name(number), place, tuple(map(name, bases)))


def name(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32, "big"))


def graph(*nodes: Node) -> dict[ObjectId, Node]:
    return {each.id: each for each in nodes}


def walk(nodes: dict[ObjectId, Node], wanted: list[ObjectId], steps: list[Step]) -> int:
    """Follow a schedule, see that everything is there when it is needed, and return the most bytes held at once."""
    held: dict[ObjectId, int] = {}
    most = 0
    for each, dropped in steps:
        for id in dropped:
            assert id not in wanted
            del held[id]
        assert all(base in held for base in each.bases)
        assert each.id not in held
        held[each.id] = 0 if each.id in wanted else each.nbytes
        most = max(most, sum(held.values()))
    assert held.keys() >= set(wanted)
    return most


def random_graph(source: Random, most_bytes: int = CHUNK) -> dict[ObjectId, Node]:
    nodes: list[Node] = []
    for number in range(source.randint(1, 40)):
        bases = source.sample(range(number), min(number, source.choice([0, 1, 1, 2, 3, 4])))
        depth = 1 + max(nodes[base].depth for base in bases) if bases else 0
        nodes.append(node(number, *bases, depth=depth, nbytes=source.randint(1, most_bytes)))
    return graph(*nodes)


def below(nodes: dict[ObjectId, Node], wanted: list[ObjectId]) -> set[ObjectId]:
    found, queue = set(wanted), list(wanted)
    while queue:
        queue += (new := [base for base in nodes[queue.pop()].bases if base not in found])
        found.update(new)
    return found


def test_any_graph_is_decoded_with_any_room():
    seed = int.from_bytes(os.urandom(4), "big")
    source = Random(seed)
    for _ in range(300):
        every = random_graph(source)
        wanted = source.sample(list(every), source.randint(1, len(every)))
        needed = below(every, wanted)
        nodes = {id: each for id, each in every.items() if id in needed}
        steps = schedule(nodes, wanted, 1 << 40)
        most = walk(nodes, wanted, steps)
        assert sorted(step.node.id for step in steps) == sorted(needed), seed
        assert schedule(nodes, wanted, most) == steps, seed  # exactly enough room is enough
        for room in (0, source.randint(0, most)):
            less = schedule(nodes, wanted, room)
            assert walk(nodes, wanted, less) <= most, (seed, room)
            assert len(less) <= 8 * len(nodes) + 1, (seed, room)


def test_a_line_takes_two_buffers():
    nodes = graph(node(0), *(node(n, n - 1, depth=n) for n in range(1, 65)))
    steps = schedule(nodes, [name(64)], 1 << 40)
    assert [step.node.id for step in steps] == [name(n) for n in range(65)]
    assert walk(nodes, [name(64)], steps) == 2 * CHUNK
    assert schedule(nodes, [name(64)], 0) == steps


def test_the_memory_of_a_line_holds_what_is_needed_of_it():
    seed = int.from_bytes(os.urandom(4), "big")
    source, shared = Random(seed), 0
    for _ in range(300):
        every = random_graph(source, 2)
        wanted = source.sample(list(every), source.randint(1, min(3, len(every))))
        nodes = {id: every[id] for id in below(every, wanted)}
        last, memory = lines(nodes, wanted), {}
        for each, _dropped in schedule(nodes, wanted, 1 << 40):
            assert all(memory[last[base]] == base for base in each.bases), seed
            assert nodes[last[each.id]].nbytes == each.nbytes, seed
            memory[last[each.id]] = each.id
        assert all(last[id] == id and memory[id] == id for id in wanted), seed
        shared += len(nodes) - len(memory)
    assert shared, seed


def test_a_line_is_decoded_in_the_memory_of_its_last_record():
    nodes = graph(node(0), *(node(n, n - 1, depth=n) for n in range(1, 65)))
    assert set(lines(nodes, [name(64)]).values()) == {name(64)}
    assert set(lines(nodes, [name(64), name(20)]).values()) == {name(64), name(20)}
    moments = [name(n) for n in range(3, 12) if n % 3]  # a moment has its successor and its weight on it
    assert all(lines(adam(5), [name(12)])[id] == id for id in moments)


def adam(commits: int) -> dict[ObjectId, Node]:
    """Return the records of one slot: 3n weight, 3n + 1 and 3n + 2 its moments at commit n."""
    nodes = [node(0), node(1), node(2)]
    for n in range(1, commits):
        w, m, v = 3 * n - 3, 3 * n - 2, 3 * n - 1
        nodes.append(node(m + 3, m, depth=n))
        nodes.append(node(v + 3, v, m, m + 3, depth=n + 1))
        nodes.append(node(w + 3, w, m + 3, v + 3, depth=n + 2))
    return graph(*nodes)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_a_slot_takes_five_buffers_whatever_its_history(order):
    nodes = adam(20)
    wanted = [name(57 + each) for each in order]
    steps = schedule(nodes, wanted, 1 << 40)
    assert len(steps) == len(nodes)
    assert walk(nodes, wanted, steps) <= 5 * CHUNK
    alone = {id: nodes[id] for id in below(nodes, wanted[:1])}
    assert walk(alone, wanted[:1], schedule(alone, wanted[:1], 1 << 40)) <= 5 * CHUNK


def test_what_waits_long_is_decoded_again_where_room_is_scarce():
    start = node(0), node(1), node(11), node(2, 1, 0, depth=1), node(3, 2, 11, depth=2)
    nodes = graph(*start, *(node(n, n - 1, depth=n - 1) for n in range(4, 10)), node(10, 9, 0, 11, depth=10))
    wanted = [name(10)]
    once, again = schedule(nodes, wanted, 4 * CHUNK), schedule(nodes, wanted, 3 * CHUNK)
    assert (len(once), walk(nodes, wanted, once)) == (len(nodes), 4 * CHUNK)
    assert (len(again), walk(nodes, wanted, again)) == (len(nodes) + 1, 3 * CHUNK)


def test_what_lies_ready_for_the_next_record_is_not_let_go_for_it():
    line = [node(20), *(node(n, n - 1, depth=n - 20) for n in range(21, 24)), node(24, 22, 23, depth=4)]
    early, ready = node(30, 24, depth=5), [*map(node, range(4)), node(4, 0, 1, depth=1), node(5, 2, 3, depth=1)]
    nodes = graph(*line, early, *ready, node(6, 4, 5, depth=2), node(40, 30, 6, 24, depth=6))
    wanted = [name(40)]
    assert walk(nodes, wanted, schedule(nodes, wanted, 1 << 40)) == 6 * CHUNK
    steps = schedule(nodes, wanted, 5 * CHUNK)  # not what is cheaper, but would be needed at once
    assert (len(steps), walk(nodes, wanted, steps)) == (len(nodes) + 5, 5 * CHUNK)


def test_depths_that_do_not_fall_and_bases_that_nobody_names_are_found():
    assert misfit(adam(5)) is None
    assert misfit(graph(node(0, 1, depth=1), node(1, 0, depth=1))) is not None
    unnamed = node(0, depth=1)
    assert unnamed.place is not None
    assert misfit(graph(unnamed._replace(place=unnamed.place._replace(n_bases=1)))) is not None


@pytest.mark.parametrize("tag", [XOR, DIFFERENCE])
def test_lines_of_our_codecs_come_back_at_every_depth(either_store, tag):
    with closing(either_store.create()) as db:
        plains = line(db, tag, 12, 40 * KIB + 8)
    with closing(either_store.open()) as db:
        for plain in plains:
            assert db.read(id_of(db, plain)) == plain
            out = bytearray(len(plain))
            db.read(id_of(db, plain), memoryview(out))
            assert out == plain


@pytest.mark.parametrize("tags", [(XOR, DIFFERENCE), (XOR, TAG), (TAG, DIFFERENCE)])
def test_lines_of_mixed_codecs_come_back(either_store, tags):
    """Some turn the base into what builds on it where it lies, others need it elsewhere."""
    source = np.random.default_rng(3)
    plains = [source.normal(size=10 * KIB).astype("<f4")]
    for _ in range(7):
        plains.append(plains[-1] + (source.random(10 * KIB) < 0.1).astype("<f4"))
    contents = [plain.tobytes() for plain in plains]
    with counting(), closing(either_store.create()) as db:
        put(db, contents[0])
        for number, (base, plain) in enumerate(pairwise(contents), 1):
            tag = tags[number % 2]
            made = summed(db.sealer, plain, [base], number) if tag == TAG else None
            put_records(db, made or differing(db.sealer, plain, base, number, tag))
        for plain in reversed(contents):
            out = bytearray(len(plain) + 1)
            db.read(id_of(db, plain), memoryview(out)[1:])
            assert out[1:] == plain
        every = {id_of(db, plain): None for plain in contents[3:]}
        assert [bytes(found) for found in db.read_together(every).values()] == contents[3:]


def test_memory_of_another_length_is_refused_for_the_object_itself(either_store):
    with closing(either_store.create()) as db:
        plains = line(db, DIFFERENCE, 3, 40 * KIB)
        for length in (0, 40 * KIB - 1, 40 * KIB + 4):
            with pytest.raises(IdMismatch, match=f"{40 * KIB} bytes where {length}") as error:
                db.read(id_of(db, plains[3]), memoryview(bytearray(length)))
            assert (error.value.id, error.value.base) == (str(id_of(db, plains[3])), None)


def test_the_deepest_line_needs_neither_stack_nor_memory(store):
    frames = []

    class Watched(Sum):
        def decode(self, payload, spec, bases, out):
            frame, depth = sys._getframe(), 0
            while frame is not None:
                frame, depth = frame.f_back, depth + 1
            frames.append(depth)
            np.bitwise_xor(np.frombuffer(payload, np.uint8), np.frombuffer(bases[0], np.uint8), out=np.asarray(out))

    nbytes, source = 256 * KIB, Random(5)
    chain.register(TAG, lambda effort: Watched(), delta=True)
    try:
        with closing(store.create()) as db:
            plains = [source.randbytes(nbytes) for _ in range(65)]
            put(db, plains[0])
            put_records(db, *(summed(db.sealer, b, [a], n) for n, (a, b) in enumerate(pairwise(plains), 1)))
        with closing(store.open()) as db:
            wanted = id_of(db, plains[-1])
            assert db.read(id_of(db, plains[1])) == plains[1]
            tracemalloc.start()
            try:
                found = db.read(wanted)
                taken = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert found == plains[-1]
            assert taken < 4 * nbytes
        assert len(set(frames[1:])) == 1 and len(frames) == 65
    finally:
        chain.unregister(TAG)


def test_a_slot_is_decoded_once(either_store):
    history = slots(3, 7, 3000)
    with counting() as decoded:
        with closing(either_store.create()) as db:
            put_slots(db, history)
        for room in (1 << 20, 0):
            with closing(either_store.open()) as db:
                decoded.clear()
                outs = {id_of(db, plain): memoryview(bytearray(3000)) for plain in history[-1]}
                db.read_together(outs, room)
                assert [bytes(out) for out in outs.values()] == list(history[-1])
                assert len(decoded) == len(set(decoded)) == 18


@pytest.mark.parametrize("culprit", [0, 1, 2, 3], ids=["bottom", "second", "third", "itself"])
def test_the_base_at_fault_is_named(either_store, culprit):
    with closing(either_store.create()) as db:
        plains = line(db, DIFFERENCE, 4, 40 * KIB)
        ids = [id_of(db, plain) for plain in plains]
        spoil(db, ids[culprit], at=300)
    with closing(either_store.open()) as db:
        with pytest.raises(IdMismatch) as error:
            db.read(ids[3])
        assert error.value.id == str(ids[3])
        assert error.value.base == (str(ids[culprit]) if culprit < 3 else None)
        assert (ids[culprit].short in str(error.value)) and ids[3].short in str(error.value)
        assert [db.has(id) for id in ids] == [n < culprit or n == 4 for n in range(5)]
        for n in range(culprit):
            assert db.read(ids[n]) == plains[n]


def test_what_was_looked_up_a_while_ago_need_not_hold_any_more(either_store):
    """Whatever nodes are handed in, what comes back is right, or names the record that is damaged."""
    with closing(either_store.create()) as db:
        plains = line(db, DIFFERENCE, 4, 40 * KIB)
        ids = [id_of(db, plain) for plain in plains]
        true = db.lay_out(ids)

        def stale(id: ObjectId, **changes: int) -> dict[ObjectId, Node]:
            place = true[id].place
            assert place is not None
            return {**true, id: true[id]._replace(place=place._replace(**changes))}

        first = true[ids[0]]
        assert first.place is not None
        known = [
            true,
            stale(ids[1], offset=first.place.offset),
            stale(ids[0], pack=99),
            stale(ids[2], length=10),
            stale(ids[2], depth=0),
            stale(ids[3], plain_len=1),
            {**true, ids[2]: true[ids[2]]._replace(bases=(ids[0],))},
            {**true, ids[1]: true[ids[1]]._replace(place=None)},
        ]
        for nodes in known:
            assert db.read_together({ids[3]: None}, nodes=nodes) == {ids[3]: plains[3]}
        assert not db._reader.suspects
        spoil(db, ids[1], at=300)
        for nodes in known:
            with pytest.raises(IdMismatch) as error:
                db.read_together({ids[3]: None}, nodes=nodes)
            assert (error.value.id, error.value.base) == (str(ids[3]), str(ids[1]))


def test_a_line_is_told_from_what_only_looks_like_one():
    fork = graph(node(0), node(1, 0, depth=1), node(2, 0, depth=2))
    assert walk(fork, [name(2)], schedule(fork, [name(2)], 1 << 40)) <= 3 * CHUNK
    below = graph(node(0), node(1, 0, depth=1), node(2, 1, depth=2))
    assert [step.node.id for step in schedule(below, [name(1)], 1 << 40)] == [name(0), name(1), name(2)]
    assert walk(below, [name(1)], schedule(below, [name(1)], 1 << 40)) <= 2 * CHUNK


def test_a_missing_base_is_named(store):
    with closing(store.create()) as db:
        ids = [id_of(db, plain) for plain in line(db, XOR, 3, 40 * KIB)]
        with db._index.write() as rows:
            rows.delete("objects", ids[1])
        with pytest.raises(IdMismatch, match="is not in the store") as error:
            db.read(ids[3])
        assert (error.value.id, error.value.base) == (str(ids[3]), str(ids[1]))
        assert db.has(ids[0]) and not db.has(ids[2])


def test_one_of_several_is_blamed_for_what_builds_on_it(store):
    history = slots(4, 4, 6000)
    with counting(), closing(store.create()) as db:
        put_slots(db, history)
        (_, m, _), (w_, m_, v_) = history[1], history[-1]
        spoil(db, id_of(db, m))
        with pytest.raises(IdMismatch) as error:
            db.read_together(dict.fromkeys((id_of(db, w_), id_of(db, m_), id_of(db, v_))))
        assert (error.value.id, error.value.base) == (str(id_of(db, w_)), str(id_of(db, m)))
        assert all(not db.has(id_of(db, plain)) for slot in history[2:] for plain in slot)
        assert all(db.has(id_of(db, plain)) for plain in history[0])


def test_a_record_that_builds_on_other_bases_than_the_index_says_is_damage(store):
    history = slots(9, 2, 6000)
    with counting(), closing(store.create()) as db:
        put(db, *history[0], *history[1][1:])
        put_records(db, predicted(db.sealer, history)[2])
        id = id_of(db, history[1][0])
        with db._index.write() as rows:
            found = rows.get("bases", id)
            assert found is not None
            rows.put("bases", id, found[32:] + found[:32])
        with pytest.raises(IdMismatch, match="other objects"):
            db.read(id)


def test_what_gc_moves_while_a_line_is_folded_is_looked_up_again(store):
    """The top is stored anew, elsewhere and whole, just when what it builds on was decoded."""
    plains = [bytes([number]) * 6000 for number in range(3)]
    moves = []

    class Moving(Sum):
        def decode(self, payload, spec, bases, out):
            super().decode(payload, spec, bases, out)
            while moves:
                moves.pop()()

    chain.register(TAG, lambda effort: Moving(), delta=True)
    try:
        with closing(store.create()) as db:
            below, above = db.batch("none"), db.batch("none")  # two packs, which nobody takes over
            below.append(Kind.CHUNK, plains[0])
            below.append_record(*summed(db.sealer, plains[1], plains[:1], 1))
            db.publish(below, [])
            above.append_record(*summed(db.sealer, plains[2], plains[1:2], 2))
            db.publish(above, [])
            top = id_of(db, plains[2])
            path, place = place_of(db, top)

            def move() -> None:
                pack = bytes.fromhex(path.name)
                db.suspect([top])
                batch = db.batch("none")
                batch.append(Kind.CHUNK, plains[2])
                db.publish(batch, [Dead(pack, ((place.offset, place.offset + place.length),)), Retired(pack)])
                db.retire_batch(batch)
                db.packs.let_go(pack)
                path.unlink()

            assert path != place_of(db, id_of(db, plains[1]))[0]
            moves.append(move)
            assert db.read(top) == plains[2]
            assert not path.exists() and all(db.has(id_of(db, plain)) for plain in plains)
            with db.view() as view:
                assert view.bases(top) == ()
            below.close()
            above.close()
    finally:
        chain.unregister(TAG)
