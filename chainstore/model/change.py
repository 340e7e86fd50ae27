"""Changes: what one line of the commit log says happened.

The log is the truth about refs, configuration, forget marks, packs and gc; the index is what these changes make
when they are applied in order.  A line's body is `[time, [change...]]`, sealed; a change is `[code, ...]`:

    1  SetRef       name, old, new, reason          a ref moved; ids as bytes, a symbolic target as text, nil for none
    2  PackGrown    pack, start, stop, contents     records at [start, stop) of a pack became part of the store
    3  SetConfig    key, value                      a setting of this repository; nil removes it
    4  Mark         commits, policy                 snapshots were forgotten
    5  Unmark       commits                         forgetting was undone
    6  Swept        commits                         these marks are final: gc starts to take their bytes
    7  Dead         pack, [start, stop...]          byte ranges of a pack that hold nothing any more
    8  Retired      pack                            a pack that holds nothing any more and may vanish
    9  Keyring      number                          the key slots now in force
    10 Incident     text                            something a person should know later
    11 Checkpoint   see `Checkpoint`                everything above, summed up: the first change of every segment
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chainstore.errors import FormatTooNew, Malformed
from chainstore.ids import ObjectId
from chainstore.model.wire import Node, decode, encode

Target = ObjectId | str | None  # a commit, a symbolic ref ("heads/main"), nothing


@dataclass(frozen=True, slots=True)
class SetRef:
    """A ref moved from `old` to `new`; publishing checks that it still was at `old`."""

    name: str
    old: Target
    new: Target
    reason: str = ""


@dataclass(frozen=True, slots=True)
class PackGrown:
    """Records at [start, stop) of `pack` (16 bytes, its name) joined the store.

    `contents` is the offset of the pack's closing record, 0 while it is open.
    """

    pack: bytes
    start: int
    stop: int
    contents: int = 0


@dataclass(frozen=True, slots=True)
class SetConfig:
    key: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Mark:
    commits: tuple[ObjectId, ...]
    policy: str


@dataclass(frozen=True, slots=True)
class Unmark:
    commits: tuple[ObjectId, ...]


@dataclass(frozen=True, slots=True)
class Swept:
    commits: tuple[ObjectId, ...]


@dataclass(frozen=True, slots=True)
class Dead:
    pack: bytes
    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Retired:
    pack: bytes


@dataclass(frozen=True, slots=True)
class SetKeyring:
    number: int


@dataclass(frozen=True, slots=True)
class Incident:
    text: str


@dataclass(frozen=True, slots=True)
class ReflogLine:
    """One move of one ref, as kept in the reflog."""

    name: str
    seq: int
    ordinal: int
    old: Target
    new: Target
    time_us: int
    reason: str


@dataclass(frozen=True, slots=True)
class MarkLine:
    """A forgotten commit: when, by which policy, whether gc began to take its bytes."""

    commit: ObjectId
    time_us: int
    policy: str
    swept: bool


@dataclass(frozen=True, slots=True)
class PackLine:
    """A pack: its name, committed length, where its closing record is (0: open), dead ranges, retired or not."""

    pack: bytes
    length: int
    contents: int
    dead: tuple[tuple[int, int], ...] = ()
    retired: bool = False


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole state of the log at one moment, so that older segments may go.

    Attributes:
        format_hash: 32 bytes over the `format` file.
        keyring: number of the key slots in force.
    """

    format_hash: bytes
    keyring: int
    refs: tuple[tuple[str, Target], ...]
    config: tuple[tuple[str, str], ...]
    marks: tuple[MarkLine, ...]
    reflog: tuple[ReflogLine, ...]
    packs: tuple[PackLine, ...]


Change = SetRef | PackGrown | SetConfig | Mark | Unmark | Swept | Dead | Retired | SetKeyring | Incident | Checkpoint


def encode_changes(time_us: int, changes: Sequence[Change]) -> bytes:
    """Return the plaintext body of a log line."""
    return encode([time_us, [_encode(change) for change in changes]])


def decode_changes(body: bytes) -> tuple[int, tuple[Change, ...]]:
    """Return time (microseconds since 1970) and changes of a log line's body.

    Raises:
        Malformed: it does not follow the format.
        FormatTooNew: it holds a change that this version does not know.
    """
    match decode(body, what="log line"):
        case [int(time_us), list(changes)]:
            return time_us, tuple(_decode(change) for change in changes)
    raise Malformed("log line", "unknown layout")


