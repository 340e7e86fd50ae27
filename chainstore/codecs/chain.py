"""Which codecs a chunk goes through on its way into a record, and back.

Codec modules are imported at the first use of their tag: this module loads neither numpy nor zstandard.

    >>> tags, payload = Encoder("auto").encode(memoryview(bytes(4096)), None)
    >>> plain = bytearray(4096)
    >>> Decoder().decode(tags, payload, memoryview(plain))
    >>> plain == bytes(4096)
    True
"""

from collections.abc import Iterator, Sequence
from importlib import import_module

from chainstore.codecs.base import (
    CODEC_MODULES,
    GENERAL,
    NO_HINT,
    NOT_SHORTER,
    PLANES,
    RAW_TAGS,
    TAG_BYTES,
    Codec,
    Effort,
    Factory,
    Hint,
    ItemSpec,
    effort_named,
)
from chainstore.errors import ConfigError, FormatTooNew, Malformed

_SMALLEST_BYTES = 32  # below this a frame's own head eats the gain
_WIDEST_ITEM_BYTES = 16  # wider items (structures, text) are better left whole: zstd sees their fields repeat
_KEEP_SHIFT = 7  # a payload must save 1/128: below that reading it costs more than it saves

_factories: dict[int, Factory] = {}  # codecs registered at run time, by tag
_deltas: list[int] = []  # those of them that use bases, in order of registration


def register(tag: int, factory: Factory, *, delta: bool) -> None:
    """Make a codec known under `tag` in this process; readers without it refuse its records as too new.

    Args:
        delta: it uses bases and keeps the length; where there are bases it is tried before the byte planes, beside
            the byte planes alone, and the smallest payload wins.

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
    return any(tag in _deltas for tag in tags)


def _as_bytes(view: memoryview) -> memoryview:
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


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
        factory: Factory = import_module(CODEC_MODULES[tag]).make
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

    Raises:
        ConfigError: no such choice.
    """

    def __init__(self, choice: str) -> None:
        self._codecs = None if choice == "none" else _Codecs(effort_named(choice))
        self._buffers = _Buffers()

    def encode(
        self,
        data: memoryview,
        spec: ItemSpec | None,
        bases: Sequence[memoryview] = (),
        hint: Hint = NO_HINT,
    ) -> tuple[bytes, memoryview]:
        """Return the four tag bytes and the payload of a chunk; the payload is never longer than `data`.

        Args:
            data: C-contiguous bytes, any length, any alignment.
            spec: the items `data` consists of; None where nothing is known.
            bases: plain bytes of chunks it may be coded against; used only if `uses_bases(tags)` says so afterwards.

        Returns:
            The tags and either `data` itself or scratch memory that is valid until the next call.
        """
        data = _as_bytes(data)
        best: tuple[bytes, memoryview] = (RAW_TAGS, data)
        if self._codecs is None or len(data) < _SMALLEST_BYTES:
            return best
        limit = len(data) - (len(data) >> _KEEP_SHIFT)
        free, taken = "one", "other"  # so that a candidate never overwrites the best before it
        for tags in _candidates(spec, bases):
            out = self._buffers.take(free, len(data))
            length = self._apply([self._codecs[tag] for tag in tags], data, spec, bases, hint, out)
            if length != NOT_SHORTER and length < min(limit, len(best[1])):
                best = tags.ljust(TAG_BYTES, b"\0"), out[:length]
                free, taken = taken, free
        return best

    def _apply(
        self,
        codecs: Sequence[Codec],
        data: memoryview,
        spec: ItemSpec | None,
        bases: Sequence[memoryview],
        hint: Hint,
        out: memoryview,
    ) -> int:
        for position, codec in enumerate(codecs[:-1]):
            between = self._buffers.take(f"between {position % 2}", len(data))
            if codec.encode(data, spec, bases[: codec.bases], hint, between) != len(data):
                return NOT_SHORTER
            data = between
        return codecs[-1].encode(data, spec, bases[: codecs[-1].bases], hint, out)


class Decoder:
    """Turns payloads back into chunks; for one thread."""

    def __init__(self) -> None:
        self._codecs = _Codecs(effort_named("auto"))  # effort means nothing to a reader
        self._buffers = _Buffers()

    def decode(self, tags: bytes, payload: memoryview, out: memoryview, bases: Sequence[memoryview] = ()) -> None:
        """Fill `out` with the plain bytes of a chunk.

        Args:
            tags: the four tag bytes of its record.
            payload: what `Encoder.encode` returned; may be hostile; must not overlap `out`.
            out: exactly as long as the chunk, writable, any alignment; undefined after an error.
            bases: plain bytes of the record's bases, in its order.

        Raises:
            Malformed: payload, tags and number of bases cannot belong to a chunk of this length.
            FormatTooNew: a tag is not known here.
        """
        payload, out = _as_bytes(payload), _as_bytes(out)
        codecs = [self._codecs[tag] for tag in _applied(tags)]
        if not codecs and len(payload) != len(out):
            raise Malformed("raw payload", f"it has {len(payload)} bytes where {len(out)} belong")
        if len(bases) > max((codec.bases for codec in codecs), default=0):
            raise Malformed("record", f"its codecs cannot use {len(bases)} bases")
        for position, codec in reversed(list(enumerate(codecs))):
            plain = out if position == 0 else self._buffers.take(f"between {position % 2}", len(out))
            codec.decode(payload, None, bases[: codec.bases], plain)
            payload = plain
        if not codecs:
            out[:] = payload


def _applied(tags: bytes) -> bytes:
    applied = tags.rstrip(b"\0")
    if len(tags) != TAG_BYTES or 0 in applied:
        raise Malformed("codec tags", f"{tags.hex()} is no run of tags padded with zeros to {TAG_BYTES}")
    return applied


def _candidates(spec: ItemSpec | None, bases: Sequence[memoryview]) -> Iterator[bytes]:
    if spec is None or spec.itemsize > _WIDEST_ITEM_BYTES:
        yield bytes((GENERAL,))
        return
    yield bytes((PLANES,))
    if bases:
        yield from (bytes((tag, PLANES)) for tag in _deltas)
