import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstore.errors import InvalidInput, Malformed
from chainstore.model import wire
from chainstore.model.paths import Attr, compile_glob, decode_key, encode_key, format_path, is_key, parse_path
from chainstore.testing.sameness import same_value
from chainstore.testing.strategies import keys, nodes, paths


@given(paths())
def test_a_path_reads_back_as_it_was_printed(path):
    assert same_value(parse_path(format_path(path)), path)


@given(paths(), paths())
def test_different_paths_print_differently(a, b):
    assert (format_path(a) == format_path(b)) == same_value(a, b)


@given(paths())
def test_a_printed_path_can_be_shown_on_any_terminal(path):
    assert format_path(path).isprintable()


PRINTED = {
    (): "",
    ("layers", 0, "weight"): "layers/0/weight",
    ("state", "0", "exp_avg"): 'state/"0"/exp_avg',
    (1, "1", "01", "1.0", "1e5"): '1/"1"/"01"/"1.0"/"1e5"',
    (True, "True", None, "None", "true"): 'True/"True"/None/"None"/true',
    (0.5, -0.0, 1e300, float("inf")): "0.5/-0.0/1e+300/inf",
    ("inf", "nan", "-inf", "nan:7ff8000000000001"): '"inf"/"nan"/"-inf"/"nan:7ff8000000000001"',
    ("a/b", "*", "", "a b", " a"): '"a/b"/"*"/""/a b/" a"',
    (b'\x00a\xff"',): 'b"\\x00a\\xff\\""',
    ((), (1,), (1, "a"), ("1", (None,))): '()/(1,)/(1,a)/("1",(None,))',
    (Attr("indices"), "@indices", Attr("a/b")): '@indices/"@indices"/@"a/b"',
    (2**64, -(2**64), 2**64 - 1): "0x10000000000000000/-0x10000000000000000/18446744073709551615",
    ("\n", "\u202e", "\ud800", "\U000e0001", "é"): '"\\n"/"\\u202e"/"\\ud800"/"\\U000e0001"/é',
    ("model", "decoder.layers.0.attn:wq"): "model/decoder.layers.0.attn:wq",
}


@pytest.mark.parametrize("path", PRINTED)
def test_a_path_prints_as_documented(path):
    assert format_path(path) == PRINTED[path]
    assert same_value(parse_path(PRINTED[path]), path)


def test_single_quotes_read_like_double_ones():
    assert parse_path("'a/b'/b'x'") == ("a/b", b"x")


def test_what_can_be_no_key_still_prints():
    assert format_path(("a", frozenset())) == "a/@frozenset"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text",
    [
        *("/a", "a/", "a//b", '"a', "b'a", "(1", "(1)", "(,)", "(1,,2)", ")", "a*", "a'b", '"a"b'),
        *('"\\q"', '"\\', '"\\Uffffffff"', "@", "b'\u1234'", "(" * 40 + ")" * 40, "1" * 10_000),
    ],
)
def test_what_is_no_path_is_refused(text):
    with pytest.raises(InvalidInput):
        parse_path(text)


@given(st.text(alphabet="ab01.-*/\"'\\(),@ex ", max_size=15) | st.text())
def test_any_text_is_a_path_or_refused(text):
    for read in (parse_path, compile_glob):
        try:
            read(text)
        except InvalidInput:
            continue


@given(keys())
def test_a_key_comes_back_from_the_wire_with_its_type(key):
    assert is_key(key)
    assert same_value(decode_key(wire.decode(wire.encode(encode_key(key)))), key)


@given(keys(), keys())
def test_different_keys_differ_on_the_wire(a, b):
    assert (wire.encode(encode_key(a)) == wire.encode(encode_key(b))) == same_value(a, b)


@given(nodes())
def test_any_node_is_a_key_or_malformed(node):
    try:
        key = decode_key(node)
    except Malformed:
        return
    assert same_value(decode_key(encode_key(key)), key)


@pytest.mark.parametrize(
    "node", [[], [9, 1], [True, b"8 bytes."], [1, b"short"], [1], [4, b"ascii"], [3, 1], [2, [2, [9]]]]
)
def test_a_node_that_stands_for_no_key_is_malformed(node):
    with pytest.raises(Malformed):
        decode_key(node)


