"""The primitives give the answers of the documents that define them, through our own functions where those show them.

AES-256-GCM     NIST CAVP, gcmEncryptExtIV256.rsp; McGrew and Viega, "The Galois/Counter Mode of Operation"
HKDF-SHA256     RFC 5869, appendix A
BLAKE3          test_vectors.json of github.com/BLAKE3-team/BLAKE3
AES key wrap    RFC 3394, section 4; RFC 5649, section 6; Wycheproof, kwp_test.json
Argon2id        RFC 9106, section 5.3; src/test.c of github.com/P-H-C/phc-winner-argon2
CRC32C          RFC 3720, appendix B.4
"""

import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import (
    InvalidUnwrap,
    aes_key_unwrap_with_padding,
    aes_key_wrap,
    aes_key_wrap_with_padding,
)

from chainstore.crypto import aead, keyring
from chainstore.crypto.aead import OVERHEAD, TagMismatch, open_into, seal_into
from chainstore.crypto.keyring import Slot
from chainstore.crypto.keys import Argon2Cost, Passphrase
from chainstore.errors import Malformed
from chainstore.ids import Hasher, Kind, fingerprint
from chainstore.model.frame import crc32c


def h(text: str) -> bytes:
    return bytes.fromhex(text)


# key, nonce, associated data, plaintext, ciphertext, tag
GCM = {
    "CAVP 96/0/0 #0": (
        h("b52c505a37d78eda5dd34f20c22540ea1b58963cf8e5bf8ffa85f9f2492505b4"),
        h("516c33929df5a3284ff463d7"),
        *(b"", b"", b""),
        h("bdc1ac884d332457a1d2664f168c76f0"),
    ),
    "CAVP 96/128/0 #0": (
        h("31bdadd96698c204aa9ce1448ea94ae1fb4a9a0b3c9d773b51bb1822666b8f22"),
        h("0d18e06c7c725ac9e362e1ce"),
        b"",
        h("2db5168e932556f8089a0622981d017d"),
        h("fa4362189661d163fcd6a56d8bf0405a"),
        h("d636ac1bbedd5cc3ee727dc2ab4a9489"),
    ),
    "CAVP 96/128/128 #0": (
        h("92e11dcdaa866f5ce790fd24501f92509aacf4cb8b1339d50c9c1240935dd08b"),
        h("ac93a1a6145299bde902f21a"),
        h("1e0889016f67601c8ebea4943bc23ad6"),
        h("2d71bcfa914e4ac045b2aa60955fad24"),
        h("8995ae2e6df3dbf96fac7b7137bae67f"),
        h("eca5aa77d51d4a0a14d9c51e1da474ab"),
    ),
    "McGrew and Viega 13": (bytes(32), bytes(12), b"", b"", b"", h("530f8afbc74536b9a963b4f1c4cb738b")),
    "McGrew and Viega 14": (
        *(bytes(32), bytes(12), b"", bytes(16)),
        h("cea7403d4d606b6e074ec5d3baf39d18"),
        h("d0d1c8a799996bf0265b98b5d48ab919"),
    ),
    "McGrew and Viega 15": (
        h("feffe9928665731c6d6a8f9467308308" * 2),
        h("cafebabefacedbaddecaf888"),
        b"",
        h("d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72")
        + h("1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"),
        h("522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa")
        + h("8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"),
        h("b094dac5d93471bdec1a502270e3cc6c"),
    ),
}


@pytest.mark.parametrize("name", GCM)
def test_sealing_and_opening_give_the_answers_of_gcm(name: str) -> None:
    key, nonce, header, plain, cipher, tag = GCM[name]
    out = bytearray(len(plain) + OVERHEAD)
    assert seal_into(key, nonce, header, plain, out) == len(out)
    assert bytes(out) == nonce + cipher + tag
    back = bytearray(len(plain))
    assert open_into(key, out, header, back) == len(plain) and bytes(back) == plain
    out[-1] ^= 1
    with pytest.raises(TagMismatch):
        open_into(key, out, header, back)


