import os
import pickle
import stat
import sys
import textwrap
import threading
import time

import pytest
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id
from hypothesis import given
from hypothesis import strategies as st

from chainstore.crypto.keyfile import parse_key
from chainstore.crypto.keys import Argon2Cost, KeyCommand, KeyFile, Passphrase, generate_key_file
from chainstore.errors import AlreadyExists, InvalidInput, KeyRequired, Malformed, StorageError, WrongKey

REPO = bytes(16)
KEY = bytes(range(100, 132))
CHEAP = Argon2Cost(memory_kib=32, passes=1, lanes=4)
SECRET = "correct horse battery staple"


# --- passphrase


def test_the_stretching_gives_the_answer_of_rfc_9106():
    """Section 5.3."""
    stretch = Argon2id(
        salt=b"\x02" * 16, length=32, iterations=3, lanes=4, memory_cost=32, secret=b"\x03" * 8, ad=b"\x04" * 12
    )
    answer = "0d640df58d78766c08c037a34a8b53c9d01ef0452d75b65eb52520e96b01e659"
    assert stretch.derive(b"\x01" * 32).hex() == answer


def test_a_passphrase_is_argon2id_of_its_text_with_what_the_slot_stores():
    key, stored = Passphrase("password", Argon2Cost(256, 2, 1)).wrap(REPO, lambda n: b"somesalt" * (n // 8))
    assert stored == (256).to_bytes(4, "little") + b"\x02\x01" + b"somesalt" * 2
    same = Argon2id(salt=b"somesalt" * 2, length=32, iterations=2, lanes=1, memory_cost=256).derive(b"password")
    assert key == same
    assert Passphrase("password").unwrap(REPO, stored) == key  # the slot's cost counts, not the default


@given(st.text(min_size=1, max_size=20))
def test_every_text_is_a_passphrase(text):
    key, stored = Passphrase(text, CHEAP).wrap(REPO, os.urandom)
    assert Passphrase(text).unwrap(REPO, stored) == key
    assert Passphrase(text + "x").unwrap(REPO, stored) != key


def test_composed_and_decomposed_letters_are_one_passphrase():
    key, stored = Passphrase("caf\u00e9", CHEAP).wrap(REPO, os.urandom)
    assert Passphrase("cafe\u0301").unwrap(REPO, stored) == key


def test_a_passphrase_that_is_not_utf_8_in_the_environment_still_works():
    key, stored = Passphrase(os.fsdecode(b"caf\xe9"), CHEAP).wrap(REPO, os.urandom)
    assert Passphrase(os.fsdecode(b"caf\xe9")).unwrap(REPO, stored) == key


def test_an_empty_passphrase_is_refused():
    with pytest.raises(InvalidInput):
        Passphrase("")


@pytest.mark.parametrize(
    "cost", [(1 << 20 | 1, 3, 4), (64, 11, 4), (64, 0, 4), (31, 3, 4), (1 << 20, 3, 17), (64, 3, 0), (2**32 - 1, 1, 1)]
)
def test_a_hostile_cost_is_refused_before_any_work(cost):
    with pytest.raises(InvalidInput):
        Argon2Cost(*cost)
    stored = cost[0].to_bytes(4, "little") + bytes(cost[1:]) + bytes(16)
    with pytest.raises(Malformed):
        Passphrase(SECRET).unwrap(REPO, stored)


@given(st.binary(max_size=40).filter(lambda stored: len(stored) != 22))
def test_parameters_of_another_length_are_malformed(stored):
    with pytest.raises(Malformed):
        Passphrase(SECRET).unwrap(REPO, stored)


def test_a_passphrase_is_never_shown():
    passphrase = Passphrase(SECRET)
    for shown in (repr(passphrase), str(passphrase), f"{passphrase}", passphrase.id, repr([passphrase])):
        assert "horse" not in shown


def test_providers_travel_to_a_child_process():
    for provider in (Passphrase(SECRET), KeyFile("some/where"), KeyCommand("pass show x")):
        assert repr(pickle.loads(pickle.dumps(provider))) == repr(provider)


# --- key file


def test_a_generated_key_file_is_private_whole_and_alone(tmp_path):
    path = tmp_path / "new" / "deep" / "user.key"
    provider = generate_key_file(path)
    assert provider == KeyFile(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["user.key"]
    assert provider.wrap(REPO, os.urandom) == (path.read_bytes(), b"")
    assert len(path.read_bytes()) == 32


def test_a_key_file_is_never_replaced(tmp_path):
    path = tmp_path / "user.key"
    path.write_bytes(KEY)
    with pytest.raises(AlreadyExists):
        generate_key_file(path)
    assert path.read_bytes() == KEY
    assert os.listdir(tmp_path) == ["user.key"]


def test_a_dangling_link_is_not_followed(tmp_path):
    (tmp_path / "user.key").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AlreadyExists):
        generate_key_file(tmp_path / "user.key")
    assert os.listdir(tmp_path) == ["user.key"]


def test_of_many_that_make_the_first_key_one_wins_and_all_read_the_same(tmp_path):
    seen, start = [], threading.Barrier(8)

    def first_use():
        start.wait()
        try:
            provider = generate_key_file(tmp_path / "user.key")
        except AlreadyExists:
            provider = KeyFile(tmp_path / "user.key")
        seen.append(provider.wrap(REPO, os.urandom)[0])

    threads = [threading.Thread(target=first_use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 8
    assert len(set(seen)) == 1


def test_a_file_system_without_hard_links_gets_its_key_too(tmp_path, monkeypatch):
    def no_links(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    path = tmp_path / "user.key"
    key = generate_key_file(path).wrap(REPO, os.urandom)[0]
    with pytest.raises(AlreadyExists):
        generate_key_file(path)
    assert path.read_bytes() == key
    assert os.listdir(tmp_path) == ["user.key"]


def test_a_key_file_that_cannot_be_made_says_where(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises((StorageError, AlreadyExists), match="file"):
        generate_key_file(tmp_path / "file" / "user.key")


def test_a_new_key_never_reads_as_text(tmp_path):
    draws = iter([b"draftdrf", b"a password of thirty-one chars.\n", KEY])
    generate_key_file(tmp_path / "user.key", lambda n: next(draws))
    assert (tmp_path / "user.key").read_bytes() == KEY


@pytest.mark.parametrize("content", [KEY, KEY.hex().encode(), KEY.hex().upper().encode() + b"\r\n"])
def test_a_key_file_may_be_raw_or_hexadecimal(tmp_path, content):
    (tmp_path / "user.key").write_bytes(content)
    provider = KeyFile(tmp_path / "user.key")
    assert provider.wrap(REPO, os.urandom) == (KEY, b"")
    assert provider.unwrap(REPO, b"") == KEY


TEXTS = [b"a password of thirty-two letters", b"a password of thirty-one chars.\n", ("\u044f" * 16).encode()]
NO_KEYS = [b"", KEY[:-1], KEY + b"\n", b"g" * 64, b"\xff" * 64, KEY.hex().encode() * 2, *TEXTS]


@pytest.mark.parametrize("content", NO_KEYS)
def test_what_is_no_key_is_refused_without_showing_it(tmp_path, content):
    (tmp_path / "user.key").write_bytes(content)
    with pytest.raises(WrongKey, match=r"user\.key") as caught:
        KeyFile(tmp_path / "user.key").unwrap(REPO, b"")
    assert "password" not in str(caught.value) + caught.value.hint
    assert KEY.hex()[:20] not in str(caught.value) + caught.value.hint


@given(st.binary(max_size=80))
def test_parsing_a_key_gives_32_bytes_or_nothing(content):
    key = parse_key(content)
    assert key is None or len(key) == 32


def test_a_missing_key_file_says_which(tmp_path):
    with pytest.raises(KeyRequired, match=r"user\.key") as caught:
        KeyFile(tmp_path / "user.key").unwrap(REPO, b"")
    assert "CHAIN_KEY_FILE" in caught.value.hint
    with pytest.raises(KeyRequired):
        KeyFile(tmp_path).unwrap(REPO, b"")
    with pytest.raises(Malformed):
        KeyFile(tmp_path / "user.key").unwrap(REPO, b"something")


# --- key command


@pytest.fixture
def command(tmp_path):
    """Make a key command of a Python program's text; its only argument is a secret."""

    def make(text, timeout_seconds=20.0):
        program = tmp_path / "vault-helper"
        program.write_text(f"#!{sys.executable}\n" + textwrap.dedent(text))
        program.chmod(0o700)
        return KeyCommand(f"'{program}' --token=tok3n", timeout_seconds)

    return make


def test_a_command_that_prints_one_secret_is_enough(command):
    assert command(f"print('{KEY.hex()}')").wrap(REPO, os.urandom) == (KEY, b"")
    assert command(f"print('{KEY.hex()}')").unwrap(REPO, b"") == KEY
    assert command(f"import sys; sys.stdout.buffer.write({KEY!r})").unwrap(REPO, b"") == KEY


KMS = """
    import hashlib, json, sys
    request = json.loads(sys.stdin.readline())
    assert request["chainstore"] == 1 and request["repository"] == "00" * 16
    stored = request["stored"] if request["action"] == "unwrap" else "ab" * 2000
    print(json.dumps({"key": hashlib.sha256(stored.encode()).hexdigest(), "stored": stored}))
"""


def test_a_kms_gets_back_what_it_stored(command):
    key, stored = command(KMS).wrap(REPO, os.urandom)
    assert stored == b"\xab" * 2000
    assert command(KMS).unwrap(REPO, stored) == key


@pytest.mark.parametrize(
    "text",
    [
        "print('hunter2 s3cret')",
        "pass",
        "print('{\"key\": 7}')",
        'print(\'{"key": "s3cret"}\')',
        "print('[' * 100000)",
        'print({"key": "00" * 31})',
        f'print(\'{{"key": "{KEY.hex()}", "stored": "\' + \'00\' * 4097 + \'"}}\')',
        f'print(\'{{"key": "{KEY.hex()}", "other": 1}}\')',
        "import sys\nwhile True: sys.stdout.write('s3cret' * 10000)",
    ],
)
def test_a_command_that_prints_garbage_is_named_and_its_output_is_not(command, text):
    with pytest.raises(WrongKey, match="key command vault-helper printed no key") as caught:
        command(text).unwrap(REPO, b"")
    shown = f"{caught.value!r} {caught.value.hint} {caught.value.__cause__!r}"
    assert "s3cret" not in shown
    assert "tok3n" not in shown
    assert "64 hexadecimal digits" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (f"print('{KEY.hex()}'); raise SystemExit(3)", "exited with 3"),
        (f"import os; print('{KEY.hex()}', flush=True); os.kill(os.getpid(), 9)", "killed by signal 9"),
    ],
)
def test_a_command_that_fails_is_named_whatever_it_printed(command, text, how):
    with pytest.raises(KeyRequired, match=f"key command vault-helper .*{how}") as caught:
        command(text).unwrap(REPO, b"")
    assert KEY.hex() not in f"{caught.value!r} {caught.value.hint}"
    assert "tok3n" not in f"{caught.value!r} {caught.value.hint}"


@pytest.mark.parametrize(
    "text",
    [
        "import time; time.sleep(60)",
        f"import os, time; print('{KEY.hex()}', flush=True); os.close(1); time.sleep(60)",
        "import subprocess; subprocess.Popen(['sleep', '20'], stdin=subprocess.DEVNULL)",  # keeps stdout open
    ],
)
def test_a_command_that_hangs_is_given_up(command, text):
    began = time.perf_counter()
    with pytest.raises(KeyRequired, match=r"vault-helper gave no answer within 0\.5 s"):
        command(text, 0.5).unwrap(REPO, b"")
    assert time.perf_counter() - began < 5


def test_a_command_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(KeyRequired, match="key command no-such-program could not be started"):
        KeyCommand(f"{tmp_path}/no-such-program --token=tok3n").unwrap(REPO, b"")


def test_no_shell_reads_the_command(tmp_path):
    with pytest.raises(KeyRequired):
        KeyCommand(f"touch-nothing; touch {tmp_path}/made").unwrap(REPO, b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("text", ["", "  ", "'' x", "pass 'tok3n"])
def test_a_command_that_is_none_is_refused(text):
    with pytest.raises(InvalidInput) as caught:
        KeyCommand(text)
    assert "tok3n" not in repr(caught.value)


def test_a_commands_arguments_are_never_shown():
    provider = KeyCommand("/usr/bin/vault --token=tok3n")
    for shown in (repr(provider), str(provider), provider.id):
        assert "tok3n" not in shown
        assert "vault" in shown
