"""Trees: any entries come back, few changes rewrite few pages, and no bytes lead to anything but a ChainError."""

import contextlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.errors import ChainError, InvalidInput, Malformed
from chainstore.ids import ObjectId, fingerprint
from chainstore.model import tree
from chainstore.model.paths import Attr, encode_key
from chainstore.model.spec import Spec
from chainstore.model.tree import (
    MAX_EXTENTS,
    MAX_PAGE_BYTES,
    Entry,
    Extent,
    Root,
    page_links,
    read_tree,
    tree_pages,
    write_tree,
)
from chainstore.model.wire import decode, encode
from chainstore.testing.strategies import nodes, paths

QUICK = settings(deadline=None, max_examples=60)
FLOAT = Spec("float32", (3, 4))


class Pages(dict[ObjectId, bytes]):
    """Pages by id; `store` keeps one, `self.__getitem__` loads one."""

    def store(self, page: bytes) -> ObjectId:
        assert len(page) <= MAX_PAGE_BYTES
        name = ObjectId(fingerprint("page", page))
        self[name] = page
        return name


def chunk(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32, "big"))


def array(path: tuple, value: int = 0) -> Entry:
    return Entry(path, ["t"], FLOAT, (Extent(chunk(value), 0, 48),))


def written(entries: list[Entry]) -> tuple[ObjectId | None, Pages]:
    pages = Pages()
    return write_tree(entries, pages.store), pages


def names(count: int) -> list[tuple]:
    return [("model", f"layers.{i // 12}", f"block_{i % 12}.weight") for i in range(count)]


extents = st.lists(
    st.builds(Extent, st.integers(0, 9).map(chunk), st.integers(0, 1 << 20), st.integers(0, 1 << 20)), max_size=5
).map(tuple)
whole_extents = st.tuples(st.integers(1, 4), st.integers(1, 100), st.integers(0, 100)).map(
    lambda t: (*(Extent(chunk(i), 0, t[1]) for i in range(t[0])), Extent(chunk(9), 0, t[2]))
)
specs = st.none() | st.builds(
    Spec, st.sampled_from(["float32", "bfloat16", "raw20"]), st.lists(st.integers(0, 1000), max_size=4).map(tuple)
)
entries = st.lists(
    st.builds(Entry, paths(), nodes(max_leaves=5), specs, extents | whole_extents),
    max_size=12,
    unique_by=lambda entry: repr(entry.path),
)


@QUICK
@given(entries)
def test_any_entries_come_back_in_order(found):
    root, pages = written(found)
    back = list(read_tree(root, pages.__getitem__)) if root is not None else []
    assert list(map(told, back)) == list(map(told, found))  # not ==: to Python, NaN differs from itself and 1 is True


def told(entry: Entry) -> tuple[bytes, bytes, Spec | None, tuple[Extent, ...]]:
    path = encode([encode_key(key) for key in entry.path])
    return path, encode(entry.node), entry.spec, entry.extents


def test_keys_that_python_holds_equal_stay_apart():
    found = [array((key,)) for key in (1, True, 1.0, "1", b"1", Attr("1"), (1,), (True,))]
    root, pages = written(found)
    assert [repr(entry.path) for entry in read_tree(root, pages.__getitem__)] == [repr(e.path) for e in found]


