"""Which codecs a chunk goes through on its way into a record, and back.

Codec modules are imported at the first use of their tag: this module loads neither numpy nor zstandard.

    >>> from random import Random
    >>> from chainstore.codecs.base import DIFFERENCE
    >>> before = Random(1).randbytes(4096)
    >>> after = before[:99] + bytes(9) + before[108:]
    >>> coded = Encoder("auto").encode(memoryview(after), None, [Against(DIFFERENCE, (memoryview(before),))])
    >>> len(coded.payload) < 50
    True
    >>> plain = bytearray(4096)
    >>> Decoder().decode(coded.tags, coded.payload, memoryview(plain), [memoryview(before)])
    >>> plain == after
    True
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import NamedTuple

from chainstore.codecs.base import (
    BUILT_IN_DELTAS,
    CODEC_MODULES,
    DIFFERENCE,
    GENERAL,
    NO_HINT,
    NOT_SHORTER,
    PLANES,
    RAW_TAGS,
    TAG_BYTES,
    XOR,
    Against,
    Codec,
    Effort,
    Encoded,
    Factory,
    Foresighted,
    Hint,
    ItemSpec,
    Moving,
    effort_named,
)
from chainstore.codecs.thrift import Thrift
from chainstore.errors import ConfigError, FormatTooNew, Malformed

_SMALLEST_BYTES = 32  # below this a frame's own head eats the gain
_WIDEST_ITEM_BYTES = 16  # wider items (structures, text) are better left whole: zstd sees their fields repeat
_KEEP_SHIFT = 7  # a payload must save 1/128: below that reading it costs more than it saves, and so do its bases
_SAMPLE_BYTES = 64 << 10  # of a chunk, to tell which way to code an array

_factories: dict[int, Factory] = {}  # codecs registered at run time, by tag
_deltas: list[int] = []  # those of them that use bases, in order of registration


def register(tag: int, factory: Factory, *, delta: bool) -> None:
    """Make a codec known under `tag` in this process; readers without it refuse its records as too new.

    Args:
        delta: it uses bases and keeps the length; where it is offered (`Against`) it is tried before the byte planes,
            beside the byte planes alone, and the smallest payload wins.

    Raises:
        ConfigError: the tag is out of range or taken.
    """
    if not 0 < tag < 256 or tag in CODEC_MODULES or tag in _factories:
        raise ConfigError(f"codec tag {tag} is taken or not within 1..255")
    _factories[tag] = factory
    if delta:
        _deltas.append(tag)


def unregister(tag: int) -> None:
    """Forget a codec that was registered; encoders and decoders that already use it keep it."""
    del _factories[tag]
    if tag in _deltas:
        _deltas.remove(tag)


def uses_bases(tags: bytes) -> bool:
    """Return whether a record with these (known) tags needs its bases to be read."""
    return any(tag in BUILT_IN_DELTAS or tag in _deltas for tag in tags)


def registered_deltas() -> tuple[int, ...]:
    """Return the tags of codecs with bases that were registered, for whoever offers ways to code a chunk."""
    return tuple(_deltas)


def _as_bytes(view: memoryview) -> memoryview:
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


class Items(NamedTuple):
    """Items of which nobody knows more than how wide they are and whether they are numbers of floating point."""

    itemsize: int
    kind: str


def items_in(tags: bytes, payload: memoryview) -> Items | None:
    """Return what a payload was taken for, so that the same array can be coded anew; None where it does not say."""
    if tags[0] not in (PLANES, XOR, DIFFERENCE) or not len(payload):
        return None
    width, rotated = payload[0] & 0x1F, payload[0] >> 7
    return Items(width, "float" if rotated or tags[0] == DIFFERENCE else "uint")


class _Codecs:
    """The codecs one thread has used so far."""

    def __init__(self, effort: Effort) -> None:
        self._effort = effort
        self._made: dict[int, Codec] = {}

    def __getitem__(self, tag: int) -> Codec:
        codec = self._made.get(tag)
        if codec is None:
            codec = self._made[tag] = self._factory(tag)(self._effort)
        return codec

    @staticmethod
    def _factory(tag: int) -> Factory:
        if tag in _factories:
            return _factories[tag]
        if tag not in CODEC_MODULES:
            raise FormatTooNew(f"codec {tag}", "read")
        module = import_module(CODEC_MODULES[tag])
        several: Mapping[int, Factory] | None = getattr(module, "FACTORIES", None)
        factory: Factory = module.make if several is None else several[tag]
        return factory


class _Buffers:
    """Scratch memory by name, grown to the largest chunk seen and reused."""

    def __init__(self) -> None:
        self._held: dict[str, memoryview] = {}

    def take(self, name: str, length: int) -> memoryview:
        held = self._held.get(name)
        if held is None or len(held) < length:
            held = self._held[name] = memoryview(bytearray(length))
        return held[:length]


class Encoder:
    """Turns chunks into payloads; for one thread.

    Args:
        choice: "none" stores everything as it is; "fast", "auto" and "small" try harder in this order.
        thrift: with "auto", what knows whether coding an array is worth its time.

    Raises:
        ConfigError: no such choice.
    """

    def __init__(self, choice: str, thrift: Thrift | None = None) -> None:
        self._codecs = None
        if choice != "none":
            effort = effort_named(choice)
            self._codecs = _Codecs(replace(effort, thrift=thrift) if choice == "auto" else effort)
        self._buffers = _Buffers()

    def encode(self, data: memoryview, spec: ItemSpec | None, against: Sequence[Against] = ()) -> Encoded:
        """Return a chunk in the fewest bytes: as it is, alone, or in one of the ways `against` others.

        The payload is never longer than `data`.  What needs bases must save 1/128 of the data more than what needs
        none; the latter is not tried where a sample says that it loses.

        Args:
            data: C-contiguous bytes, any length, any alignment.
            spec: the items `data` consists of; None where nothing is known.
            against: ways to code it against other chunks.
        """
        data = _as_bytes(data)
        best = Encoded(RAW_TAGS, data, None)
        if self._codecs is None or len(data) < _SMALLEST_BYTES:
            return best
        least = len(data) >> _KEEP_SHIFT
        limit, rooms = len(data) - least, ["one", "other"]
        for way in against:
            best = self._try(way, data, spec, rooms, limit) or best
            limit = min(limit, len(best.payload))
        if best.against is not None:
            limit += least
            planes = self._codecs[PLANES] if _is_array(spec) else None
            if isinstance(planes, Foresighted) and planes.at_least(data, spec) >= limit:
                return best
        return self._try(None, data, spec, rooms, limit) or best

    def choose(self, data: memoryview, spec: ItemSpec | None, against: Sequence[Against]) -> Against | None:
        """Return which of these ways `encode` would take, judged by 64 KiB from the middle; None: none of them pays."""
        data, item = _as_bytes(data), spec.itemsize if spec is not None and _is_array(spec) else 1
        start = max(0, len(data) - _SAMPLE_BYTES) // 2 // item * item
        sample = slice(start, start + _SAMPLE_BYTES // item * item)
        whole = [way for way in against if _fits(way, data)]
        parts = [way._replace(bases=tuple(_as_bytes(base)[sample] for base in way.bases)) for way in whole]
        chosen = self.encode(data[sample], spec, parts).against
        return next((way for way, part in zip(whole, parts, strict=True) if part is chosen), None)

    def _try(
        self, way: Against | None, data: memoryview, spec: ItemSpec | None, rooms: list[str], limit: int
    ) -> Encoded | None:
        """Return the chunk coded this way if that takes fewer bytes than `limit`, in the first of the rooms.

        The rooms then change places, so that what is tried next leaves it alone.
        """
        assert self._codecs is not None
        tags = _chain(way, spec)
        codecs = [self._codecs[tag] for tag in tags]
        if way is not None and not (_fits(way, data) and len(way.bases) <= codecs[0].bases):
            return None
        bases = [_as_bytes(base) for base in way.bases] if way is not None else []
        hint = Hint(parameters=way.parameters) if way is not None else NO_HINT
        for left, codec in enumerate(codecs, 1 - len(codecs)):
            out = self._buffers.take(f"between {left}" if left else rooms[0], len(data))
            length = codec.encode(data, spec, bases[: codec.bases], hint, out)
            if length == NOT_SHORTER or (left and length != len(data)):
                return None
            data = out
        if length >= limit:
            return None
        rooms.reverse()
        return Encoded(tags.ljust(TAG_BYTES, b"\0"), out[:length], way)


class Decoder:
    """Turns payloads back into chunks; for one thread."""

    def __init__(self) -> None:
        self._codecs = _Codecs(effort_named("auto"))  # effort means nothing to a reader
        self._moves: dict[bytes, bool] = {}
        self._buffers = _Buffers()

    def decode(self, tags: bytes, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Fill `out` with the plain bytes of a chunk.

        Args:
            tags: the four tag bytes of its record.
            payload: what `Encoder.encode` returned; may be hostile; must not overlap `out`.
            out: exactly as long as the chunk, writable, any alignment; undefined after an error.
            bases: plain bytes of the record's bases, in its order; they may not overlap `out`, but where `moves` says
                so the only one may be `out`.

        Raises:
            Malformed: payload, tags, number and lengths of the bases cannot belong to a chunk of this length.
            FormatTooNew: a tag is not known here.
        """
        payload, out = _as_bytes(payload), _as_bytes(out)
        codecs = [self._codecs[tag] for tag in _applied(tags)]
        if not codecs and len(payload) != len(out):
            raise Malformed("raw payload", f"it has {len(payload)} bytes where {len(out)} belong")
        if len(bases) > max((codec.bases for codec in codecs), default=0):
            raise Malformed("record", f"its codecs cannot use {len(bases)} bases")
        if any(base.nbytes != len(out) for base in bases):
            raise Malformed("record", f"its bases have {[base.nbytes for base in bases]} bytes, not {len(out)}")
        bases = [_as_bytes(base) for base in bases]
        for position in range(len(codecs) - 1, -1, -1):
            codec = codecs[position]
            plain = out if position == 0 else self._buffers.take(f"between {position % 2}", len(out))
            codec.decode(payload, None, bases[: codec.bases], plain)
            payload = plain
        if not codecs:
            out[:] = payload

    def moves(self, tags: bytes) -> bool:
        """Return whether a chunk with these tags can be decoded into the memory of its one base; False if unknown."""
        found = self._moves.get(tags)
        if found is None:
            try:
                codecs = [self._codecs[tag] for tag in _applied(tags)]
            except (FormatTooNew, Malformed):
                return False  # for `decode` to tell, once the record is proven
            found = len(codecs) == 1 and isinstance(codecs[0], Moving) and codecs[0].moves
            self._moves[tags] = found
        return found


def _applied(tags: bytes) -> bytes:
    applied = tags.rstrip(b"\0")
    if len(tags) != TAG_BYTES or 0 in applied:
        raise Malformed("codec tags", f"{tags.hex()} is no run of tags padded with zeros to {TAG_BYTES}")
    return applied


def _is_array(spec: ItemSpec | None) -> bool:
    return spec is not None and spec.itemsize <= _WIDEST_ITEM_BYTES


def _fits(way: Against, data: memoryview) -> bool:
    return all(base.nbytes == data.nbytes for base in way.bases)


def _chain(way: Against | None, spec: ItemSpec | None) -> bytes:
    """Return the tags of the codecs that this way takes."""
    if way is None:
        return bytes((PLANES if _is_array(spec) else GENERAL,))
    return bytes((way.tag,)) if way.tag in BUILT_IN_DELTAS else bytes((way.tag, PLANES))
