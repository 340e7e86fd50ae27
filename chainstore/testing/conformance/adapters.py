"""What every array adapter must do; see `state.leaf.ArrayAdapter`."""

from contextlib import suppress

from hypothesis import HealthCheck, given, settings

from chainstore.errors import ChainError
from chainstore.model.spec import Spec
from chainstore.model.wire import Node, decode, encode
from chainstore.state.leaf import MISSING, ArrayAdapter, Composite, Dense
from chainstore.testing.strategies import nodes

_QUICK = settings(deadline=None, max_examples=200, suppress_health_check=list(HealthCheck))


class AdapterConformance:
    """Tests of the adapter of one library."""

    def make(self) -> ArrayAdapter:
        """Return it."""
        raise NotImplementedError

    def values(self) -> list[object]:
        """Return arrays of every kind that the adapter owns: empty, 0-dim, strided, of each dtype that is special."""
        raise NotImplementedError

    def same(self, a: object, b: object) -> bool:
        """Whether two arrays are the same in every respect that is stored, to the bit."""
        raise NotImplementedError

    def changed(self, value: object) -> object:
        """Return an array like `value`, of the same dtype, shape and order, with other items if it has any."""
        raise NotImplementedError

    def dense(self) -> list[tuple[object, Dense]]:
        """Return those values that are one run of bytes, and how they are described."""
        described = [(value, self.make().describe(value)) for value in self.values()]
        return [(value, found) for value, found in described if isinstance(found, Dense)]

    def test_a_description_can_be_stored_and_says_how_many_bytes_there_are(self) -> None:
        for value in self.values():
            found = self.make().describe(value)
            assert isinstance(found, Dense | Composite)
            assert decode(encode(found.node), what="node") == found.node
            if isinstance(found, Dense):
                assert found.source.nbytes == found.spec.nbytes
                assert found.region is None or found.region.itemsize > 0

    def test_what_is_read_and_filled_in_again_is_the_same(self) -> None:
        for value, found in self.dense():
            back = self._filled(found, MISSING)[0]
            assert self.same(value, back), f"{value!r} came back as {back!r}"

    def test_bytes_can_be_read_in_parts(self) -> None:
        for _, found in self.dense():
            nbytes, step = found.source.nbytes, max(1, found.spec.itemsize)
            parts = [bytes(found.source.read(at, min(at + 3 * step, nbytes))) for at in range(0, nbytes, 3 * step)]
            assert b"".join(parts) == bytes(found.source.read(0, nbytes))

    def test_looking_changes_nothing(self) -> None:
        for value, copy in zip(self.values(), self.values(), strict=True):
            found = self.make().describe(value)
            if isinstance(found, Dense):
                found.source.read(0, found.source.nbytes)
            assert self.same(value, copy)

    def test_an_array_that_fits_is_filled_in_place(self) -> None:
        filled = 0
        for value, found in self.dense():
            live = self.changed(value)
            back, in_place = self._filled(found, live)
            assert self.same(value, back)
            if in_place:
                filled += 1
                assert self._bytes(live) == self._bytes(value), "it said that it uses the memory of the live array"
        assert filled, "no array was filled in place"

    def test_an_array_is_overwritten_or_left(self) -> None:
        for value, _ in self.dense():
            live = self.changed(value)
            expected = value if self.make().overwrite(live, value) else self.changed(value)
            assert self._bytes(live) == self._bytes(expected)

    def test_what_shares_no_memory_is_gathered_as_it_is(self) -> None:
        for _, found in self.dense():
            if found.region is not None and found.spec.nbytes:
                first, last = found.region.bounds()
                whole = self.make().gather([found], first, last - first)
                assert whole.nbytes == last - first
                assert len(whole.read(0, whole.nbytes)) == last - first

    @_QUICK
    @given(nodes())
    def test_a_node_that_means_nothing_is_refused(self, node: Node) -> None:
        with suppress(ChainError):  # Malformed, Unsupported: never anything else
            _, buffer, _ = self.make().allocate(node, Spec("float32", (2,)), MISSING)
            assert buffer.nbytes >= 0
        with suppress(ChainError):
            self.make().compose(node, {}, None)

    def test_a_node_of_another_adapter_is_refused(self) -> None:
        meaningless: list[Node] = [[10**6], [10**6, "x"], None, [], 7, "text"]
        for node in meaningless:
            refused = False
            try:
                self.make().finish(node, *self.make().allocate(node, Spec("uint8", (1,)), MISSING)[:1], None)
            except ChainError:
                refused = True
            assert refused, f"{node!r} was taken for a node"

    def _bytes(self, value: object) -> bytes:
        found = self.make().describe(value)
        assert isinstance(found, Dense)
        return bytes(found.source.read(0, found.source.nbytes))

    def _filled(self, found: Dense, live: object) -> tuple[object, bool]:
        memory, buffer, in_place = self.make().allocate(found.node, found.spec, live)
        assert buffer.nbytes == found.spec.nbytes and not buffer.readonly
        buffer.cast("B")[:] = found.source.read(0, found.source.nbytes)
        return self.make().finish(found.node, memory, None), in_place
