"""Paths: where a leaf lies in a state, as a tuple of typed keys, and the one way they are written and read.

    layers/0/weight                   ("layers", 0, "weight")
    optimizer/state/"0"/exp_avg       a str that looks like another type is quoted, as is one that holds / or *
    edges/(1,a)/@indices              a tuple as key; an internal part of a composite value (`Attr`)

Ints stand plain, floats as Python prints them (1.0, inf), True, False and None as themselves, bytes as b"\\x00a".
`format_path` and `parse_path` are inverses, types included: 1, True, 1.0 and "1" are four different keys.  In a
glob `*` stands for one key or a piece of one, `**` for any number of keys.

    >>> parse_path('optimizer/state/"0"/exp_avg')
    ('optimizer', 'state', '0', 'exp_avg')
    >>> compile_glob("layers/*/weight")(("layers", 0, "weight"))
    True
"""

import re
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias

from chainstore.errors import InvalidInput
from chainstore.model.keys import MAX_KEY_DEPTH, Attr, Key, Path, decode_key, encode_key, is_key

__all__ = ["Attr", "Key", "Path", "compile_glob", "decode_key", "encode_key", "format_path", "is_key", "parse_path"]

_WORDS: dict[str, "Key"] = {"True": True, "False": False, "None": None}
_INT = re.compile(r"0|-?[1-9][0-9]*|-?0x[1-9a-f][0-9a-f]*")
_DECIMAL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|-?inf|nan")
_NAN = re.compile(r"nan:([0-9a-f]{16})")
_PLAIN = re.compile(r"""[^/*"'(),\\]+""")  # what may stand without quotes
_QUOTED = re.compile(r""""((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'""", re.DOTALL)
_GLOB_PIECE = re.compile(
    r"""(?P<quoted>b?"(?:[^"\\]|\\.)*"|b?'(?:[^'\\]|\\.)*')|(?P<slash>/)|(?P<star>\*+)|.""", re.DOTALL
)
_ESCAPE = re.compile(r"""\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt"'\\])|.?)""", re.DOTALL)
_SHORT_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "'": "'", "\\": "\\"}
_ESCAPED = {"\n": "\\n", "\r": "\\r", "\t": "\\t", '"': '\\"', "\\": "\\\\"}
_LONG_INT = 1 << 64  # from here on ints are written in hex, which Python converts at any length


def format_path(path: Path) -> str:
    """Return `path` as text; `parse_path` gives it back with its types.  The empty path is "".

    Keys that `is_key` refuses (of a state that cannot be stored) are printed as `@` and their type's name.
    """
    return "/".join([_format_text(key) if type(key) is str else _format_key(key) for key in path])


def parse_path(text: str) -> Path:
    """Return the path that `text` writes, with single or double quotes, other keys as `format_path` prints them.

    Raises:
        InvalidInput: a quote or parenthesis is open, a key is empty, or `*` stands outside of quotes.
    """
    if not text:
        return ()
    reader = _Reader(text)
    keys = [reader.key()]
    while reader.at < len(text):
        reader.expect("/")
        keys.append(reader.key())
    return tuple(keys)


def _format_key(key: Key) -> str:
    if isinstance(key, str):
        return _format_text(key)
    if isinstance(key, Attr):
        return _format_attr(key)
    if isinstance(key, tuple):
        return "(" + ",".join(map(_format_key, key)) + (",)" if len(key) == 1 else ")")
    if isinstance(key, bytes):
        return 'b"' + "".join(_escape(chr(byte)) if byte < 127 else f"\\x{byte:02x}" for byte in key) + '"'
    if isinstance(key, float):
        return _format_float(key)
    if key is None or isinstance(key, int):
        return str(key) if key is None or -_LONG_INT < key < _LONG_INT else hex(key)
    return f"@{type(key).__qualname__}"


