"""Forms: a commit that goes by what the last one left names the same bytes as one that knows nothing."""

import gc
import random
import weakref
from operator import is_

import numpy as np
import pytest
import torch

from chainstore.ids import Kind, ObjectId
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Root, read_tree
from chainstore.observe import silent
from chainstore.ops.commit import write, write_trees
from chainstore.ops.deltas import Choices, Lines
from chainstore.ops.form import Form
from chainstore.ops.linking import Memory
from chainstore.repository.walking import Walks
from chainstore.state import Trace, flatten
from chainstore.state.leaf import Leaf
from chainstore.state.walked import Retraced, Walked, copy_contents
from tests.ops.stores import batch_of, load


def commit(db, leaves, form=None, threads=1) -> tuple[ObjectId, Manifest, list[bytes]]:
    """Publish leaves; return the id of the root, the manifest, and which pages were handed to the batch."""
    pages: list[bytes] = []
    with batch_of(db) as batch:
        append = batch.append

        def noted(kind, data, *rest):
            if kind is Kind.TREE:
                pages.append(bytes(data))
            return append(kind, data, *rest)

        batch.append = noted
        manifest, _ = write(
            batch, leaves, threads=threads, max_memory_bytes=1 << 30, observer=silent, lines=None, form=form
        )
        root, _ = write_trees(batch, manifest, Manifest(), form)
        db.publish(batch, [])
    return root, manifest, pages


def state(source: random.Random) -> dict:
    """Return arrays of all sizes, tied ones, and plain values."""
    sizes = [source.choice([1, 3, 16, 200, 1000, 3000, 5000, 400_000]) for _ in range(source.choice([3, 60, 300]))]
    model = {f"layer.{number}": torch.arange(float(size)) for number, size in enumerate(sizes)}
    model["tied"] = model["layer.0"]
    model["turned"] = torch.arange(6.0).reshape(2, 3).t()
    model["gaps"] = torch.arange(40)[::4]
    return {"model": model, "array": np.arange(50), "step": 0, "history": [], "none": {}}


def change(source: random.Random, held: dict) -> None:
    """Change what training would."""
    model = held["model"]
    for name in source.sample(sorted(model), min(len(model), source.choice([0, 1, 2, 5]))):
        model[name][source.randrange(len(model[name]))] += 1
    kind = source.randrange(7)
    if kind == 0:
        held["step"] += source.choice([1, 100, 70_000])
    elif kind == 1:
        held["history"].append(0.5)
    elif kind == 2:
        held["array"] = held["array"] + 1
    elif kind == 3:
        model[f"new.{source.randrange(100)}"] = torch.ones(source.choice([5, 500]))
    elif kind == 4:
        model["layer.1"] = torch.zeros(source.choice([3, 300]))


@pytest.mark.parametrize("seed", range(12))
def test_commits_one_after_the_other_have_the_roots_of_commits_that_know_nothing(db, seed):
    source = random.Random(seed)
    held, walks, again = state(source), Walks(), 0
    for _ in range(8):
        leaves = walks.leaves(held)
        again += isinstance(leaves, Retraced)
        fresh = flatten(held)
        root, manifest, _ = commit(db, leaves, walks.form(leaves), source.choice([1, 3]))
        known_root, known, _ = commit(db, fresh)
        assert root == known_root and manifest.entries == known.entries, f"seed {seed}"
        assert [(leaf.path, leaf.node, leaf.spec) for leaf in leaves] == [leaf[:3] for leaf in fresh]
        numbers = [number for number, leaf in enumerate(fresh) if leaf.source is not None]
        assert copy_contents(leaves, numbers) == copy_contents(fresh, numbers), f"seed {seed}"
        change(source, held)
    assert again


def many() -> dict[str, torch.Tensor]:
    return {f"layer.{number}": torch.full((300,), float(number)) for number in range(2000)}


def test_only_pages_that_hold_what_changed_are_made_again(db):
    held, walks = many(), Walks()
    leaves = walks.leaves(held)
    _, before, all_pages = commit(db, leaves, walks.form(leaves))
    held["layer.77"] += 1
    leaves = walks.leaves(held)
    assert isinstance(leaves, Retraced)
    root, after, pages = commit(db, leaves, walks.form(leaves))
    assert len(all_pages) > 20 and len(pages) <= 4 + 2  # a chunk is on two pages at most; indexes, and the root
    kept = sum(map(is_, before.entries, after.entries))
    assert len(before) - 30 < kept < len(before)
    top = Root.from_bytes(bytes(db.read(root))).state
    assert tuple(read_tree(top, lambda id: bytes(db.read(id)))) == after.entries
    assert load(db, after)[78] == held["layer.77"].numpy().tobytes()


