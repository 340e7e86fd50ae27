"""Snapshots that read only what they are asked for.

    snap = repo["step:1200"]
    snap["model"]["layer.0.weight"]         one tensor, verified
    snap.keys("model/**")                   names, from the trees alone
    snap.slice("model/emb.weight")[10:20]   only the chunks touched
    snap.load_into(model, optimizer)        in place; memory that already holds the bytes is left alone

What is where:

    snapshot   `Snapshot`: what a user can ask
    loading    into live objects: what each is, what fits, and only then a write
    slices     `ArraySlice`: rows of one array
    content    the entries at and below one path of a snapshot
    selection  which paths `select` and `exclude` leave
    reading    bytes from the store, and what to say when they are damaged
"""

from chainstore.lazy.loading import Loadable, LoadResult
from chainstore.lazy.reading import Reading
from chainstore.lazy.selection import Globs
from chainstore.lazy.slices import ArraySlice
from chainstore.lazy.snapshot import Snapshot, TensorInfo

__all__ = [
    "ArraySlice",
    "Globs",
    "LoadResult",
    "Loadable",
    "Reading",
    "Snapshot",
    "TensorInfo",
]