def _encode(change: Change) -> Node:
    match change:
        case SetRef(name, old, new, reason):
            return [1, name, _target(old), _target(new), reason]
        case PackGrown(pack, start, stop, contents):
            return [2, pack, start, stop, contents]
        case SetConfig(key, value):
            return [3, key, value]
        case Mark(commits, policy):
            return [4, b"".join(commits), policy]
        case Unmark(commits):
            return [5, b"".join(commits)]
        case Swept(commits):
            return [6, b"".join(commits)]
        case Dead(pack, ranges):
            return [7, pack, _flat(ranges)]
        case Retired(pack):
            return [8, pack]
        case SetKeyring(number):
            return [9, number]
        case Incident(text):
            return [10, text]
        case Checkpoint():
            return [11, change.format_hash, change.keyring, *_checkpoint_lists(change)]


def _checkpoint_lists(point: Checkpoint) -> list[Node]:
    return [
        [[name, _target(target)] for name, target in point.refs],
        [[key, value] for key, value in point.config],
        [[bytes(m.commit), m.time_us, m.policy, m.swept] for m in point.marks],
        [[r.name, r.seq, r.ordinal, _target(r.old), _target(r.new), r.time_us, r.reason] for r in point.reflog],
        [[p.pack, p.length, p.contents, _flat(p.dead), p.retired] for p in point.packs],
    ]


def _decode(node: Node) -> Change:
    try:
        match node:
            case [1, str(name), old, new, str(reason)]:
                return SetRef(name, read_target(old), read_target(new), reason)
            case [2, bytes(pack), int(start), int(stop), int(contents)]:
                return PackGrown(pack, start, stop, contents)
            case [3, str(key), (str() | None) as value]:
                return SetConfig(key, value)
            case [4, bytes(commits), str(policy)]:
                return Mark(_commits(commits), policy)
            case [5, bytes(commits)]:
                return Unmark(_commits(commits))
            case [6, bytes(commits)]:
                return Swept(_commits(commits))
            case [7, bytes(pack), list(ranges)]:
                return Dead(pack, _pairs(ranges))
            case [8, bytes(pack)]:
                return Retired(pack)
            case [9, int(number)]:
                return SetKeyring(number)
            case [10, str(text)]:
                return Incident(text)
            case [
                11,
                bytes(format_hash),
                int(keyring),
                list(refs),
                list(config),
                list(marks),
                list(reflog),
                list(packs),
            ]:
                return _decode_checkpoint(format_hash, keyring, refs, config, marks, reflog, packs)
            case [int(code), *_] if code > 11:
                raise FormatTooNew(f"log change {code}", "read")
    except (TypeError, ValueError) as error:
        raise Malformed("log line", f"a change with wrong fields ({error})") from error
    raise Malformed("log line", "a change of an unknown layout")


def _decode_checkpoint(format_hash: bytes, keyring: int, *lists: list[Node]) -> Checkpoint:
    refs, config, marks, reflog, packs = lists
    return Checkpoint(
        format_hash,
        keyring,
        tuple((name, read_target(target)) for name, target in refs),  # type: ignore
        tuple((key, value) for key, value in config),  # type: ignore
        tuple(MarkLine(ObjectId(c), t, policy, swept) for c, t, policy, swept in marks),  # type: ignore
        tuple(
            ReflogLine(name, seq, ordinal, read_target(old), read_target(new), t, why)  # type: ignore
            for name, seq, ordinal, old, new, t, why in reflog  # type: ignore
        ),
        tuple(PackLine(pack, length, end, _pairs(dead), gone) for pack, length, end, dead, gone in packs),  # type: ignore
    )


def _target(target: Target) -> Node:
    return bytes(target) if isinstance(target, ObjectId) else target


def read_target(node: Node) -> Target:
    """Return the target that `node` encodes: an id, a symbolic ref, or None."""
    if node is None or isinstance(node, str):
        return node
    if isinstance(node, bytes):
        return ObjectId(node)
    raise ValueError(f"{type(node).__name__} is no target")


def _commits(data: bytes) -> tuple[ObjectId, ...]:
    return tuple(ObjectId(data[i : i + 32]) for i in range(0, len(data), 32))


def _flat(ranges: Sequence[tuple[int, int]]) -> Node:
    return [number for pair in ranges for number in pair]


def _pairs(numbers: Node) -> tuple[tuple[int, int], ...]:
    if not isinstance(numbers, list) or len(numbers) % 2:
        raise ValueError("ranges come in pairs")
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))  # type: ignore[arg-type]
