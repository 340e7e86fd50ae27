"""What every codec must do; see `codecs.base.Codec`."""

from collections.abc import Sequence
from contextlib import suppress
from random import Random

import pytest

from chainstore.codecs.base import NO_HINT, NOT_SHORTER, Codec
from chainstore.errors import Malformed
from chainstore.model.spec import Spec

_SEED = 20
_NONSENSE = 300  # payloads


class CodecConformance:
    """Tests of one codec."""

    def make(self) -> Codec:
        """Return a new one, as `codecs.chain.register` has it made."""
        raise NotImplementedError

    def chunks(self) -> list[tuple[bytes, Spec | None]]:
        """Return chunks to try, with the spec of their items; add those that yours is good at."""
        random = Random(_SEED)
        floats = b"".join(random.gauss(0, 1).hex()[:8].encode()[:4] for _ in range(3000))
        return [
            (b"", None),
            (b"\x07", None),
            (bytes(5000), Spec("float32", (1250,))),
            (random.randbytes(4096), Spec("uint8", (4096,))),
            (floats, Spec("float32", (len(floats) // 4,))),
            (b"".join(n.to_bytes(8, "little") for n in range(2000)), Spec("int64", (2000,))),
            (b"abc" * 1001, Spec("raw3", (1001,))),
            (b"text that has no items, only bytes" * 40, None),
        ]

    def near(self, data: bytes) -> bytes:
        """Return what a base of a chunk may look like: the same length, a few bytes changed."""
        base = bytearray(data)
        for place in range(0, len(base), 97):
            base[place] ^= 1
        return bytes(base)

    def test_its_tag_and_its_bases_fit_into_a_record(self) -> None:
        codec = self.make()
        assert 1 <= codec.tag <= 255
        assert 0 <= codec.bases <= 4
        assert self.make().tag == codec.tag

    def test_what_it_encodes_comes_back(self) -> None:
        encoded = 0
        for data, spec in self.chunks():
            for bases in self._bases(data):
                payload = self._encoded(data, spec, bases)
                if payload is not None:
                    encoded += 1
                    assert self._decoded(payload, spec, bases, len(data)) == data
        assert encoded, "none of the chunks became shorter"

    def test_another_instance_decodes_without_the_spec(self) -> None:
        for data, spec in self.chunks():
            for bases in self._bases(data):
                payload = self._encoded(data, spec, bases)
                if payload is not None:
                    assert self._decoded(payload, None, bases, len(data)) == data

    def test_a_payload_is_never_longer_than_the_data(self) -> None:
        for data, spec in self.chunks():
            for bases in self._bases(data):
                payload = self._encoded(data, spec, bases)
                assert payload is None or len(payload) <= len(data)

    def test_the_same_instance_goes_on_after_any_chunk(self) -> None:
        codec = self.make()
        chunks = self.chunks()
        first = [self._encoded(data, spec, self._bases(data)[-1], codec) for data, spec in chunks]
        assert [self._encoded(data, spec, self._bases(data)[-1], codec) for data, spec in chunks] == first

    def test_it_changes_nothing_but_what_it_is_to_write(self) -> None:
        for data, spec in self.chunks():
            bases = self._bases(data)[-1]
            around = bytearray(b"\xa5" * (len(data) + 64))
            given, copies = bytearray(data), [bytearray(base) for base in bases]
            codec = self.make()
            inside = memoryview(around)[32 : 32 + len(data)]
            codec.encode(memoryview(given), spec, [memoryview(copy) for copy in copies], NO_HINT, inside)
            assert given == data and copies == list(bases)
            assert around[:32] == around[-32:] == b"\xa5" * 32

    def test_nonsense_is_refused_or_decoded_and_nothing_else(self) -> None:
        random = Random(_SEED)
        for number in range(_NONSENSE):
            data, spec = random.choice(self.chunks())
            bases = random.choice(self._bases(data))
            payload = bytearray(self._encoded(data, spec, bases) or random.randbytes(random.randrange(50)))
            if payload and number % 4:
                payload[random.randrange(min(len(payload), 40))] ^= 1 << random.randrange(8)
            del payload[random.randrange(len(payload) + 1) if number % 3 == 0 else len(payload) :]
            around = bytearray(b"\xa5" * (len(data) + 64))
            with suppress(Malformed):
                self.make().decode(_view(payload), None, _views(bases), memoryview(around)[32 : 32 + len(data)])
            assert around[:32] == around[-32:] == b"\xa5" * 32, f"payload {number} of seed {_SEED} led it astray"

    def test_a_number_of_bases_that_it_cannot_use_is_refused(self) -> None:
        codec = self.make()
        for data, spec in self.chunks() if codec.bases else ():
            payload = self._encoded(data, spec, self._bases(data)[-1])
            if payload is not None:
                with pytest.raises(Malformed):
                    self._decoded(payload, spec, [data] * (codec.bases + 1), len(data))

    # -- inside

    def _bases(self, data: bytes) -> list[list[bytes]]:
        """Return the sets of bases to try: none where it needs none, else as many as it can use."""
        most = self.make().bases
        return [[]] if most == 0 else [[self.near(data)] * most]

    def _encoded(
        self, data: bytes, spec: Spec | None, bases: Sequence[bytes], codec: Codec | None = None
    ) -> bytes | None:
        out = bytearray(len(data))
        length = (codec or self.make()).encode(memoryview(data), spec, _views(bases), NO_HINT, memoryview(out))
        return None if length == NOT_SHORTER else bytes(out[:length])

    def _decoded(self, payload: bytes, spec: Spec | None, bases: Sequence[bytes], length: int) -> bytes:
        out = bytearray(length)
        self.make().decode(memoryview(payload), spec, _views(bases), memoryview(out))
        return bytes(out)


def _views(parts: Sequence[bytes]) -> list[memoryview]:
    """Return views of bytes, as codecs get them."""
    return [memoryview(part) for part in parts]


def _view(data: bytearray) -> memoryview:
    """Return a view that cannot be written to."""
    return memoryview(bytes(data))
