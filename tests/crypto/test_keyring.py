import itertools
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import aes_key_unwrap_with_padding, aes_key_wrap_with_padding
from hypothesis import given
from hypothesis import strategies as st

from chainstore.crypto.keyring import MAX_KEYRING_BYTES, MAX_SLOTS, Bundle, Keyring, Slot, new_bundle
from chainstore.crypto.keys import Argon2Cost, KeyFile, Passphrase
from chainstore.errors import Denied, FormatTooNew, InvalidInput, KeyRequired, Malformed, NotFound, WrongKey
from chainstore.ids import fingerprint

REPO = bytes(range(16))
CHEAP = Argon2Cost(memory_kib=32, passes=1, lanes=4)


def counted():
    """Give random-looking bytes that are the same in every run."""
    numbers = itertools.count()
    return lambda size: fingerprint("test", next(numbers).to_bytes(4, "little"))[:size]


def passphrase(text):
    return Passphrase(text, CHEAP)


@pytest.fixture
def key_file(tmp_path):
    def make(name):
        (tmp_path / name).write_bytes(fingerprint("key", name.encode()))
        return KeyFile(tmp_path / name)

    return make


BUNDLE = new_bundle(counted())


def ring_of(*texts):
    random, ring = counted(), Keyring(0, REPO)
    for text in texts:
        ring = ring.with_slot(passphrase(text), BUNDLE, label=f"{text}'s", random=random)
    return ring


# --- bundle

keys = st.binary(min_size=32, max_size=32)
generations = st.dictionaries(st.integers(1, 2**32 - 1), keys, max_size=4)
bundles = st.builds(Bundle, st.none() | keys, st.none() | keys, generations, generations)


@given(bundles)
def test_a_bundle_comes_back_whatever_keys_are_in_it(bundle):
    assert Bundle.from_bytes(bundle.to_bytes()) == bundle


@given(st.binary(max_size=120) | st.binary(min_size=37, max_size=37).map(lambda rest: b"\1" + rest))
def test_bytes_that_are_no_bundle_are_refused(data):
    with suppress(Malformed, FormatTooNew):
        assert Bundle.from_bytes(data).to_bytes() == data


def entry(role, generation, key=bytes(32)):
    return bytes((role,)) + generation.to_bytes(4, "little") + key


@pytest.mark.parametrize(
    "entries",
    [
        [entry(5, 0)],
        [entry(1, 1)],
        [entry(3, 0)],
        [entry(1, 0), entry(1, 0)],
        [entry(3, 2), entry(3, 1)],
        [entry(2, 0), entry(1, 0)],
        [b"rest"],
    ],
)
def test_unknown_doubled_or_disordered_keys_are_malformed(entries):
    with pytest.raises(Malformed):
        Bundle.from_bytes(b"\x01" + b"".join(entries))
    with pytest.raises(Malformed):
        Bundle.from_bytes(b"")
    with pytest.raises(FormatTooNew):
        Bundle.from_bytes(b"\x02" + entry(1, 0))


def test_a_new_bundle_has_four_different_keys_of_the_first_generation():
    assert len({BUNDLE.id, BUNDLE.name, BUNDLE.data[1], BUNDLE.meta[1]}) == 4
    assert BUNDLE.generation == 1


def test_a_new_generation_keeps_the_old_keys_and_the_ids():
    renewed = BUNDLE.next_generation(lambda size: b"n" * size)
    assert (renewed.id, renewed.name, renewed.generation) == (BUNDLE.id, BUNDLE.name, 2)
    assert renewed.data == {**BUNDLE.data, 2: b"n" * 32}
    assert BUNDLE.generation == 1


def test_a_lesser_right_is_a_bundle_with_fewer_keys():
    maintainer = replace(BUNDLE, data={})
    assert Bundle.from_bytes(maintainer.to_bytes()) == maintainer
    assert maintainer.generation == 1


def test_a_bundle_shows_no_key():
    for shown in (repr(BUNDLE), str(BUNDLE), f"{[BUNDLE]}"):
        assert shown.strip("[]") == "Bundle(id, name, data 1, meta 1)".replace(" 1", " [1]")
    with pytest.raises(InvalidInput) as caught:
        Bundle(b"s3cret", None)
    assert "s3cret" not in repr(caught.value)


def test_a_bundle_does_not_change_with_the_mapping_it_was_made_of():
    data = {1: bytes(32)}
    bundle = Bundle(None, None, data, {})
    data[2] = bytes(32)
    assert bundle.data == {1: bytes(32)}
    with pytest.raises(InvalidInput):
        Bundle(None, None, {0: bytes(32)}, {})


# --- opening


@pytest.mark.parametrize(
    ("key", "wrapped"),
    [
        (
            "c37b7e6492584340bed12207808941155068f738",
            "138bdeaa9b8fa7fc61f97742e72248ee5ae6ae5360d1ae6a5f54f373fa543b6a",
        ),
        ("466f7250617369", "afbeb0f07dfbf5419200f2ccb50bb24f"),
    ],
)
def test_the_wrapping_gives_the_answer_of_rfc_5649(key, wrapped):
    """Section 6."""
    wrapping = bytes.fromhex("5840df6e29b02af1ab493b705bf16ea1ae8338f4dcc176a8")
    assert aes_key_wrap_with_padding(wrapping, bytes.fromhex(key)).hex() == wrapped