# key material, salt, info, length, pseudorandom key, output
HKDF_SHA256 = {
    "A.1": (
        *(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42),
        h("077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"),
        h("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"),
    ),
    "A.2": (
        *(bytes(range(80)), bytes(range(0x60, 0xB0)), bytes(range(0xB0, 0x100)), 82),
        h("06a6b88c5853361a06104c9ceb35b45cef760014904671014a193f40c15fc244"),
        h("b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c")
        + h("59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87"),
    ),
    "A.3": (
        *(b"\x0b" * 22, None, b"", 42),
        h("19ef24a32c717b167f33a91d6f648bdf96596776afdb6377ac434c1c293ccb04"),
        h("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"),
    ),
}


@pytest.mark.parametrize("name", HKDF_SHA256)
def test_derived_keys_are_those_of_rfc_5869(name: str) -> None:
    material, salt, info, length, pseudorandom, output = HKDF_SHA256[name]
    assert HKDF(SHA256(), length, salt, info).derive(material) == output
    assert aead._expand(pseudorandom, info, length) == output


def test_a_slot_derives_its_keys_as_rfc_5869_says_without_a_salt() -> None:
    repo_id, slot_id = bytes(16), bytes(8)
    both = HKDF(SHA256(), 64, bytes(32), b"chainstore/v1/slot" + repo_id + slot_id).derive(b"\x0b" * 32)
    assert b"".join(keyring._slot_keys(b"\x0b" * 32, repo_id, slot_id)) == both  # no salt is one of zeros


BLAKE3_KEY = b"whats the Elvish word for friend"
BLAKE3_CONTEXT = "BLAKE3 2019-12-27 16:29:52 test vectors context"
# length of the input -> hash, keyed hash, derived key; each the first 32 bytes
BLAKE3 = {
    0: (
        "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262",
        "92b2b75604ed3c761f9d6f62392c8a9227ad0ea3f09573e783f1498a4ed60d26",
        "2cc39783c223154fea8dfb7c1b1660f2ac2dcbd1c1de8277b0b0dd39b7e50d7d",
    ),
    1: (
        "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213",
        "6d7878dfff2f485635d39013278ae14f1454b8c0a3a2d34bc1ab38228a80c95b",
        "b3e2e340a117a499c6cf2398a19ee0d29cca2bb7404c73063382693bf66cb06c",
    ),
    16384: (
        "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4",
        "9e9fc4eb7cf081ea7c47d1807790ed211bfec56aa25bb7037784c13c4b707b0d",
        "160e18b5878cd0df1c3af85eb25a0db5344d43a6fbd7a8ef4ed98d0714c3f7e1",
    ),
    31744: (
        "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47",
        "efa53b389ab67c593dba624d898d0f7353ab99e4ac9d42302ee64cbf9939a419",
        "39772aef80e0ebe60596361e45b061e8f417429d529171b6764468c22928e28e",
    ),
    102400: (
        "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085",
        "1c35d1a5811083fd7119f5d5d1ba027b4d01c0c6c49fb6ff2cf75393ea5db4a7",
        "4652cff7a3f385a6103b5c260fc1593e13c778dbe608efb092fe7ee69df6e9c6",
    ),
}


@pytest.mark.parametrize("length", BLAKE3)
def test_hashes_are_those_of_the_official_vectors(length: int) -> None:
    data = bytes(i % 251 for i in range(length))
    plain, keyed, derived = map(h, BLAKE3[length])
    assert blake3(data).digest() == plain
    assert blake3(data, key=BLAKE3_KEY).digest() == keyed
    assert blake3(data, derive_key_context=BLAKE3_CONTEXT).digest() == derived


def test_ids_and_fingerprints_are_keyed_hashes_of_what_the_format_says() -> None:
    data = bytes(i % 251 for i in range(102400))
    prefixed = b"\x03" + len(data).to_bytes(8, "little") + data
    assert Hasher(BLAKE3_KEY).id(Kind.CHUNK, data) == blake3(prefixed, key=BLAKE3_KEY).digest()
    sized = b"\3\0ref" + len(data).to_bytes(8, "little") + data
    assert fingerprint("ref", data, key=BLAKE3_KEY) == blake3(sized, key=BLAKE3_KEY).digest()


