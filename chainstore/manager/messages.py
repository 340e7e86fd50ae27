"""What the trainer and its writer process say to each other.

    Hello -> [Snapshot | Tidy]... -> Bye          trainer to writer
    [Durable | Failed | Told]...                  writer to trainer

A message is one node (`model.wire`); `channel` carries it, and beside it descriptors: the memory of a capture, the
branch's lock.  The leaves of a capture are encoded once for as long as the structure of the state stays the same.
"""

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Final, TypeAlias

from chainstore.crypto.keys import KeyCommand, KeyFile, KeyProvider, Passphrase
from chainstore.errors import Malformed, Unsupported
from chainstore.ids import ObjectId
from chainstore.manager.captured import CapturedLeaf
from chainstore.model.commit import Stats, decode_commit, encode_commit
from chainstore.model.paths import decode_key, encode_key
from chainstore.model.spec import spec_from_node, spec_node
from chainstore.model.wire import Encodable, Node, decode, encode
from chainstore.repository import FileContent, Handed, make_note

PROTOCOL: Final = 1
_NOBODY: Final = ObjectId(bytes(32))


@dataclass(frozen=True, slots=True)
class Request:
    """What a commit should be, as `Repository.commit` takes it.

    Attributes:
        files: name in the snapshot -> what was in it, or a path on disk, read when the snapshot is made durable.
        root: begin a chain of its own, where the branch does not exist yet.
        checksums: say also what the bytes of each leaf sum up to (`checksums`).
    """

    branch: str | None = None
    message: str = ""
    step: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, object] = field(default_factory=dict)
    meta: Mapping[str, object] = field(default_factory=dict)
    tags: Sequence[str] = ()
    files: Mapping[str, str | os.PathLike[str] | FileContent] = field(default_factory=dict)
    expected_head: str | None = None
    codec: str | None = None
    root: bool = False
    checksums: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message: where the repository is, and who speaks.  With it comes the branch's lock, if one is held."""

    handed: Handed
    trainer: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A capture to be made durable.  With it come the memory of the bytes, and that of the leaves (`encode_leaves`)."""

    number: int
    request: Request


@dataclass(frozen=True, slots=True)
class Tidy:
    """Drop what a retention policy (as text) does not keep, and take the garbage away."""

    retention: str


@dataclass(frozen=True, slots=True)
class Bye:
    """The last message of either side; the trainer's means: finish, and end."""


@dataclass(frozen=True, slots=True)
class Durable:
    """A capture became a commit.

    Attributes:
        commit: its id, 64 hex digits.  seconds: from taking it up to acknowledgement.
        checksums: of its leaves, where they were asked for.
        left_out: files that could not be read, and why not, by name.
    """

    number: int
    commit: str
    seconds: float
    raw_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    checksums: bytes = b""
    left_out: Mapping[str, str] = field(default_factory=dict)
    delta_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """A capture did not become a commit; code, text and hint are the error's."""

    number: int
    code: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Told:
    """Something a person should read; see `observe.Notice`."""

    code: str
    text: str


Message: TypeAlias = Hello | Snapshot | Tidy | Bye | Durable | Failed | Told


def encode_message(message: Message) -> bytes:
    """Return the bytes of a message.

    Raises:
        Unsupported: the key of a repository is of a kind that cannot be sent.
        InvalidInput: what should be said of a commit cannot be stored.
    """
    match message:
        case Hello(handed, trainer):
            return encode([0, PROTOCOL, trainer, _handed_node(handed)])
        case Snapshot(number, request):
            return encode([1, number, _request_node(request)])
        case Tidy(retention):
            return encode([2, retention])
        case Bye():
            return encode([3])
        case Durable(number, commit, seconds, raw, new, stored, sums, left_out, delta):
            files: Encodable = [[_readable(name), _readable(why)] for name, why in left_out.items()]
            sizes = (raw, new, stored, delta)
            return encode([4, number, commit, struct.pack("<d", seconds), *sizes, sums, files])
        case Failed(number, code, text, hint):
            return encode([5, number, *map(_readable, (code, text, hint))])
        case Told(code, text):
            return encode([6, *map(_readable, (code, text))])


def decode_message(data: bytes) -> Message:
    """Return the message whose bytes these are.

    Raises:
        Malformed: they are none, or of another version of chainstore.
    """
    match decode(data, what="message"):
        case [0, int(protocol), int(trainer), list(handed)] if protocol == PROTOCOL:
            return Hello(_handed(handed), trainer)
        case [1, int(number), list(request)]:
            return Snapshot(number, _request(request))
        case [2, str(retention)]:
            return Tidy(retention)
        case [3]:
            return Bye()
        case [
            4,
            int(number),
            str(commit),
            bytes(seconds),
            int(raw),
            int(new),
            int(stored),
            int(delta),
            bytes(sums),
            list(files),
        ]:
            left_out = {str(name): str(why) for name, why in files}  # type: ignore  # our own process wrote it
            return Durable(number, commit, struct.unpack("<d", seconds)[0], raw, new, stored, sums, left_out, delta)
        case [5, int(number), str(code), str(text), str(hint)]:
            return Failed(number, code, text, hint)
        case [6, str(code), str(text)]:
            return Told(code, text)
    raise Malformed("message", "it is of another version of chainstore")


