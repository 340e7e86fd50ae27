import hmac

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from hypothesis import given
from hypothesis import strategies as st

from chainstore.crypto.aead import (
    OVERHEAD,
    ROW_OVERHEAD,
    TagMismatch,
    object_key,
    open_into,
    open_row,
    ref_key,
    row_header,
    seal_into,
    seal_row,
)
from chainstore.errors import Damaged, InvalidInput, Malformed, WrongKey

KEY, NONCE = bytes(range(32)), bytes(range(100, 112))


def sealed(plain, header=b"header", key=KEY, nonce=NONCE):
    out = bytearray(len(plain) + OVERHEAD)
    assert seal_into(key, nonce, header, plain, out) == len(out)
    return bytes(out)


def row(plain=b"value", key=KEY, generation=7, seq=1 << 40, label="row"):
    return seal_row(key, generation, seq, b"refs", b"main", plain, NONCE, label=label)


# --- known answers


def test_sealing_gives_the_answer_of_the_gcm_specification():
    """Test case 16 of McGrew and Viega, the GCM submission to NIST."""
    key = bytes.fromhex("feffe9928665731c6d6a8f9467308308" * 2)
    nonce = bytes.fromhex("cafebabefacedbaddecaf888")
    header = bytes.fromhex("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    plain = bytes.fromhex(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    cipher = bytes.fromhex(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    )
    tag = bytes.fromhex("76fc6ece0f4e1768cddf8853bb2d551b")
    assert sealed(plain, header, key, nonce) == nonce + cipher + tag


def test_the_key_derivation_gives_the_answer_of_rfc_5869():
    """Appendix A.1."""
    prk = bytes.fromhex("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5")
    info = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9")
    okm = bytes.fromhex("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    assert HKDFExpand(SHA256(), 42, info).derive(prk) == okm
    salt = bytes.fromhex("000102030405060708090a0b0c")
    assert HKDF(SHA256(), 42, salt, info).derive(b"\x0b" * 22) == okm


def test_an_object_key_is_one_hmac_over_the_fields_in_order():
    repo_id, object_id = bytes(range(16)), bytes(range(32, 64))
    info = b"chainstore/v1/obj" + b"\x01" + repo_id + b"\x03" + object_id
    assert object_key(KEY, 1, repo_id, 3, object_id) == hmac.digest(KEY, info + b"\x01", "sha256")


@pytest.mark.parametrize(
    ("length", "digest"),
    [
        (0, "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26"),
        (1, "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b"),
    ],
)
def test_keyed_blake3_gives_the_official_answer(length, digest):
    assert blake3(bytes(length), key=b"whats the Elvish word for friend").hexdigest() == digest


def test_a_ref_key_is_a_keyed_hash_of_the_name():
    prefix = (3).to_bytes(2, "little") + b"ref" + (4).to_bytes(8, "little")
    assert ref_key(KEY, "main") == blake3(prefix + b"main", key=KEY).digest()
    assert len({ref_key(KEY, "main"), ref_key(KEY, "maim"), ref_key(bytes(32), "main"), ref_key(None, "main")}) == 4


# --- records


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 40))
def test_what_is_sealed_opens_and_leaves_the_rest_of_the_buffer_alone(plain, header, spare):
    length = len(plain) + OVERHEAD
    stored, out = bytearray(b"s" * (length + spare)), bytearray(b"o" * (len(plain) + spare))
    assert seal_into(KEY, NONCE, header, plain, memoryview(stored)) == length
    assert open_into(KEY, memoryview(stored)[:length], header, memoryview(out)) == len(plain)
    assert out == plain + b"o" * spare
    assert stored[length:] == b"s" * spare


