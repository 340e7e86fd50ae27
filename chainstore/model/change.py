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
    12 Expired      before                          lines of reflogs older than log line `before` are dropped
"""

from collections.abc import Sequence
from dataclasses import dataclass

from chainstore.errors import FormatTooNew, Malformed
from chainstore.ids import ID_BYTES, ObjectId
from chainstore.model.wire import Node, decode, encode

PACK_NAME_BYTES = 16
_TOO_MUCH = 1 << 63

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
class Expired:
    """Lines of reflogs that stand before line `before` of the log are dropped.

    The newest line of a ref that exists stays; of a deleted ref without lines, nothing stays.
    """

    before: int


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


Change = (
    SetRef
    | PackGrown
    | SetConfig
    | Mark
    | Unmark
    | Swept
    | Dead
    | Retired
    | SetKeyring
    | Incident
    | Checkpoint
    | Expired
)


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
        case [int(time_us), list(changes)] if -_TOO_MUCH < time_us < _TOO_MUCH:
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
        case Expired(before):
            return [12, before]


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
                return PackGrown(_pack(pack), *_range(start, stop), _size(contents))
            case [3, str(key), (str() | None) as value]:
                return SetConfig(key, value)
            case [4, bytes(commits), str(policy)]:
                return Mark(_commits(commits), policy)
            case [5, bytes(commits)]:
                return Unmark(_commits(commits))
            case [6, bytes(commits)]:
                return Swept(_commits(commits))
            case [7, bytes(pack), list(ranges)]:
                return Dead(_pack(pack), _ranges(ranges))
            case [8, bytes(pack)]:
                return Retired(_pack(pack))
            case [9, int(number)]:
                return SetKeyring(_size(number))
            case [10, str(text)]:
                return Incident(text)
            case [11, bytes(format_hash), int(keyring), list(a), list(b), list(c), list(d), list(e)]:
                lists = _refs(a), _config(b), _marks(c), _reflog(d), _packs(e)
                return Checkpoint(_hash(format_hash), _size(keyring), *lists)
            case [12, int(before)]:
                return Expired(_size(before))
            case [int(code), *_] if code > 12:
                raise FormatTooNew(f"log change {code}", "read")
    except ValueError as error:
        raise Malformed("log line", f"a change with wrong fields ({error})") from error
    raise Malformed("log line", "a change of an unknown layout")


def _refs(rows: list[Node]) -> tuple[tuple[str, Target], ...]:
    found = []
    for row in rows:
        match row:
            case [str(name), target]:
                found.append((name, read_target(target)))
            case _:
                raise ValueError("not a ref")
    return tuple(found)


def _config(rows: list[Node]) -> tuple[tuple[str, str], ...]:
    found = []
    for row in rows:
        match row:
            case [str(key), str(value)]:
                found.append((key, value))
            case _:
                raise ValueError("not a setting")
    return tuple(found)


def _marks(rows: list[Node]) -> tuple[MarkLine, ...]:
    found = []
    for row in rows:
        match row:
            case [bytes(commit), int(time_us), str(policy), bool(swept)]:
                found.append(MarkLine(ObjectId(commit), _time(time_us), policy, swept))
            case _:
                raise ValueError("not a mark")
    return tuple(found)


def _reflog(rows: list[Node]) -> tuple[ReflogLine, ...]:
    found = []
    for row in rows:
        match row:
            case [str(name), int(seq), int(ordinal), old, new, int(time_us), str(reason)]:
                moved = read_target(old), read_target(new)
                found.append(ReflogLine(name, _size(seq), _size(ordinal), *moved, _time(time_us), reason))
            case _:
                raise ValueError("not a line of a reflog")
    return tuple(found)


def _packs(rows: list[Node]) -> tuple[PackLine, ...]:
    found = []
    for row in rows:
        match row:
            case [bytes(pack), int(length), int(contents), list(dead), bool(retired)]:
                found.append(PackLine(_pack(pack), _size(length), _size(contents), _ranges(dead), retired))
            case _:
                raise ValueError("not a pack")
    return tuple(found)


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
    return tuple(ObjectId(data[i : i + ID_BYTES]) for i in range(0, len(data), ID_BYTES))


def _flat(ranges: Sequence[tuple[int, int]]) -> Node:
    return [number for pair in ranges for number in pair]


def _ranges(numbers: list[Node]) -> tuple[tuple[int, int], ...]:
    if len(numbers) % 2:
        raise ValueError("ranges come in pairs")
    return tuple(_range(start, stop) for start, stop in zip(numbers[::2], numbers[1::2], strict=True))


def _range(start: Node, stop: Node) -> tuple[int, int]:
    first, last = _size(start), _size(stop)
    if first > last:
        raise ValueError(f"a range from {first} to {last}")
    return first, last


def _size(number: Node) -> int:
    if type(number) is not int or not 0 <= number < _TOO_MUCH:
        raise ValueError("not a number of bytes or things")
    return number


def _time(microseconds: int) -> int:
    if not -_TOO_MUCH < microseconds < _TOO_MUCH:
        raise ValueError("not a time")
    return microseconds


def _pack(name: bytes) -> bytes:
    if len(name) != PACK_NAME_BYTES:
        raise ValueError(f"a pack's name has {PACK_NAME_BYTES} bytes")
    return name


def _hash(data: bytes) -> bytes:
    if len(data) != ID_BYTES:
        raise ValueError(f"a hash has {ID_BYTES} bytes")
    return data