def encode_leaves(leaves: Sequence[CapturedLeaf]) -> bytes:
    """Return the bytes of leaves, in the same order."""
    return encode([_leaf_node(leaf) for leaf in leaves])


def _leaf_node(leaf: CapturedLeaf) -> Encodable:
    spec = None if leaf.spec is None else spec_node(leaf.spec)
    return [[encode_key(key) for key in leaf.path], leaf.node, spec, leaf.offset, leaf.nbytes]


def decode_leaves(data: bytes | memoryview) -> tuple[CapturedLeaf, ...]:
    """Return the leaves whose bytes these are.

    Raises:
        Malformed: they are none.
    """
    rows = decode(data, what="leaves")
    if not isinstance(rows, list):
        raise Malformed("leaves", "not a list")
    return tuple(map(_leaf, rows))


def _leaf(row: Node) -> CapturedLeaf:
    match row:
        case [list(path), node, spec, int(offset), int(nbytes)]:
            keys = tuple(map(decode_key, path))
            return CapturedLeaf(keys, node, None if spec is None else spec_from_node(spec), offset, nbytes)
    raise Malformed("leaves", "not a leaf")


def _readable(text: str) -> str:
    """Return a text that can be sent: one of an error may hold pieces of file names that are not UTF-8."""
    return text.encode(errors="replace").decode()


def _request_node(request: Request) -> Encodable:
    note = make_note(request.message, request.step, request.epoch, request.metrics, request.meta)
    files: Encodable = [[name, *_file_node(file)] for name, file in request.files.items()]
    told = encode_commit(_NOBODY, (), note, 0, Stats())
    last = (request.root, request.checksums)
    return [request.branch, told, tuple(request.tags), files, request.expected_head, request.codec, *last]


def _request(row: list[Node]) -> Request:
    branch, told, tags, files, expected, codec, root, checksums = row
    note = decode_commit(_NOBODY, told)  # type: ignore[arg-type]  # from here on our own process wrote it
    return Request(
        branch,  # type: ignore[arg-type]
        note.message,
        note.step,
        note.epoch,
        note.metrics,
        note.meta,
        tuple(tags),  # type: ignore[arg-type]
        {name: _file(*file) for name, *file in files},  # type: ignore
        expected,  # type: ignore[arg-type]
        codec,  # type: ignore[arg-type]
        bool(root),
        bool(checksums),
    )


def _file_node(file: str | os.PathLike[str] | FileContent) -> tuple[Encodable, ...]:
    if isinstance(file, FileContent):
        return file.data, file.executable
    return (os.fsencode(os.path.abspath(file)),)


def _file(data: bytes, executable: bool | None = None) -> str | FileContent:
    return os.fsdecode(data) if executable is None else FileContent(data, executable)


def _handed_node(handed: Handed) -> Encodable:
    index_dir = None if handed.index_dir is None else os.fsencode(handed.index_dir)
    limits = (handed.threads, handed.max_memory_bytes)
    return [os.fsencode(handed.root), _key_node(handed.key), *limits, index_dir, handed.branch, handed.moves]


def _handed(row: list[Node]) -> Handed:
    match row:
        case [bytes(root), key, int(threads), int(memory), index_dir, branch, int(moves)] if (
            index_dir is None or isinstance(index_dir, bytes)
        ) and (branch is None or isinstance(branch, str)):
            index = None if index_dir is None else FilePath(os.fsdecode(index_dir))
            return Handed(FilePath(os.fsdecode(root)), _key(key), threads, memory, index, branch, moves)
    raise Malformed("message", "it is of another version of chainstore")


def _key_node(key: KeyProvider | None) -> Node:
    match key:
        case None:
            return None
        case KeyFile(path=path):
            return ["file", os.fsencode(path.absolute())]
        case KeyCommand(command=command, timeout_seconds=seconds):
            return ["command", os.fsencode(command), struct.pack("<d", seconds)]
        case Passphrase(text=text):
            return ["passphrase", os.fsencode(text)]
    raise Unsupported(
        f"a {type(key).__name__} cannot be sent to another process",
        hint='mode="thread" keeps everything in this one; or use a KeyFile, a KeyCommand or a Passphrase',
    )


def _key(node: Node) -> KeyProvider | None:
    match node:
        case None:
            return None
        case ["file", bytes(path)]:
            return KeyFile(os.fsdecode(path))
        case ["command", bytes(command), bytes(seconds)]:
            return KeyCommand(os.fsdecode(command), struct.unpack("<d", seconds)[0])
        case ["passphrase", bytes(text)]:
            return Passphrase(os.fsdecode(text))
    raise Malformed("message", "a key of an unknown kind")
