"""The commit: names a snapshot, its parents, and what the run was doing at that moment.

    [1, root, [parent...], step, epoch, time, author, message, [[name, 8 bytes]...], meta, [raw, new, stored, delta]]

`time` is in microseconds since 1970 UTC, metrics are IEEE doubles as bytes, `meta` is JSON text.  `raw` counts the
bytes of the state, `new` those that were not stored before, `stored` what they
took, `delta` those of them that were stored as a difference.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from chainstore.errors import InvalidInput, Malformed
from chainstore.ids import ObjectId
from chainstore.model.wire import Node, decode, encode

_CODE = 1
_DOUBLE = struct.Struct("<d")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Stats:
    """Bytes of one commit, and the time it took.

    Attributes:
        raw_bytes: of its whole state.
        new_bytes: of it, those that were not stored before.
        stored_bytes: what the new ones take in packs, names included, before the commit record itself.
        delta_bytes: of the new ones, those stored as a difference to another chunk.
        seconds: from call to acknowledgement; None for a commit that was read back.
    """

    raw_bytes: int = 0
    new_bytes: int = 0
    stored_bytes: int = 0
    delta_bytes: int = 0
    seconds: float | None = None

    @property
    def reused_bytes(self) -> int:
        return self.raw_bytes - self.new_bytes

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(
            self.raw_bytes + other.raw_bytes,
            self.new_bytes + other.new_bytes,
            self.stored_bytes + other.stored_bytes,
            self.delta_bytes + other.delta_bytes,
        )


@dataclass(frozen=True, slots=True)
class Note:
    """What a commit says besides its content."""

    message: str = ""
    author: str = ""
    step: int | None = None
    epoch: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    meta: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Commit:
    """One snapshot in a chain.

    Attributes:
        id: of this commit.  tree: of its snapshot's root.  parents: usually one; none for the first.
        step: completed optimizer steps, or None.  epoch: or None.
        time: when it was made, UTC.  author, message: as given.
        metrics: name to value.  meta: any JSON.  stats: bytes.
    """

    id: ObjectId
    tree: ObjectId
    parents: tuple[ObjectId, ...]
    step: int | None
    epoch: int | None
    time: datetime
    author: str
    message: str
    metrics: Mapping[str, float]
    meta: Mapping[str, object]
    stats: Stats

    @property
    def short(self) -> str:
        """The first 12 digits of the id."""
        return self.id.short

    def __repr__(self) -> str:
        step = f" step {self.step}" if self.step is not None else ""
        return f"<Commit {self.short}{step} {self.message!r}>"


def encode_commit(root: ObjectId, parents: Sequence[ObjectId], note: Note, time_us: int, stats: Stats) -> bytes:
    """Return the plaintext of a commit object.

    Args:
        time_us: microseconds since 1970 UTC.

    Raises:
        InvalidInput: meta is not JSON, a metric is not a number, step or epoch not an integer.
    """
    _check(note)
    metrics: Node = [[name, _DOUBLE.pack(value)] for name, value in note.metrics.items()]
    meta = _json(note.meta)
    return encode(
        [
            _CODE,
            bytes(root),
            [bytes(parent) for parent in parents],
            note.step,
            note.epoch,
            time_us,
            note.author,
            note.message,
            metrics,
            meta,
            [stats.raw_bytes, stats.new_bytes, stats.stored_bytes, stats.delta_bytes],
        ]
    )


def decode_commit(id: ObjectId, data: bytes) -> Commit:
    """Return the commit whose plaintext is `data`.

    Raises:
        Malformed: it does not follow the format.
    """
    node = decode(data, what="commit")
    if not isinstance(node, list) or len(node) != 11 or node[0] != _CODE:
        raise Malformed("commit", "unknown layout")
    _, root, parents, step, epoch, time_us, author, message, metrics, meta, stats = node
    try:
        return Commit(
            id=id,
            tree=ObjectId(root),  # type: ignore[arg-type]  # wrong types raise below
            parents=tuple(ObjectId(parent) for parent in parents),  # type: ignore[union-attr, arg-type]
            step=step,  # type: ignore[arg-type]
            epoch=epoch,  # type: ignore[arg-type]
            time=_EPOCH + timedelta(microseconds=time_us),  # type: ignore[arg-type]
            author=author,  # type: ignore[arg-type]
            message=message,  # type: ignore[arg-type]
            metrics={name: _DOUBLE.unpack(value)[0] for name, value in metrics},  # type: ignore
            meta=json.loads(meta),  # type: ignore[arg-type]
            stats=_stats(stats),  # type: ignore
        )
    except (TypeError, ValueError, OverflowError, struct.error) as error:
        raise Malformed("commit", f"a field has the wrong type ({error})") from error


def _stats(node: Node) -> Stats:
    if not isinstance(node, list) or len(node) != 4 or not all(type(number) is int for number in node):
        raise ValueError("four numbers expected")
    return Stats(*node)  # type: ignore[arg-type]


def _check(note: Note) -> None:
    for name, value in (("step", note.step), ("epoch", note.epoch)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InvalidInput(f"{name} must be an integer, not {type(value).__name__}")
    for name, metric in note.metrics.items():
        if not isinstance(name, str) or not isinstance(metric, float):
            raise InvalidInput(f"metric {name!r} must be a number, not {type(metric).__name__}")
    for label, text in (("message", note.message), ("author", note.author)):
        if not isinstance(text, str):
            raise InvalidInput(f"{label} must be text, not {type(text).__name__}")


def _json(meta: Mapping[str, object]) -> str:
    if not _is_json(meta):
        raise InvalidInput(
            "meta must hold JSON values only: text, numbers, booleans, None, lists, dicts with text keys"
        )
    return json.dumps(meta, ensure_ascii=False)


def _is_json(value: object, depth: int = 0) -> bool:
    if depth > 64:
        return False
    if type(value) is dict:
        return all(type(key) is str and _is_json(item, depth + 1) for key, item in value.items())
    if type(value) is list:
        return all(_is_json(item, depth + 1) for item in value)
    return value is None or type(value) in (str, int, float, bool)
