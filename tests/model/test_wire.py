import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import Malformed
from chainstore.model import wire
from chainstore.testing.sameness import same_value
from chainstore.testing.strategies import nodes


def nested(levels: int) -> list:
    node: list = []
    for _ in range(levels - 1):
        node = [node]
    return node


@given(nodes())
def test_a_node_comes_back_with_its_types(node):
    assert same_value(wire.decode(wire.encode(node), strict=True), node)


@given(nodes(), nodes())
def test_different_nodes_have_different_encodings(a, b):
    assert (wire.encode(a) == wire.encode(b)) == same_value(a, b)


def test_the_encoding_is_what_the_format_says():
    encoded = wire.encode([1, -1, 500, "é", b"\x00", None, True, 2**64])
    assert encoded.hex(" ") == "88 01 20 19 01 f4 62 c3 a9 41 00 f6 f5 c2 49 01 00 00 00 00 00 00 00 00"


def test_tuples_are_encoded_as_lists():
    assert wire.encode((1, (2,))) == wire.encode([1, [2]])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_node_or_malformed(data):
    for strict in (False, True):
        try:
            node = wire.decode(data, strict=strict)
        except Malformed:
            continue
        wire.encode(node)


@given(nodes(), st.data())
def test_a_changed_encoding_is_another_node_or_malformed(node, data):
    encoded = bytearray(wire.encode(node))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= 1 << data.draw(st.integers(0, 7))
    try:
        found = wire.decode(encoded, strict=True)
    except Malformed:
        return
    assert not same_value(found, node)
    assert wire.encode(found) == encoded


@given(nodes(), st.binary(min_size=1, max_size=9))
def test_bytes_after_the_node_are_refused_and_their_place_is_told(node, more):
    encoded = wire.encode(node)
    with pytest.raises(Malformed) as caught:
        wire.decode(encoded + more)
    assert caught.value.offset == len(encoded)


@given(nodes())
def test_every_cut_encoding_is_refused(node):
    encoded = wire.encode(node)
    for end in range(min(len(encoded), 40)):
        with pytest.raises(Malformed):
            wire.decode(encoded[:end])


FOREIGN = {
    "a float": "fb3ff8000000000000",
    "a half float": "f93c00",
    "a map": "a1616101",
    "a map with int keys": "a10102",
    "an empty map": "a0",
    "undefined": "f7",
    "a simple value": "f0",
    "a date": "c074323031332d30332d32315432303a30343a30305a",
    "a decimal fraction": "c48221196ab3",
    "a power that would fill the memory": "c5821a7fffffff01",
    "a regular expression": "d82363282b2b",
    "a shared value": "d81c80",
    "a reference to itself": "d81c81d81d00",
    "a set": "d901028101",
    "a string namespace": "d9010080",
    "a self-described value": "d9d9f700",
    "an unknown tag": "d903e700",
    "a list without length": "9f01ff",
    "bytes without length": "5f4101ff",
    "text without length": "7f6161ff",
    "text that is not UTF-8": "61ff",
    "half a surrogate pair": "63eda080",
    "a big int of text": "c26131",
    "a break": "ff",
    "nothing": "",
    "a list longer than memory": "9bffffffffffffffff",
    "bytes longer than memory": "5b7fffffffffffffff00",
    "text longer than memory": "7b7fffffffffffffff00",
    "a map longer than memory": "bb7fffffffffffffff00",
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_is_not_part_of_the_format_is_refused(what):
    data = bytes.fromhex(FOREIGN[what])
    for encoded in (data, b"\x82\x01" + data):
        with pytest.raises(Malformed, match="thing is malformed"):
            wire.decode(encoded, what="thing")


@pytest.mark.parametrize("tag", [tag for tag in range(70000) if tag in wire._TAGS or tag % 997 == 0])
def test_no_tag_but_those_of_big_ints_is_read(tag):
    for inner in (0, b"12", "2013-03-21", [1, 2], None):
        with pytest.raises(Malformed):
            wire.decode(cbor2.dumps(cbor2.CBORTag(tag, inner)))


@pytest.mark.parametrize("hexed", ["1801", "190001", "5801ff", "780161", "980101", "c24101", "c2420001", "c240"])
def test_a_longer_form_is_refused_where_no_id_vouches_for_the_bytes(hexed):
    with pytest.raises(Malformed, match="shortest form"):
        wire.decode(bytes.fromhex(hexed), strict=True)
    wire.decode(bytes.fromhex(hexed))


def test_lists_nest_two_hundred_deep_and_no_deeper():
    deepest = nested(wire.MAX_DEPTH)
    assert wire.decode(wire.encode(deepest)) == deepest
    with pytest.raises(ValueError, match="200"):
        wire.encode([deepest])
    for levels in (wire.MAX_DEPTH + 1, 100_000):
        with pytest.raises(Malformed):
            wire.decode(b"\x81" * levels + b"\x00")
    with pytest.raises(Malformed):
        wire.decode(b"\x81" * wire.MAX_DEPTH + b"\x80")  # an empty list is one level more, too


def test_a_list_that_contains_itself_is_refused():
    node: list = []
    node.append(node)
    with pytest.raises(ValueError):
        wire.encode(node)


class Text(str):
    pass


@pytest.mark.parametrize("value", [1.5, {}, {1}, bytearray(b"a"), memoryview(b"a"), Text("a"), ..., object()])
def test_what_could_not_be_decoded_is_not_encoded(value):
    for node in (value, [1, [value]]):
        with pytest.raises(TypeError):
            wire.encode(node)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded(kind):
    big = [1, bytes(100_000), "end"]
    assert wire.decode(kind(wire.encode(big))) == big