def test_a_page_that_is_not_stored_any_more_is_made_again(db):
    held = {name: tensor for name, tensor in many().items() if name < "layer.3"}
    leaves = flatten(held)
    form = Form(Walked(leaves))
    root, _, pages = commit(db, leaves, form)
    with batch_of(db) as batch:
        lost = batch.append(Kind.TREE, pages[3]).id
        rely = batch.rely
        batch.rely = lambda id: id != lost and rely(id)
        found: list[bytes] = []
        append = batch.append

        def noted(kind, data, *rest):
            found.append(bytes(data))
            return append(kind, data, *rest)

        manifest, _ = write(batch, leaves, threads=1, max_memory_bytes=1 << 30, observer=silent, form=form)
        batch.append = noted
        assert write_trees(batch, manifest, Manifest(), form)[0] == root
    assert found[0] == pages[3] and len(found) == 2  # it, and the root


def test_a_commit_that_failed_leaves_nothing_that_is_counted_on(db):
    held, walks = many(), Walks()
    leaves = walks.leaves(held)
    form = walks.form(leaves)
    commit(db, leaves, form)
    held["layer.5"] += 1
    with batch_of(db) as batch:  # written and never published
        later = walks.leaves(held)
        manifest, _ = write(batch, later, threads=1, max_memory_bytes=1 << 30, observer=silent, form=form)
        write_trees(batch, manifest, Manifest(), form)
    root, manifest, _ = commit(db, later, form)
    assert root == commit(db, flatten(held))[0]
    assert load(db, manifest)[6] == held["layer.5"].numpy().tobytes()


def test_a_form_fits_leaves_whose_names_are_the_same_objects_and_whose_sizes_are_equal():
    held = {"a": torch.ones(3), "n": 5}
    leaves = flatten(held)
    trace, walked = Trace.of(held, leaves), Walked(leaves)
    assert trace is not None
    form = Form(walked)
    again = trace.retrace(held, walked)
    assert again is not None and form.walked.fits(again.walked)
    assert not form.walked.fits(Walked(flatten(held)))  # (1,) and (True,) are equal
    longer = trace.retrace({"a": torch.ones(3), "n": 500}, walked)
    assert longer is not None and not form.walked.fits(longer.walked)
    assert longer.walked.sizes[-1] == walked.sizes[-1] + 2
    assert walked.sizes == Walked(leaves).sizes


def test_leaves_that_were_retraced_are_a_sequence_and_read_where_the_memory_is():
    held = {"a": torch.arange(4.0), "n": 5, "gaps": torch.arange(40)[::4]}
    leaves = flatten(held)
    trace = Trace.of(held, leaves)
    assert trace is not None
    other = {"a": torch.arange(4.0) + 7, "n": 6, "gaps": torch.arange(1, 41)[::4]}
    again = trace.retrace(other, Walked(leaves))
    assert again is not None and len(again) == len(leaves)
    assert [leaf.path for leaf in again[1:3]] == [("a",), ("n",)]
    leaf = again[1]
    assert isinstance(leaf, Leaf) and leaf.source is not None
    assert bytes(leaf.source.read(4, 12)) == other["a"].numpy()[1:3].tobytes()
    assert not leaf.source.read(4, 4)
    view = leaf.source.read(0, 16)
    del other["a"], again, leaf  # a view keeps the memory
    assert np.frombuffer(view, np.float32).tolist() == [7, 8, 9, 10]


def test_walks_keep_nothing_of_a_state_alive():
    held = {"a": torch.ones(3)}
    tensor = weakref.ref(held["a"])
    walks = Walks()
    walks.form(walks.leaves(held))
    walks.form(walks.leaves(held))
    held.clear()
    gc.collect()
    assert tensor() is None


def test_large_arrays_are_told_from_small_ones_and_from_long_lists():
    def has_large_arrays(held: dict) -> bool:
        return Form(Walked(flatten(held))).has_large_arrays

    small = {"weights": [torch.ones(4096)] * 9, "numbers": list(range(50_000)), "text": "x" * 100_000}
    assert not has_large_arrays(small)
    assert has_large_arrays({**small, "one": torch.ones(4097)})
    assert has_large_arrays({**small, "one": np.ones(2049)})


def test_links_are_looked_for_only_where_an_array_is_large(db):
    asked: list[int] = []

    class Asked(Lines):
        def begin(self, leaves, find, least_bytes):
            asked.append(max(leaf.source.nbytes for leaf in leaves if leaf.source is not None))
            return super().begin(leaves, find, least_bytes)

    for held in ({"a": torch.ones(3), "n": list(range(50_000))}, {"a": torch.ones(5000)}):
        lines = Asked(db, Manifest(), lambda count: None, Choices(), (Memory(), Memory()), None)
        with batch_of(db) as batch:
            write(batch, flatten(held), threads=1, max_memory_bytes=1 << 30, observer=silent, lines=lines)
    assert asked == [20_000]