@lru_cache(maxsize=1 << 14)
def _format_text(text: str) -> str:
    stands_plain = _PLAIN.fullmatch(text) and text.isprintable() and text == text.strip() and text[0] != "@"
    return text if stands_plain and not _looks_typed(text) else _quote(text)


def _looks_typed(text: str) -> bool:
    """Return whether a reader (ours, or a person) could take `text` for a key of another type."""
    if text in _WORDS or _INT.fullmatch(text) or _NAN.fullmatch(text):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _format_attr(attr: Attr) -> str:
    plain = _PLAIN.fullmatch(attr.name) and attr.name.isprintable() and attr.name == attr.name.strip()
    return "@" + (attr.name if plain else _quote(attr.name))


def _format_float(value: float) -> str:
    if value == value:
        return repr(value)
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return "nan" if bits == 0x7FF8 << 48 else f"nan:{bits:016x}"


def _quote(text: str) -> str:
    return '"' + "".join(map(_escape, text)) + '"'


def _escape(char: str) -> str:
    if char in _ESCAPED:
        return _ESCAPED[char]
    if char.isprintable():
        return char
    number = ord(char)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _unescape(text: str) -> str:
    return _ESCAPE.sub(_unescape_one, text)


def _unescape_one(found: re.Match[str]) -> str:
    short = found[4]
    if short:
        return _SHORT_ESCAPES[short]
    digits = found[1] or found[2] or found[3]
    if digits is None or int(digits, 16) > 0x10FFFF:
        raise InvalidInput(f"{found[0]!r} is no escape; a backslash is written twice")
    return chr(int(digits, 16))


def _plain_key(text: str) -> Key:
    """Return what stands without quotes: a word, a number, else a str."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INT.fullmatch(text):
            return int(text, 16 if "x" in text else 10)
        if _DECIMAL.fullmatch(text) and not text.lstrip("-").isdecimal():
            return float(text)
    except ValueError as error:
        raise InvalidInput(f"{text[:20]}... has too many digits: {error}") from error
    nan = _NAN.fullmatch(text)
    if nan:
        value: float = struct.unpack(">d", bytes.fromhex(nan[1]))[0]
        return value
    return text


class _Reader:
    """Reads keys from a text, from left to right."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def fail(self, why: str) -> InvalidInput:
        return InvalidInput(f"path {self.text!r}, character {self.at + 1}: {why}")

    def expect(self, char: str) -> None:
        if not self.text.startswith(char, self.at):
            raise self.fail(f"expected {char!r}")
        self.at += len(char)

    def key(self, depth: int = 0) -> Key:
        start = self.text[self.at : self.at + 1]
        if start == "(":
            return self.tuple(depth)
        if start == "@":
            self.at += 1
            return Attr(self.quoted() if self.text[self.at : self.at + 1] in ('"', "'") else self.plain())
        if start in ('"', "'"):
            return self.quoted()
        if start == "b" and self.text[self.at + 1 : self.at + 2] in ('"', "'"):
            self.at += 1
            return self.raw()
        return _plain_key(self.plain())

    def plain(self) -> str:
        found = _PLAIN.match(self.text, self.at)
        if not found:
            raise self.fail('a key is missing; an empty one is written "", one that holds any of /*"\'(),\\ in quotes')
        self.at = found.end()
        return found[0]

    def quoted(self) -> str:
        found = _QUOTED.match(self.text, self.at)
        if not found:
            raise self.fail("this quote is never closed")
        self.at = found.end()
        return _unescape(found[1] if found[1] is not None else found[2])

    def raw(self) -> bytes:
        text = self.quoted()
        try:
            return text.encode("latin-1")
        except UnicodeEncodeError:
            raise self.fail("bytes hold characters up to \\xff only") from None

    def tuple(self, depth: int) -> Key:
        if depth >= MAX_KEY_DEPTH:
            raise self.fail(f"tuples nest deeper than {MAX_KEY_DEPTH}")
        self.expect("(")
        items: list[Key] = []
        while not self.text.startswith(")", self.at):
            items.append(self.key(depth + 1))
            if not self.text.startswith(")", self.at) or len(items) == 1:
                self.expect(",")
        self.expect(")")
        return tuple(items)