class Text(str):
    pass


@pytest.mark.parametrize("key", [Text("a"), frozenset(), 1j, ..., (1, (frozenset(),))])
def test_what_is_no_key_is_refused(key):
    assert not is_key(key)
    with pytest.raises(InvalidInput):
        encode_key(key)


def test_tuples_nest_sixteen_deep_in_a_key():
    key: tuple = ()
    for _ in range(15):
        key = (key,)
    assert same_value(parse_path(format_path((key,))), (key,))
    assert decode_key(encode_key(key)) == key
    assert not is_key((key,))
    with pytest.raises(Malformed):
        decode_key([2, encode_key(key)])


def test_an_attribute_is_no_str():
    assert Attr("a") != "a"
    assert {Attr("a"): 1, "a": 2} == {"a": 2, Attr("a"): 1}
    assert str(Attr("a")) == "@a"


GLOBS = [
    ("model/**", ("model", "layers", 0), True),
    ("model/**", ("model",), True),
    ("model/**", ("modelling", 0), False),
    ("**/weight", ("weight",), True),
    ("**/weight", ("a", 1, "weight"), True),
    ("**/weight", ("a", "weight", 1), False),
    ("a/**/b/**/c", tuple("axxbyc"), True),
    ("a/**/b/**/c", tuple("axxyc"), False),
    ("**/**", (), True),
    ("**", ("a", 1, None), True),
    ("", (), True),
    ("", ("a",), False),
    ("*", ("a",), True),
    ("*", (), False),
    ("*/1", ("a", 1), True),
    ("*/1", ("a", "1"), False),
    ("*/1", ("a", True), False),
    ("*/1", ("a", 1.0), False),
    ('*/"1"', ("a", "1"), True),
    ('*/"1"', ("a", 1), False),
    ("(1,a)/*", ((1, "a"), 0), True),
    ("(True,a)/*", ((1, "a"), 0), False),
    ("layer.*", ("layer.12",), True),
    ("layer.*", ("layer",), False),
    ("*.bias", ("layer.12.bias",), True),
    ("l*.*.b*s", ("layer.12.bias",), True),
    ("l*.*.b*s", ("layer.bias",), False),
    ("a*a", ("a",), False),
    ("1*", (12,), True),
    ("0*", ("007",), True),
    ("'a/'*", ("a/b",), True),
    ("'*'", ("*",), True),
    ("'*'", ("x",), False),
    ("'a/b'", ("a/b",), True),
    ("@ind*", (Attr("indices"),), True),
    ("@indices", (Attr("indices"),), True),
    ("@indices", ("@indices",), False),
]


@pytest.mark.parametrize(("pattern", "path", "matches"), GLOBS)
def test_a_glob_names_what_it_says(pattern, path, matches):
    assert compile_glob(pattern)(path) is matches


@pytest.mark.parametrize("pattern", ["a**", "***", "a//b", "/a", "(1", "a/", "**b/c"])
def test_a_glob_that_cannot_be_read_is_refused(pattern):
    with pytest.raises(InvalidInput):
        compile_glob(pattern)


@given(paths(), paths())
def test_a_printed_path_as_glob_names_that_path_only(path, other):
    test = compile_glob(format_path(path))
    assert test(path)
    assert test(other) == same_value(path, other)


@given(paths(), paths(), paths())
def test_two_stars_stand_for_any_keys_between(before, between, after):
    pattern = "/".join(text for text in (format_path(before), "**", format_path(after)) if text)
    assert compile_glob(pattern)((*before, *between, *after))


def test_many_stars_take_no_time():
    text = "a" * 3000
    assert not compile_glob("*a" * 30 + "*b")((text,))
    assert not compile_glob("/".join(["**", "a"] * 20 + ["b"]))(tuple(text[:200]))


def test_a_nan_prints_its_bits():
    odd = struct.unpack(">d", bytes.fromhex("fff8000000000001"))[0]
    assert format_path((float("nan"), odd)) == "nan/nan:fff8000000000001"