def test_a_slot_is_made_as_the_format_says(key_file):
    provider = key_file("a")
    (slot,) = Keyring(0, REPO).with_slot(provider, BUNDLE, random=counted()).slots
    info = b"chainstore/v1/slot" + REPO + bytes.fromhex(slot.id)
    both = HKDF(SHA256(), 64, None, info).derive(provider.path.read_bytes())
    assert slot.commitment == both[32:]
    assert aes_key_unwrap_with_padding(both[:32], slot.wrapped) == BUNDLE.to_bytes()


def test_every_slot_opens_with_its_own_key_and_no_other(key_file):
    ring = ring_of("one", "two")
    ring = ring.with_slot(key_file("a"), replace(BUNDLE, data={}), random=os.urandom)
    ring = Keyring.from_bytes(ring.to_bytes())
    assert ring.number == 3
    assert ring.open(passphrase("one")) == ring.open(passphrase("two")) == BUNDLE
    assert ring.open(key_file("a")) == replace(BUNDLE, data={})
    assert ring.unlock(passphrase("two"))[0] == ring.slots[1]
    for wrong in (passphrase("three"), key_file("b")):
        with pytest.raises(WrongKey):
            ring.open(wrong)


def test_a_wrong_key_says_what_was_tried_and_what_would_open(key_file):
    ring = ring_of("one")
    ring = ring.with_slot(key_file("a"), BUNDLE, label="laptop", random=os.urandom)
    with pytest.raises(WrongKey) as caught:
        ring.open(passphrase("hunter2"))
    text = str(caught.value)
    assert f"tried {ring.slots[0].id}" in text
    assert f"passphrase {ring.slots[0].id} (one's), key file {ring.slots[1].id} (laptop)" in text
    assert "hunter2" not in repr(caught.value) + caught.value.hint


def test_the_same_keys_open_nothing_under_another_repository_or_slot_id(key_file):
    ring = Keyring(0, REPO).with_slot(key_file("a"), BUNDLE, random=counted())
    with pytest.raises(WrongKey):
        replace(ring, repo_id=bytes(16)).open(key_file("a"))
    with pytest.raises(WrongKey):
        replace(ring, slots=(replace(ring.slots[0], id="00" * 8),)).open(key_file("a"))


def test_a_key_that_fits_a_broken_slot_finds_damage(key_file):
    ring = Keyring(0, REPO).with_slot(key_file("a"), BUNDLE, random=counted())
    for wrapped in (bytes(len(ring.slots[0].wrapped)), b"", b"odd", ring.slots[0].wrapped[:-8]):
        with pytest.raises(Malformed):
            replace(ring, slots=(replace(ring.slots[0], wrapped=wrapped),)).open(key_file("a"))


@dataclass
class Kms:
    """A key service as others might write it: what it stores is a ticket, and only it knows the key."""

    id: str = "kms"
    kind: str = "kms"
    known: dict = field(default_factory=dict)
    asked: int = 0

    def wrap(self, repo_id, random):
        ticket = random(8)
        self.known[ticket] = random(32)
        return self.known[ticket], ticket

    def unwrap(self, repo_id, stored):
        self.asked += 1
        if stored not in self.known:
            raise KeyRequired("kms knows no such ticket")
        return self.known[stored]


def test_a_provider_of_another_kind_fits_the_seam():
    kms = Kms()
    ring = Keyring.from_bytes(Keyring(0, REPO).with_slot(kms, BUNDLE, random=counted()).to_bytes())
    assert ring.open(kms) == BUNDLE
    assert ring.describe() == f"kms {ring.slots[0].id}"


def test_a_service_that_refuses_anothers_slot_is_asked_for_the_next():
    theirs, ours = Kms(), Kms()
    ring = Keyring(0, REPO).with_slot(theirs, BUNDLE, random=os.urandom).with_slot(ours, BUNDLE, random=os.urandom)
    assert ring.unlock(ours)[0] == ring.slots[1]
    with pytest.raises(KeyRequired, match="no such ticket"):
        ring.open(Kms())


def test_only_slots_of_the_providers_kind_are_tried_and_each_question_is_asked_once():
    kms = Kms()
    with pytest.raises(WrongKey, match="none is of its kind"):
        ring_of("one").open(kms)
    assert kms.asked == 0
    kms.wrap = lambda repo_id, random: (random(32), b"")  # three slots, made with three keys that are gone
    ring = Keyring(0, REPO)
    for _ in range(3):
        ring = ring.with_slot(kms, BUNDLE, random=os.urandom)
    kms.known[b""] = bytes(32)
    with pytest.raises(WrongKey):
        ring.open(kms)
    assert kms.asked == 1


# --- changing


