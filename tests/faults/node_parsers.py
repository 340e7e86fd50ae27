"""Parsers of what is CBOR inside: changes, trees, commits, values, a whole state, and a whole log."""

from collections.abc import Iterator
from pathlib import Path

import cbor2

from chainstore.errors import ChainError, Damaged, NotFound
from chainstore.ids import ObjectId
from chainstore.model.change import decode_changes, encode_changes
from chainstore.model.commit import decode_commit
from chainstore.model.frame import (
    Line,
)
from chainstore.model.manifest import Manifest
from chainstore.model.tree import Root, page_links, read_tree
from chainstore.model.wire import decode, encode
from chainstore.repository import open as open_repository
from chainstore.repository import rebuild
from chainstore.state import Assembly
from chainstore.state.values import decode_value
from tests.faults.parser import MOST_BYTES, NODES, REFUSED, Parser
from tests.faults.samples import Samples


def changes(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        found = decode_changes(data)
        assert decode_changes(encode_changes(*found)) == found
        return found

    return Parser((*samples.bodies, *_every_change()), parse, 80_000, changes=NODES)


def _every_change() -> Iterator[bytes]:
    """Yield bodies with the changes that no short history holds."""
    id, name = bytes(range(32)), bytes(16)
    marks, packs = [[id, 5, "policy", True]], [[name, 4096, 2048, [0, 64, 128, 256], False]]
    point = [11, id, 3, [["HEAD", "heads/main"], ["heads/main", id]], [["codec", "small"]], marks, [], packs]
    yield cbor2.dumps([1, [point]])
    rest = [
        [3, "codec", None],
        [4, id, "policy"],
        [5, id],
        [6, id],
        [7, name, [0, 64]],
        [8, name],
        [9, 7],
        [10, "text"],
    ]
    yield cbor2.dumps([-5, [[1, "heads/a", None, id, "why"], [2, name, 0, 64, 0], *rest, [12, 1 << 40]]])
    yield cbor2.dumps([1 << 62, [[1, "HEAD", "heads/a", "heads/b", ""], [99, "later"]]])


def node(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        found = decode(data)
        if encode(found) == data:  # type: ignore[arg-type]
            assert decode(data, strict=True) == found
        else:
            try:
                decode(data, strict=True)
            except Damaged:
                return found
            raise AssertionError("taken for the shortest form, which it is not")
        return found

    return Parser((*samples.nodes, *_nasty_nodes()), parse, 120_000)


def _nasty_nodes() -> tuple[bytes, ...]:
    deep = [b"\x81" * depth + b"\x80" for depth in (199, 200, 201, 100_000)]
    long = b"\x82" * 190 + b"\x01" * 191
    return (*deep, long, b"\x9b" + b"\xff" * 8, b"\x5b" + b"\x7f" * 8, b"\xc2\x5b" + b"\x7f" * 8, b"\xd9\xd9\xf7\x01")


def page(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        links = page_links(data)
        return links, list(read_tree(_FIRST, samples.load_after(data)))

    def parse_any(data: bytes) -> object:
        try:
            root = Root.from_bytes(data)
        except Damaged:
            return parse(data)
        assert Root.from_bytes(root.to_bytes()) == root
        return root

    return Parser((*samples.pages, *samples.roots), parse_any, 9_000, changes=NODES)


def commit(samples: Samples, folder: Path) -> Parser:
    return Parser(samples.commits, lambda data: decode_commit(_FIRST, data), 60_000, changes=NODES)


def value(samples: Samples, folder: Path) -> Parser:
    return Parser(samples.values, lambda data: decode_value(decode(data)), 110_000, changes=NODES)


def snapshot(samples: Samples, folder: Path) -> Parser:
    def parse(data: bytes) -> object:
        entries = Manifest(read_tree(_FIRST, samples.load_after(data))).entries
        if sum(entry.nbytes for entry in entries) > MOST_BYTES:
            return None
        assembly = Assembly(entries)
        for destination in assembly.destinations:
            stored = samples.content(destination.entry, len(destination.buffer))
            destination.buffer[:] = stored
        return assembly.build()

    return Parser(samples.pages, parse, 9_000, (*REFUSED, NotFound), changes=NODES)


_FIRST = ObjectId(b"\xff" * 32)


def replay(samples: Samples, folder: Path) -> Parser:
    """The log of a repository that is not encrypted: whoever can write to it can make every line right."""
    root = samples.copy_plain(folder / "repo")
    refusals = (*REFUSED, *(kind for kind in ChainError.__subclasses__() if kind.code in ("denied", "not-found")))

    def parse(data: bytes) -> object:
        lines, before = [], bytes(32)
        for seq, body in enumerate(decode(data) if isinstance(decode(data), list) else [], 1):  # type: ignore[arg-type]
            made = Line(0, seq, before, encode(body))
            lines.append(made.to_bytes())
            before = made.hash
        samples.put_log(root, b"".join(lines))
        report = rebuild(root)
        with open_repository(root) as repo:
            repo.branches(), repo.tags(), repo.reflog(), list(repo.log(all_refs=True)), repo.settings()
            checked = repo.verify("links")
        return report, checked

    return Parser((samples.plain_bodies,), parse, 450, refusals, changes=NODES)