_Test: TypeAlias = Callable[[Key], bool]


def compile_glob(pattern: str) -> Callable[[Path], bool]:
    """Return a test for paths that `pattern` names.

    `*` stands for one key, or for any piece of one (`layer.*`), `**` for any number of keys, none included;
    everything else is a path as `parse_path` reads it.  A piece is sought in the key as printed, and in a str also
    without its quotes.

    Raises:
        InvalidInput: a key in it cannot be read, or `**` is only part of one.
    """
    tests = [_compile_segment(segment, pattern) for segment in _split_glob(pattern)]
    if None not in tests:
        fixed = [test for test in tests if test is not None]
        return lambda path: len(path) == len(fixed) and all(test(key) for test, key in zip(fixed, path, strict=True))
    return lambda path: _match_any_length(tests, path)


def _match_any_length(tests: list[_Test | None], path: Path) -> bool:
    """Follow all ways through the pattern at once; None stands for any number of keys."""
    at = _skip_any(tests, {0})
    for key in path:
        ahead = {place for place in at if place < len(tests) and tests[place] is None}
        for place in at:
            test = tests[place] if place < len(tests) else None
            if test is not None and test(key):
                ahead.add(place + 1)
        at = _skip_any(tests, ahead)
        if not at:
            return False
    return len(tests) in at


def _skip_any(tests: list[_Test | None], at: set[int]) -> set[int]:
    for place in range(len(tests)):
        if place in at and tests[place] is None:
            at.add(place + 1)
    return at


def _split_glob(pattern: str) -> list[list[re.Match[str]]]:
    segments: list[list[re.Match[str]]] = [[]] if pattern else []
    for piece in _GLOB_PIECE.finditer(pattern):
        if piece["slash"]:
            segments.append([])
        else:
            segments[-1].append(piece)
    return segments


def _compile_segment(pieces: list[re.Match[str]], pattern: str) -> _Test | None:
    text = "".join(piece[0] for piece in pieces)
    if text == "**":
        return None
    if text == "*":
        return lambda key: True
    stars = [piece["star"] for piece in pieces if piece["star"]]
    if not stars:
        return _match_literal(text, pattern)
    if max(map(len, stars)) > 1:
        raise InvalidInput(f"glob {pattern!r}: ** stands for whole keys only, between slashes")
    literals = [""]
    for piece in pieces:
        if piece["star"]:
            literals.append("")
        else:
            literals[-1] += _unescape(piece[0][1:-1]) if piece["quoted"] and piece[0][0] != "b" else piece[0]
    return lambda key: _has_pieces(key, literals)


def _match_literal(text: str, pattern: str) -> _Test:
    keys = parse_path(text)
    if len(keys) != 1:
        raise InvalidInput(f"glob {pattern!r}: a key is missing before or after a slash")
    printed = format_path(keys)
    if type(keys[0]) is str:
        wanted = keys[0]
        return lambda key: type(key) is str and key == wanted
    return lambda key: type(key) is not str and _format_key(key) == printed


def _has_pieces(key: Key, literals: list[str]) -> bool:
    if type(key) is str and _in_order(key, literals):
        return True
    return _in_order(_format_key(key), literals)


def _in_order(text: str, literals: list[str]) -> bool:
    """Return whether `text` is the literals in order with anything between them; linear, unlike a regex of stars."""
    first, *middle, last = literals
    end = len(text) - len(last)
    if not text.startswith(first) or not text.endswith(last) or len(first) > end:
        return False
    at = len(first)
    for literal in middle:
        at = text.find(literal, at, end)
        if at < 0:
            return False
        at += len(literal)
    return True