@given(st.binary(max_size=100), st.binary(max_size=40), st.data())
def test_any_flipped_bit_is_noticed_and_leaves_zeros(plain, header, data):
    joined = bytearray(sealed(plain, header) + header)
    bit = data.draw(st.integers(0, 8 * len(joined) - 1))
    joined[bit // 8] ^= 1 << bit % 8
    stored, changed = joined[: len(plain) + OVERHEAD], joined[len(plain) + OVERHEAD :]
    out = bytearray(b"\xff" * (len(plain) + 5))
    with pytest.raises(TagMismatch):
        open_into(KEY, stored, changed, out)
    assert out == bytes(len(plain)) + b"\xff" * 5


def test_a_large_forged_record_leaves_zeros():
    plain = bytes(range(256)) * 4096
    stored = bytearray(sealed(plain))
    stored[-1] ^= 1
    out = bytearray(len(plain))
    with pytest.raises(TagMismatch):
        open_into(KEY, stored, b"header", out)
    assert not any(out)


def test_a_record_cut_short_or_made_longer_does_not_open():
    stored = sealed(b"twenty-four bytes here!!")
    for changed in (*(stored[:n] for n in range(len(stored))), stored + b"\0"):
        with pytest.raises(TagMismatch):
            open_into(KEY, changed, b"header", bytearray(64))


def test_every_part_of_an_objects_identity_changes_its_key():
    base = (KEY, 1, bytes(16), 3, bytes(32))
    others = [(bytes(32), *base[1:]), (KEY, 2, *base[2:]), (KEY, 1, b"r" * 16, *base[3:])]
    others += [(*base[:3], 2, bytes(32)), (*base[:4], b"i" * 32)]
    assert len({object_key(*each) for each in (base, *others)}) == 6


def test_wrong_lengths_are_refused():
    with pytest.raises(InvalidInput):
        seal_into(KEY[:16], NONCE, b"", b"", bytearray(OVERHEAD))  # else AES-128, silently
    with pytest.raises(InvalidInput):
        seal_into(KEY, NONCE + b"n", b"", b"", bytearray(64))
    with pytest.raises(InvalidInput):
        seal_into(KEY, NONCE, b"", b"plain", bytearray(OVERHEAD + 4))
    with pytest.raises(InvalidInput):
        open_into(KEY, sealed(b"plain"), b"header", bytearray(4))
    with pytest.raises(InvalidInput):
        open_into(KEY[:24], sealed(b"plain"), b"header", bytearray(5))
    with pytest.raises(InvalidInput):
        object_key(KEY, 1, bytes(15), 3, bytes(32))


def test_buffers_of_other_item_types_are_taken_as_bytes():
    plain = memoryview(bytes(range(32))).cast("f")
    stored, out = bytearray(32 + OVERHEAD), memoryview(bytearray(32)).cast("i")
    assert seal_into(KEY, NONCE, b"", plain, memoryview(stored).cast("i")) == len(stored)
    assert open_into(KEY, memoryview(stored).cast("i"), b"", out) == 32
    assert out.tobytes() == plain.tobytes()


# --- rows


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_a_sealed_row_opens_in_its_place(plain, generation, seq):
    stored = seal_row(KEY, generation, seq, b"refs", b"main", plain, NONCE)
    assert len(stored) == len(plain) + ROW_OVERHEAD
    assert row_header(stored) == (generation, seq)
    assert open_row({generation: KEY}, b"refs", b"main", memoryview(stored)) == (seq, plain)


def test_any_flipped_bit_of_a_row_is_noticed():
    stored = row()
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises((TagMismatch, WrongKey)):
            open_row({7: KEY, 6: bytes(32)}, b"refs", b"main", changed)


@pytest.mark.parametrize(
    ("table", "key"), [(b"refs", b"mai"), (b"ref", b"smain"), (b"refsm", b"ain"), (b"", b"refsmain")]
)
def test_a_row_moved_elsewhere_does_not_open(table, key):
    with pytest.raises(TagMismatch):
        open_row({7: KEY}, table, key, row())


def test_a_row_is_no_log_record():
    with pytest.raises(TagMismatch):
        open_row({7: KEY}, b"refs", b"main", row(label="log"))
    assert open_row({7: KEY}, b"refs", b"main", row(label="log"), label="log")[1] == b"value"


def test_a_row_of_another_key_or_an_unknown_generation_does_not_open():
    with pytest.raises(TagMismatch, match="not sealed with this key"):
        open_row({7: bytes(32)}, b"refs", b"main", row())
    with pytest.raises(WrongKey, match="generation 7"):
        open_row({8: KEY}, b"refs", b"main", row())


def test_a_row_cut_short_is_malformed():
    for length in range(ROW_OVERHEAD):
        with pytest.raises(Malformed):
            open_row({7: KEY}, b"refs", b"main", row(b"")[:length])


def test_a_rows_commitment_and_key_are_one_expansion():
    stored = row(b"")
    info = b"chainstore/v1/row" + NONCE
    first = hmac.digest(KEY, info + b"\x01", "sha256")
    second = hmac.digest(KEY, first + info + b"\x02", "sha256")
    assert stored[12:44] == second
    assert stored[44:56] == NONCE


def test_a_mismatch_is_damage():
    assert issubclass(TagMismatch, Damaged)
    assert KEY.hex() not in str(TagMismatch("a record"))