def test_removing_a_slot_ends_its_right_and_counts_on():
    ring = ring_of("one", "two")
    left = ring.without_slot(ring.slots[0].id)
    assert (left.number, left.slots) == (3, ring.slots[1:])
    with pytest.raises(WrongKey):
        left.open(passphrase("one"))


def test_the_last_slot_stays():
    ring = ring_of("one")
    with pytest.raises(InvalidInput, match="last key slot"):
        ring.without_slot(ring.slots[0].id)
    with pytest.raises(NotFound):
        ring.without_slot("00" * 8)
    with pytest.raises(InvalidInput):
        Keyring(0, REPO).to_bytes()


def test_labels_are_printable_and_short():
    for label in ("two\nlines", "\x1b[31mred", "\u202egnidaelsim", "\u00e9" * 101, "\ud800"):
        with pytest.raises(InvalidInput):
            Keyring(0, REPO).with_slot(passphrase("one"), BUNDLE, label=label, random=os.urandom)
    ring = Keyring(0, REPO).with_slot(passphrase("one"), BUNDLE, label="\u00e9" * 100, random=os.urandom)
    assert Keyring.from_bytes(ring.to_bytes()) == ring


def test_a_random_source_that_repeats_itself_is_noticed():
    with pytest.raises(InvalidInput, match="repeats"):
        ring_of("one").with_slot(passphrase("two"), BUNDLE, random=counted())


def test_a_keyring_has_bounds():
    full = replace(ring_of("one"), slots=ring_of("one").slots * MAX_SLOTS)
    with pytest.raises(InvalidInput):
        full.with_slot(passphrase("two"), BUNDLE, random=os.urandom)
    with pytest.raises(InvalidInput):
        many = replace(BUNDLE, meta={g: bytes(32) for g in range(1, 500)})
        Keyring(0, REPO).with_slot(passphrase("two"), many, random=os.urandom)
    with pytest.raises(InvalidInput):
        Keyring(0, b"short")


# --- bytes


def test_any_flipped_bit_of_a_keyring_is_noticed():
    stored = ring_of("one", "two").to_bytes()
    for bit in range(8 * len(stored)):
        changed = bytearray(stored)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Malformed):
            Keyring.from_bytes(bytes(changed))


def test_any_other_length_is_noticed():
    stored = ring_of("one").to_bytes()
    for changed in (*(stored[:n] for n in range(len(stored))), stored + b"\0", stored + bytes(MAX_KEYRING_BYTES)):
        with pytest.raises(Malformed):
            Keyring.from_bytes(changed)


def resealed(body):
    return bytes(body) + fingerprint("keyring", bytes(body))


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4), st.integers(0, 6))
def test_a_forged_keyring_with_a_right_fingerprint_is_refused_or_just_another_keyring(place, patch, cut):
    body = bytearray(ring_of("one").to_bytes()[:-32])
    place %= len(body)
    body[place : place + len(patch)] = patch
    data = resealed(body[: len(body) - cut])
    try:
        ring = Keyring.from_bytes(data)
    except (Malformed, FormatTooNew):
        return
    assert ring.to_bytes() == data
    with suppress(Denied, Malformed):
        assert ring.open(passphrase("one")) == BUNDLE


def test_a_later_version_says_so():
    body = bytearray(ring_of("one").to_bytes()[:-32])
    body[8] = 2
    with pytest.raises(FormatTooNew):
        Keyring.from_bytes(resealed(body))


def test_two_slots_of_one_id_and_slots_that_are_not_there_are_malformed():
    ring = ring_of("one")
    with pytest.raises(Malformed, match="one id"):
        Keyring.from_bytes(replace(ring, slots=ring.slots * 2).to_bytes())
    body = bytearray(ring.to_bytes()[:-32])
    for count in (0, 2, MAX_SLOTS + 1, 65535):
        body[33:35] = count.to_bytes(2, "little")
        with pytest.raises(Malformed):
            Keyring.from_bytes(resealed(body))


def test_no_secret_lies_in_a_keyring_or_its_repr(key_file):
    ring = ring_of("hunter2").with_slot(key_file("a"), BUNDLE, random=os.urandom)
    secrets = [BUNDLE.id, BUNDLE.name, *BUNDLE.data.values(), *BUNDLE.meta.values(), key_file("a").path.read_bytes()]
    for secret in secrets:
        assert secret not in ring.to_bytes()
        assert secret.hex() not in repr(ring)
    assert b"hunter2" not in ring.to_bytes().replace(b"hunter2's", b"")
    assert repr(ring.slots[1]) == f"Slot(id={ring.slots[1].id!r}, kind='file', label='')"


def test_the_bytes_of_a_keyring_are_fixed():
    slot = Slot("0102030405060708", "file", "lap", b"", b"c" * 32, b"w" * 8)
    stored = Keyring(5, REPO, (slot,)).to_bytes()
    body = b"CSKEYS\r\n" + b"\x01" + (5).to_bytes(8, "little") + REPO + b"\x01\x00"
    body += bytes(range(1, 9)) + b"\x04file" + b"\x03\x00lap" + b"\x00\x00" + b"c" * 32 + b"\x08\x00" + b"w" * 8
    assert stored == body + fingerprint("keyring", body)
