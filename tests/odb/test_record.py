"""Sealing: what is sealed opens at its place only, and no flipped bit goes unseen."""

import os
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstore.crypto.bundle import new_bundle
from chainstore.errors import ChainError, Damaged, KeyRequired, WrongRepository
from chainstore.ids import Kind
from chainstore.odb.record import Sealer

REPO = bytes(16)
BUNDLE = new_bundle(os.urandom)
SEALED, PLAIN = Sealer(REPO, BUNDLE, os.urandom), Sealer(REPO, None, os.urandom)
BOTH = pytest.mark.parametrize("sealer", [PLAIN, SEALED], ids=["plain", "sealed"])
QUICK = settings(deadline=None, max_examples=60)


def seal(sealer: Sealer, plain: bytes, kind: Kind = Kind.CHUNK):
    room = bytearray(sealer.sealed_bytes(len(plain)))
    header, payload = sealer.seal(kind, sealer.id(kind, plain), len(plain), bytes(4), plain, room)
    return header, bytearray(payload)


def opened(sealer: Sealer, header, payload) -> bytes:
    return bytes(sealer.open(header, memoryview(payload), bytearray(len(payload))))


@BOTH
@QUICK
@given(plain=st.binary(max_size=100), kind=st.sampled_from(Kind))
def test_a_record_opens_to_what_was_sealed(sealer, plain, kind):
    header, payload = seal(sealer, plain, kind)
    assert header.stored_len == len(payload) == sealer.sealed_bytes(len(plain))
    assert opened(sealer, header, payload) == plain


@QUICK
@given(st.binary(max_size=60), st.data())
def test_no_flipped_bit_of_a_sealed_payload_goes_unseen(plain, data):
    header, payload = seal(SEALED, plain)
    bit = data.draw(st.integers(0, 8 * len(payload) - 1))
    payload[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        opened(SEALED, header, payload)


CHANGES = {
    "codecs": {"codecs": b"\1\0\0\0"},
    "depth": {"depth": 1},
    "plain_len": {"plain_len": 4},
    "kind": {"kind": Kind.TREE},
    "flags": {"flags": 0},
    "id": {"id": PLAIN.id(Kind.CHUNK, b"other")},
    "bases": {"bases": (PLAIN.id(Kind.CHUNK, b"other"),)},
    "repo_id": {"repo_id": b"x" * 16},
    "stored_len": {"stored_len": 5},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_the_whole_header_is_authenticated(changes):
    header, payload = seal(SEALED, b"plain")
    with pytest.raises((Damaged, WrongRepository)):
        opened(SEALED, replace(header, **changes), payload)


def test_an_unsealed_record_in_a_sealed_repository_is_damage_and_the_other_way_round():
    for one, other in ((SEALED, PLAIN), (PLAIN, SEALED)):
        with pytest.raises(Damaged):
            opened(other, *seal(one, bytes(100)))


def test_whoever_has_only_the_metadata_key_opens_trees_and_no_chunk():
    reader = Sealer(REPO, replace(BUNDLE, data={}), os.urandom)
    assert opened(reader, *seal(SEALED, b"names", Kind.TREE)) == b"names"
    with pytest.raises(KeyRequired):
        opened(reader, *seal(SEALED, b"weights"))


@BOTH
@QUICK
@given(plain=st.binary(max_size=60), key=st.binary(min_size=1, max_size=40), seq=st.integers(0, 2**63))
def test_a_row_opens_under_its_own_table_and_key(sealer, plain, key, seq):
    row = sealer.seal_row("refs", key, seq, plain)
    assert sealer.open_row("refs", key, row) == plain
    if sealer.encrypted:
        for table, other in (("marks", key), ("refs", key + b"x")):
            with pytest.raises(Damaged):
                sealer.open_row(table, other, row)


@BOTH
@QUICK
@given(row=st.binary(max_size=120))
def test_random_bytes_are_a_row_to_no_sealed_repository(sealer, row):
    try:
        found = sealer.open_row("refs", b"key", row)
    except ChainError:
        return
    assert not sealer.encrypted
    assert found == row[12:]


@BOTH
def test_a_line_opens_at_its_place_in_the_log_only(sealer):
    line = sealer.seal_line(5, b"p" * 32, b"body")
    assert sealer.open_line(line) == b"body"
    if sealer.encrypted:
        for changes in ({"seq": 6}, {"previous": b"q" * 32}, {"generation": 0}, {"body": line.body[:-1]}):
            with pytest.raises(Damaged):
                sealer.open_line(replace(line, **changes))
    else:
        with pytest.raises(Damaged):
            sealer.open_line(replace(line, generation=1))


@BOTH
def test_names_of_refs_have_keys_of_their_own(sealer):
    assert sealer.ref_key("heads/main") == sealer.ref_key("heads/main") != sealer.ref_key("heads/mail")
    assert len(sealer.ref_key("")) == 32


def test_without_the_key_of_names_no_ref_is_found():
    with pytest.raises(KeyRequired):
        Sealer(REPO, replace(BUNDLE, name=None), os.urandom).ref_key("heads/main")
