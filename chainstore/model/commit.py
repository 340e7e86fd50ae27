"""The commit: names a snapshot, its parents, and what the run was doing at that moment.

    [1, root, [parent...], step, epoch, time, author, message, [[name, 8 bytes]...], meta, [raw, new, stored, delta]]

`time` is in microseconds since 1970 UTC, metrics are IEEE doubles as bytes, `meta` is JSON text.  `raw` counts the
bytes of the state, `new` those that were not stored before, `stored` what they
took, `delta` those of them that were stored as a difference.
"""

import json
import operator
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import SupportsIndex

from chainstore.display import size, table
from chainstore.errors import InvalidInput, Malformed
from chainstore.ids import ObjectId
from chainstore.model.wire import Node, decode, encode

_CODE = 1  # first item of every commit
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
    seconds: float | None = field(default=None, compare=False)

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

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        facts: dict[str, object] = {
            "id": self.id,
            "step": self.step,
            "epoch": self.epoch,
            "time": f"{self.time:%Y-%m-%d %H:%M:%S} UTC",
            "author": self.author,
            "parents": ", ".join(parent.short for parent in self.parents),
            **{f"metric {name}": f"{value:.6g}" for name, value in self.metrics.items()},
            **{f"meta {name}": value for name, value in self.meta.items()},
            "state": f"{size(self.stats.raw_bytes)}, {size(self.stats.new_bytes)} of them new",
            "stored": size(self.stats.stored_bytes),
        }
        return table(f"commit {self.short} {self.message}", [row for row in facts.items() if row[1] not in (None, "")])


def encode_commit(root: ObjectId, parents: Sequence[ObjectId], note: Note, time_us: int, stats: Stats) -> bytes:
    """Return the plaintext of a commit object.

    Args:
        time_us: microseconds since 1970 UTC.

    Raises:
        InvalidInput: meta is not JSON, a metric is not a number, step or epoch not an integer, a text cannot be
            encoded (half a surrogate pair).
    """
    _check(note)
    metrics: Node = [[str(name), _DOUBLE.pack(value)] for name, value in note.metrics.items()]
    step, epoch = _index(note.step), _index(note.epoch)
    told: list[Node] = [str(note.author), str(note.message), metrics, _json(note.meta)]
    sizes: Node = [stats.raw_bytes, stats.new_bytes, stats.stored_bytes, stats.delta_bytes]
    above: Node = [bytes(parent) for parent in parents]
    try:
        return encode([_CODE, bytes(root), above, step, epoch, time_us, *told, sizes])
    except ValueError as error:
        raise InvalidInput(f"a commit cannot hold this text: {error}") from error


def decode_commit(id: ObjectId, data: bytes) -> Commit:
    """Return the commit whose plaintext is `data`.

    Raises:
        Malformed: it does not follow the format.
    """
    try:
        match decode(data, what="commit"):
            case [
                1,
                bytes(root),
                list(parents),
                step,
                epoch,
                int(time_us),
                str(author),
                str(message),
                list(metrics),
                str(meta),
                list(stats),
            ]:
                time = _EPOCH + timedelta(microseconds=time_us)
                tree, above = ObjectId(root), tuple(_parent(parent) for parent in parents)
                found, told = _metrics(metrics), _meta(meta)
                step, epoch = _whole(step), _whole(epoch)
                return Commit(id, tree, above, step, epoch, time, author, message, found, told, _stats(stats))
    except (ValueError, OverflowError, RecursionError) as error:
        raise Malformed("commit", f"a field has the wrong form ({error})") from error
    raise Malformed("commit", "unknown layout")


def _whole(node: Node) -> int | None:
    if node is not None and type(node) is not int:
        raise ValueError("step and epoch are whole numbers")
    return node


def _parent(node: Node) -> ObjectId:
    if not isinstance(node, bytes):
        raise ValueError("a parent is an id")
    return ObjectId(node)


def _metrics(rows: list[Node]) -> dict[str, float]:
    metrics = {}
    for row in rows:
        match row:
            case [str(name), bytes(raw)] if len(raw) == _DOUBLE.size and name not in metrics:
                metrics[name] = float(_DOUBLE.unpack(raw)[0])
            case _:
                raise ValueError("a metric is a name, once, and 8 bytes")
    return metrics


def _meta(text: str) -> dict[str, object]:
    meta = json.loads(text)
    if not isinstance(meta, dict):
        raise ValueError("meta is a JSON object")
    return meta


def _stats(numbers: list[Node]) -> Stats:
    found = [number for number in numbers if type(number) is int and 0 <= number < 1 << 63]
    if len(numbers) != 4 or len(found) != 4:
        raise ValueError("four numbers of bytes expected")
    return Stats(*found)


def _check(note: Note) -> None:
    for name, value in (("step", note.step), ("epoch", note.epoch)):
        if value is not None and (not isinstance(value, SupportsIndex) or isinstance(value, bool)):
            raise InvalidInput(f"{name} must be an integer, not {type(value).__name__}")
    for name, metric in note.metrics.items():
        if not isinstance(name, str) or not isinstance(metric, float):
            raise InvalidInput(f"metric {name!r} must be a number, not {type(metric).__name__}")
    for label, text in (("message", note.message), ("author", note.author)):
        if not isinstance(text, str):
            raise InvalidInput(f"{label} must be text, not {type(text).__name__}")


def _index(number: int | None) -> int | None:
    """Return a plain int; NumPy's count as well."""
    return operator.index(number) if number is not None else None


def _json(meta: Mapping[str, object]) -> str:
    if not _is_json(meta):
        raise InvalidInput(
            "meta must hold JSON values only: text, numbers, booleans, None, lists, dicts with text keys"
        )
    try:
        return json.dumps(meta, ensure_ascii=False)
    except ValueError as error:  # an integer of more digits than Python writes
        raise InvalidInput(f"meta cannot be written as JSON: {error}") from error


def _is_json(value: object, depth: int = 0) -> bool:
    if depth > 64:
        return False
    if type(value) is dict:
        return all(type(key) is str and _is_json(item, depth + 1) for key, item in value.items())
    if type(value) is list:
        return all(_is_json(item, depth + 1) for item in value)
    return value is None or type(value) in (str, int, float, bool)