# key, what is wrapped, wrapped
WRAPPED = {
    "RFC 5649, 20 bytes": (
        h("5840df6e29b02af1ab493b705bf16ea1ae8338f4dcc176a8"),
        h("c37b7e6492584340bed12207808941155068f738"),
        h("138bdeaa9b8fa7fc61f97742e72248ee5ae6ae5360d1ae6a5f54f373fa543b6a"),
    ),
    "RFC 5649, 7 bytes": (
        h("5840df6e29b02af1ab493b705bf16ea1ae8338f4dcc176a8"),
        h("466f7250617369"),
        h("afbeb0f07dfbf5419200f2ccb50bb24f"),
    ),
    "Wycheproof 163": (
        h("1abf4b7fa2bb62a78f09ddab04625dcacdd9e551d1a69b6b162baa53d2700093"),
        h("8b18daecde14b8472ffd"),
        h("f77ec14a010777f1f1071808f285c1c00b4e9420f0e8bf48"),
    ),
    "Wycheproof 168": (
        h("1abf4b7fa2bb62a78f09ddab04625dcacdd9e551d1a69b6b162baa53d2700093"),
        h("72aaee126a822184806c7d22eed66b"),
        h("de497acf18a177a3a9b3d8da46d74dfa58dcc537a3a95323"),
    ),
}
NOT_WRAPPED = {  # Wycheproof, modified initial values
    "169": "aef4d2357a8fc5c3b4a80a15ed49781d3a82c98eb78c9180",
    "177": "9b1e7d6caf42bb3a15530f2387ed7329310ba76e1852566a",
    "193": "8b011408049eab81cc185796b9636982c1ad28e940e5c35ab1219434c23e8c59",
    "201": "8c5c2ea18125a03d15d2a624c9bfcccdf53709a89ae03d5728c98943b13df72c6f02fc8e1cfcdfa7",
}
NOT_WRAPPED_KEY = h("4f710eb6b5e28703becfc3dc52fa8bc1dd44a4a6d38a84b4f94e89ac32d987e7")


@pytest.mark.parametrize("name", WRAPPED)
def test_keys_are_wrapped_as_rfc_5649_says(name: str) -> None:
    key, plain, wrapped = WRAPPED[name]
    assert aes_key_wrap_with_padding(key, plain) == wrapped
    assert aes_key_unwrap_with_padding(key, wrapped) == plain


def test_the_core_of_the_wrapping_is_that_of_rfc_3394() -> None:
    """Section 4.6: 256 bits under a key of 256 bits."""
    data = h("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f")
    wrapped = h("28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326cbc7f0e71a99f43bfb988b9b7a02dd21")
    assert aes_key_wrap(bytes(range(32)), data) == wrapped


@pytest.mark.parametrize("name", NOT_WRAPPED)
def test_what_was_not_wrapped_with_a_key_is_refused_also_in_a_slot(name: str) -> None:
    with pytest.raises(InvalidUnwrap):
        aes_key_unwrap_with_padding(NOT_WRAPPED_KEY, h(NOT_WRAPPED[name]))
    with pytest.raises(Malformed, match="broken"):
        keyring._unwrap(NOT_WRAPPED_KEY, Slot("00" * 8, "file", "", b"", bytes(32), h(NOT_WRAPPED[name])))


def test_argon2id_gives_the_answer_of_rfc_9106() -> None:
    kdf = Argon2id(salt=b"\2" * 16, length=32, iterations=3, lanes=4, memory_cost=32, ad=b"\4" * 12, secret=b"\3" * 8)
    assert kdf.derive(b"\1" * 32) == h("0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659")


@pytest.mark.parametrize(
    ("memory_kib", "passes", "lanes", "key"),
    [
        (65536, 2, 1, "09316115d5cf24ed5a15a31a3ba326e5cf32edc24702987c02b6566f61913cf7"),
        (256, 2, 1, "9dfeb910e80bad0311fee20f9c0e2b12c17987b4cac90c2ef54d5b3021c68bfe"),
        (256, 2, 2, "6d093c501fd5999645e0ea3bf620d7b8be7fd2db59c20d9fff9539da2bf57037"),
    ],
)
def test_a_passphrase_is_stretched_as_the_reference_implementation_does(
    memory_kib: int, passes: int, lanes: int, key: str
) -> None:
    cost = Argon2Cost(memory_kib, passes, lanes)
    assert Passphrase("password")._stretch(cost, b"somesalt") == h(key)


@pytest.mark.parametrize(
    ("data", "check"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_checksums_are_those_of_rfc_3720(data: bytes, check: int) -> None:
    assert crc32c(data) == crc32c(memoryview(data)) == crc32c(data[:5], data[5:]) == check
