"""What of a pack is useless, and the parts in which it is removed: never a byte of what is kept."""

from hypothesis import given
from hypothesis import strategies as st

from chainstore.model.change import PackLine
from chainstore.odb.rows import merged
from chainstore.ops.garbage import PackContent, pieces, take_inventory, without
from tests.odb.stores import put

UNIT = 64
spans = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(lambda pair: (min(pair), max(pair))), max_size=8)


@st.composite
def contents(draw) -> PackContent:
    """Return a pack of records that are kept, doomed or spoken of by no row; some of the last are known to be dead."""
    kinds = draw(st.lists(st.sampled_from(["kept", "doomed", "gap", "dead"]), min_size=1, max_size=30))
    lengths = draw(st.lists(st.integers(1, 5), min_size=len(kinds), max_size=len(kinds)))
    closing = draw(st.integers(0, 3)) * UNIT
    at, dead, found = 0, [], []
    for number, (kind, length) in enumerate(zip(kinds, lengths, strict=True)):
        if kind == "dead":
            dead.append((at, at + length * UNIT))
        elif kind != "gap":
            found.append((kind, number.to_bytes(32, "big"), at, length * UNIT))
        at += length * UNIT
    content = PackContent(1, PackLine(bytes(16), at + closing, at if closing else 0, merged(dead)))
    for kind, id, start, length in draw(st.permutations(found)):  # rows come in order of id, not of place
        (content.keep if kind == "kept" else content.doom)(id, start, length)
    return content


def units(ranges) -> set[int]:
    return {at for start, stop in ranges for at in range(start, stop)}


@given(spans, spans)
def test_without_takes_away_exactly_what_it_should(some, taken):
    some, taken = merged(some), merged(taken)
    left = without(some, taken)
    assert units(left) == units(some) - units(taken)
    assert merged(left) == left


@given(contents())
def test_useless_is_everything_but_what_is_kept_and_the_list_of_records(content):
    kept = {(start, stop) for start, stop, _ in content.kept}
    useless = content.useless()
    assert units(useless).isdisjoint(units(kept))
    end = content.line.length if content.empty else content.records_end
    assert units(useless) | units(kept) == set(range(end))
    assert content.useless_bytes() == len(units(useless))
    assert units(content.line.dead) <= units(useless)
    assert sum(stop - start for start, stop in kept) == content.kept_bytes
    assert [each.start for each in content.doomed] == sorted(each.start for each in content.doomed)


@given(contents(), st.integers(1, 6))
def test_pieces_cover_what_is_useless_once_each_with_few_rows_and_whole_records(content, limit):
    parts = list(pieces(content, limit))
    covered = [at for ranges, _ in parts for at in sorted(units(ranges))]
    assert len(covered) == len(set(covered))
    assert set(covered) == units(content.useless()) - units(content.line.dead)
    assert [each for _, doomed in parts for each in doomed] == content.doomed
    for ranges, doomed in parts:
        assert len(doomed) <= limit and ranges
        for each in doomed:  # a record is never cut: its row goes with all of its bytes
            assert set(range(each.start, each.stop)) <= units(ranges)


class Everything:
    """A reach that holds some ids."""

    def __init__(self, ids) -> None:
        self.found, self.bases = dict.fromkeys(ids, None), set()

    def __contains__(self, id) -> bool:
        return id in self.found

    def __len__(self) -> int:
        return len(self.found)


def test_an_inventory_counts_every_record_once(db):
    ids = put(db, b"a", b"b" * 5000, b"c")
    with db.view() as view:
        places = {id: view.place(id) for id in ids}
        inventory = take_inventory(view, Everything(ids[:2]))
    (pack,) = inventory.packs.values()
    assert (pack.kept_bytes, pack.doomed_bytes) == (
        sum(places[id].length for id in ids[:2]),
        places[ids[2]].length,
    )
    assert [each.id for each in pack.doomed] == [ids[2]]
    assert inventory.doomed == (1, places[ids[2]].length) and inventory.commits == []
    with db.view() as view:
        everything = take_inventory(view, Everything([]), commits_only=True)
    assert all(pack.doomed == [] for pack in everything.packs.values())