@pytest.mark.parametrize("count", [MAX_EXTENTS, MAX_EXTENTS + 1, 3 * MAX_EXTENTS, 5 * MAX_EXTENTS + 7])
@pytest.mark.parametrize("whole", [True, False])
def test_an_array_of_many_chunks_keeps_its_extents_on_pages_of_their_own(count, whole):
    parts = tuple(Extent(chunk(i), 0 if whole else i % 3, 1 << 20) for i in range(count - 1))
    entry = Entry(("big",), ["t"], FLOAT, (*parts, Extent(chunk(count), 0, 5)))
    root, pages = written([entry, array(("small",))])
    assert next(read_tree(root, pages.__getitem__)) == entry
    assert set(tree_pages(root, pages.__getitem__)) == set(pages)
    assert len(pages) == 1 + (0 if count <= MAX_EXTENTS else -(-count // MAX_EXTENTS))


def test_a_hundred_thousand_entries_come_back_from_small_pages():
    found = [array(name, i) for i, name in enumerate(names(100_000))]
    root, pages = written(found)
    assert list(read_tree(root, pages.__getitem__)) == found
    sizes = sorted(map(len, pages.values()))
    assert 2_000 < sizes[len(sizes) // 2] < 10_000


def test_fifty_scattered_changes_rewrite_few_pages():
    found = [array(name, i) for i, name in enumerate(names(20_000))]
    before = written(found)[1]
    for at in random.Random(1).sample(range(20_000), 50):
        found[at] = array(found[at].path, 10**9 + at)
    new = set(written(found)[1]) - set(before)
    assert len(new) <= 50 + 6  # leaf pages, and those above them
    assert sum(len(page) for id, page in written(found)[1].items() if id in new) < 500_000


def test_one_inserted_key_moves_nothing_else():
    found = [array(name, i) for i, name in enumerate(names(20_000))]
    before = written(found)[1]
    for at in (0, 7_777, 20_000):
        more = [*found[:at], array(("model", "new"), 5), *found[at:]]
        assert len(set(written(more)[1]) - set(before)) <= 5


def test_pages_do_not_depend_on_history():
    found = [array(name, i) for i, name in enumerate(names(500))]
    assert written(found)[0] == written(list(found))[0]
    assert written(found[:-1])[0] != written(found)[0]


def test_long_names_and_large_layouts_never_make_a_page_too_large():
    long = [array((f"{i:05}" + "n" * 30_000,)) for i in range(10)]
    wide = [Entry((f"w{i}",), [*range(10_000)], None, ()) for i in range(10)]
    deep = [Entry((*tuple(f"k{j}" * 50 for j in range(50)), i), ["t"], None, ()) for i in range(200)]
    root, pages = written([*long, *wide, *deep])  # `store` checks every page
    assert list(read_tree(root, pages.__getitem__)) == [*long, *wide, *deep]


def test_a_name_that_would_fill_a_page_is_refused():
    with pytest.raises(InvalidInput):
        written([array(("n" * MAX_PAGE_BYTES,))])


def test_index_pages_of_long_common_prefixes_stay_small():
    found = [array(("p" * 3_000, f"{i}", f"{j}"), i) for i in range(120) for j in range(64)]
    root, pages = written(found)
    assert list(read_tree(root, pages.__getitem__)) == found


def test_reading_below_a_path_leaves_out_pages_that_hold_other_things():
    found = [array(name, i) for i, name in enumerate(names(20_000))]
    found += [array(("rng", f"{i}"), i) for i in range(300)]
    root, pages = written(found)
    loaded = []

    def load(page: ObjectId) -> bytes:
        loaded.append(page)
        return pages[page]

    below = [entry for entry in read_tree(root, load, ("rng",)) if entry.path[0] == "rng"]
    assert below == found[20_000:]
    assert len(loaded) < len(pages) // 10


def test_every_page_and_chunk_is_named_once_by_the_page_above_it():
    found = [array(name, i % 50) for i, name in enumerate(names(3_000))]
    root, pages = written(found)
    seen, chunks = {root}, set()
    stack = [root]
    while stack:
        links = page_links(pages[stack.pop()], strict=True)
        assert len(set(links.pages)) == len(links.pages)
        chunks.update(links.chunks)
        stack += links.pages
        seen.update(links.pages)
    assert seen == set(pages) == set(tree_pages(root, pages.__getitem__))
    assert chunks == {chunk(i) for i in range(50)}


@given(st.booleans(), st.booleans(), st.booleans())
def test_a_root_comes_back(state, files, ranks):
    root = Root(*(chunk(i) if there else None for i, there in enumerate((state, files, ranks))))
    assert Root.from_bytes(root.to_bytes()) == root


# ---- hostile pages ----


def read_everything(data: bytes) -> None:
    """Read `data` as any page, every page below it being `data` as well."""
    for read in (
        lambda: list(read_tree(chunk(0), lambda _: data)),
        lambda: list(tree_pages(chunk(0), lambda _: data)),
        lambda: page_links(data, strict=True),
        lambda: Root.from_bytes(data),
    ):
        with contextlib.suppress(ChainError):
            read()


rows = st.lists(st.lists(nodes(max_leaves=4) | st.integers(-3, 3) | st.binary(max_size=70), max_size=6), max_size=3)
hostile = st.tuples(st.integers(0, 5), rows).map(list) | nodes()


@settings(deadline=None, max_examples=400)
@given(hostile.map(encode) | st.binary(max_size=200))
def test_no_node_at_all_makes_a_reader_of_pages_fail_otherwise(data):
    read_everything(data)


@settings(deadline=None, max_examples=200)
@given(entries, st.data())
def test_a_damaged_page_leads_to_a_chain_error_or_to_entries(found, data):
    _root, pages = written([*found, array(("last",))])
    page = bytearray(pages[data.draw(st.sampled_from(sorted(pages)))])
    for _ in range(data.draw(st.integers(1, 3))):
        page[data.draw(st.integers(0, len(page) - 1))] = data.draw(st.integers(0, 255))
    read_everything(bytes(page))


BAD_EXTENTS = {
    "a length that is no number": [bytes(32), ["x", "y"]],
    "a negative offset": [bytes(32), [-1, 5]],
    "beyond any chunk": [bytes(32), [0, 1 << 40]],
    "more chunks than bytes": [bytes(96), 10, 15],
    "less than nothing in all": [bytes(32), 10, -5],
    "a cut-off id": [bytes(33), [0, 1]],
    "pages that are no bytes": [5, 0, None, None],
    "five items": [1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("extents", BAD_EXTENTS.values(), ids=BAD_EXTENTS)
def test_extents_that_make_no_sense_are_malformed(extents):
    page = encode([tree.LEAF, [[0, ["k"], ["t"], None, extents]]])
    with pytest.raises(Malformed):
        list(read_tree(chunk(0), lambda _: page))


def test_few_pages_cannot_stand_for_endlessly_many_entries():
    leaf = encode([tree.LEAF, [[0, ["k"], ["t"], None, []]]])
    pages = {chunk(0): leaf}
    for level in range(1, 12):
        below = [[bytes(chunk(level - 1)), 1, []]] * 100
        pages[chunk(level)] = encode([tree.INDEX, below])
    with pytest.raises(Malformed, match="twice"):
        list(read_tree(chunk(11), pages.__getitem__))
    assert len(list(tree_pages(chunk(11), pages.__getitem__))) == 12


def test_pages_that_nest_without_end_are_malformed():
    def load(page: ObjectId) -> bytes:
        return encode([tree.INDEX, [[bytes(chunk(int.from_bytes(page, "big") + 1)), 1, []]]])

    with pytest.raises(Malformed, match="deep"):
        list(read_tree(chunk(0), load))


def test_a_page_without_rows_is_malformed():
    for code in (tree.LEAF, tree.INDEX):
        with pytest.raises(Malformed):
            page_links(encode([code, []]))


def test_a_strict_reader_refuses_another_encoding_of_the_same_page():
    page = encode([tree.LEAF, [[0, ["k"], ["t"], None, []]]])
    longer = page.replace(b"\x82\x01", b"\x82\x18\x01", 1)
    assert decode(longer) == decode(page)
    page_links(longer)
    with pytest.raises(Malformed):
        page_links(longer, strict=True)


@QUICK
@given(seed=st.integers(0, 1 << 32), count=st.sampled_from([0, 1, 5, 400, 3000]))
def test_pages_that_are_written_again_are_those_of_a_new_tree(seed, count):
    source = random.Random(seed)
    before = [array(path, number) for number, path in enumerate(names(count))]
    for place in source.sample(range(count), min(count, 2)):  # extents on pages of their own
        before[place] = Entry(before[place].path, ["t"], FLOAT, tuple(Extent(chunk(i), 0, 48) for i in range(600)))
    kept, stored = tree.Pages(), Pages()
    assert kept.write(before, stored.store) == written(before)[0]
    for _ in range(3):
        after = list(before)
        for place in source.sample(range(count), min(count, source.choice([0, 1, 7]))):
            was = after[place]
            moved = tuple(Extent(chunk(source.randrange(9)), 0, 48) for _ in was.extents)
            after[place] = Entry(was.path, was.node, was.spec, moved)
        gone = source.choice([frozenset(), frozenset(source.sample(sorted(stored), len(stored) // 2))])
        again = Pages()
        id = kept.write(after, again.store, lambda id, gone=gone: id in stored and id not in gone)
        root, whole = written(after)
        assert id == root, f"seed {seed}"
        assert {**{name: page for name, page in stored.items() if name not in gone}, **again}.keys() >= whole.keys()
        stored.update(again)
        before = after


def test_one_entry_that_moved_costs_the_pages_above_it():
    before = [array(path) for path in names(20_000)]
    kept, first, second = tree.Pages(), Pages(), Pages()
    kept.write(before, first.store)
    after = [*before[:777], array(before[777].path, 5), *before[778:]]
    kept.write(after, second.store, first.__contains__)
    assert len(first) > 200 and len(second) <= 4
