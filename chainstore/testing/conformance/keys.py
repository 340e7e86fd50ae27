"""What every key provider must do; see `crypto.provider.KeyProvider`."""

from random import Random

import pytest

from chainstore.crypto.bundle import new_bundle
from chainstore.crypto.keyring import Keyring
from chainstore.crypto.provider import MAX_KIND_BYTES, MAX_STORED_BYTES, KeyProvider
from chainstore.errors import KeyRequired, Malformed, WrongKey

_REPO, _OTHER_REPO = b"R" * 16, b"S" * 16


class KeyProviderConformance:
    """Tests of one kind of key."""

    def make(self) -> KeyProvider:
        """Return a provider; each call returns one with the same secret."""
        raise NotImplementedError

    def make_other(self) -> KeyProvider:
        """Return a provider of the same kind with another secret."""
        raise NotImplementedError

    def test_its_names_fit_into_a_slot_and_into_a_sentence(self) -> None:
        provider = self.make()
        assert provider.kind.isascii() and provider.kind.isprintable() and 1 <= len(provider.kind) <= MAX_KIND_BYTES
        assert self.make_other().kind == provider.kind
        assert provider.id and provider.id.isprintable()

    def test_it_gives_the_key_again_for_what_it_stored(self) -> None:
        random = Random(1).randbytes
        key, stored = self.make().wrap(_REPO, random)
        assert len(key) == 32 and len(stored) <= MAX_STORED_BYTES
        assert self.make().unwrap(_REPO, stored) == key
        again, stored_again = self.make().wrap(_REPO, random)
        assert self.make().unwrap(_REPO, stored_again) == again
        assert self.make().unwrap(_REPO, stored) == key

    def test_it_opens_the_slot_that_was_made_with_it_and_no_other_does(self) -> None:
        random = Random(2).randbytes
        bundle = new_bundle(random)
        keyring = Keyring(0, _REPO).with_slot(self.make(), bundle, random=random)
        keyring = Keyring.from_bytes(keyring.to_bytes())
        assert keyring.open(self.make()) == bundle
        with pytest.raises((WrongKey, KeyRequired)):
            keyring.open(self.make_other())

    def test_two_of_a_kind_open_a_slot_each(self) -> None:
        random = Random(3).randbytes
        bundle = new_bundle(random)
        keyring = Keyring(0, _REPO).with_slot(self.make(), bundle, random=random)
        keyring = keyring.with_slot(self.make_other(), bundle, random=random)
        assert keyring.open(self.make()) == keyring.open(self.make_other()) == bundle

    def test_it_shows_no_secret(self) -> None:
        provider = self.make()
        key, _ = provider.wrap(_REPO, Random(4).randbytes)
        for text in (repr(provider), str(provider), provider.id, provider.kind):
            assert key.hex() not in text and repr(key)[2:-1] not in text

    def test_what_it_did_not_store_is_refused_or_gives_another_key(self) -> None:
        _, stored = self.make().wrap(_REPO, Random(5).randbytes)
        for nonsense in (b"", b"\0", stored + b"\0", stored[:-1], bytes(MAX_STORED_BYTES), b"\xff" * 64):
            if nonsense == stored:
                continue
            try:
                found = self.make().unwrap(_REPO, nonsense)
            except (Malformed, WrongKey, KeyRequired):
                continue
            assert len(found) == 32

    def test_another_repository_can_use_it_too(self) -> None:
        random = Random(6).randbytes
        for repo in (_REPO, _OTHER_REPO):
            key, stored = self.make().wrap(repo, random)
            assert self.make().unwrap(repo, stored) == key
