"""Our own implementations, by the suites that others can use; and that the suites tell what is wrong."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chainstore.codecs import plane_codec, residuals, zstd
from chainstore.codecs.base import EFFORTS
from chainstore.crypto.keys import Argon2Cost, KeyCommand, KeyFile, Passphrase
from chainstore.errors import Malformed
from chainstore.observe import silent
from chainstore.policies.interval import Interval
from chainstore.policies.progress import Moment, Progress
from chainstore.policies.retention import Best, Retention
from chainstore.policies.triggers import (
    Adaptive,
    AnyOf,
    EveryBatches,
    EveryEpoch,
    EverySeconds,
    EverySteps,
    OnBest,
    Signal,
    WhenDurable,
)
from chainstore.state import numpy_adapter
from chainstore.testing.conformance import (
    AdapterConformance,
    CodecConformance,
    DatabaseConformance,
    KeyProviderConformance,
    ObserverConformance,
    RetentionConformance,
    TriggerConformance,
)
from tests.odb.stores import Store

CHEAP = Argon2Cost(memory_kib=32, passes=1, lanes=4)


class TestPlanes(CodecConformance):
    def make(self):
        return plane_codec.make(EFFORTS["auto"])


class TestThoroughPlanes(CodecConformance):
    def make(self):
        return plane_codec.make(EFFORTS["small"])


class TestZstd(CodecConformance):
    def make(self):
        return zstd.make(EFFORTS["auto"])


class TestXorInPlanes(CodecConformance):
    def make(self):
        return residuals.make_xor(EFFORTS["auto"])


class TestDifference(CodecConformance):
    def make(self):
        return residuals.make_difference(EFFORTS["small"])


class Xor:
    """The difference to one base: what a codec with bases looks like."""

    tag, bases = 200, 1

    def encode(self, data, spec, bases, hint, out):
        out[: len(data)] = bytes(a ^ b for a, b in zip(data, bases[0], strict=True))
        return len(data)

    def decode(self, payload, spec, bases, out):
        if len(bases) != 1 or not len(bases[0]) == len(payload) == len(out):
            raise Malformed("xor", "one base of the same length is needed")
        out[:] = bytes(a ^ b for a, b in zip(payload, bases[0], strict=True))


class TestXor(CodecConformance):
    def make(self):
        return Xor()


class TestPassphrase(KeyProviderConformance):
    def make(self):
        return Passphrase("correct horse", CHEAP)

    def make_other(self):
        return Passphrase("wrong horse", CHEAP)


class TestKeyFile(KeyProviderConformance):
    @pytest.fixture(autouse=True)
    def files(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        for name, byte in (("one", b"\xf1"), ("other", b"\xf2")):
            (tmp_path / name).write_bytes(byte * 32)
            (tmp_path / name).chmod(0o600)

    def make(self):
        return KeyFile(self.folder / "one")

    def make_other(self):
        return KeyFile(self.folder / "other")


class TestKeyCommand(KeyProviderConformance):
    def make(self):
        return KeyCommand("echo " + "11" * 32)

    def make_other(self):
        return KeyCommand("echo " + "22" * 32)


@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "plain"])
class TestLocalDatabase(DatabaseConformance):
    @pytest.fixture(autouse=True)
    def kind(self, encrypted: bool) -> None:
        self.encrypted = encrypted

    def make(self, path):
        store = Store(path, self.encrypted)
        return store.open() if path.exists() else store.create()


class TestSilence(ObserverConformance):
    def make(self):
        return silent


class TestList(ObserverConformance):
    def make(self):
        return [].append


class TestLast(RetentionConformance):
    def make(self):
        return Retention(last=5)


class TestEverything(RetentionConformance):
    def make(self):
        calendar = Retention(hourly=2, daily=7, weekly=2)
        return replace(calendar, last=3, every_steps=500, within=timedelta(days=2), best=Best("loss", 2))


LAST = Moment(step=1000, time=5000.0, batch=10, epoch=2)
LATER = Progress(2000, 9000.0, 10, 3, {"loss": 0.5}, LAST, signalled="SIGUSR1", best={"loss:min": 0.6})
TRIGGERS = [
    EverySteps(100),
    EveryBatches(10),
    EverySeconds(60),
    EveryEpoch(),
    OnBest("loss"),
    OnBest("loss", min_delta=0.01, patience=10),
    WhenDurable(),
    Signal(),
    Adaptive(),
    Adaptive(Interval(devices=8).snapshotted(0.4, 20.0, ran_s=60)),
    AnyOf((EverySteps(100), EverySeconds(60), OnBest("loss"), Signal())),
]


@pytest.mark.parametrize("trigger", TRIGGERS, ids=lambda trigger: type(trigger).__name__)
class TestTriggers(TriggerConformance):
    @pytest.fixture(autouse=True)
    def kind(self, trigger: Any) -> None:
        self.trigger = trigger

    def make(self):
        return replace(self.trigger)

    def due(self):
        return LATER


class TestNumpy(AdapterConformance):
    def make(self):
        return numpy_adapter.ADAPTER

    def values(self):
        frozen = np.arange(5)
        frozen.flags.writeable = False
        fields = np.array([(1, 2.5)], dtype=[("a", "i4"), ("b", "f8")])
        plain = [np.zeros((3, 0)), np.array(7.5), np.arange(12.0).reshape(3, 4), np.arange(12).reshape(3, 4).T]
        return [*plain, np.arange(10, dtype=">u2"), np.array([True, False]), np.array(["ab", "c"]), frozen, fields]

    def same(self, a, b):
        alike = (a.dtype, a.shape, a.flags.writeable) == (b.dtype, b.shape, b.flags.writeable)
        return alike and a.tobytes() == b.tobytes()

    def changed(self, value):
        other = value.copy(order="K")
        if other.size:
            other.flat[0] = np.zeros((), other.dtype) if value.flat[0] else np.ones((), other.dtype)
        return other


# -- the suites tell what is wrong


class _Lossy:
    """A codec that forgets the last byte, and believes whatever it is given."""

    tag, bases = 200, 0

    def encode(self, data: Any, spec: Any, bases: Any, hint: Any, out: Any) -> int:
        n = max(0, len(data) - 1)
        out[:n] = data[:n]
        return n

    def decode(self, payload: Any, spec: Any, bases: Any, out: Any) -> None:
        out[: len(payload)] = payload


class _Careless:
    """A key that is the same for everybody, and shown."""

    id, kind = "careless", "careless"

    def wrap(self, repo_id: Any, random: Any) -> Any:
        return b"k" * 32, b""

    def unwrap(self, repo_id: Any, stored: Any) -> Any:
        return b"k" * 32

    def __repr__(self) -> str:
        return "kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk"


class _Forgetful(Retention):
    """Keeps what it does not know."""

    def reasons(self, commits: Any, now: Any, **more: Any) -> Any:
        return {commit.id: () for commit in commits}


class _Stubborn:
    """Due once and never again, and does not say why."""

    def __init__(self) -> None:
        self.asked = False

    def due(self, progress: Any) -> Any:
        self.asked, before = True, self.asked
        return None if before else ""


def _tell(suite: object) -> list[str]:
    """Return the tests of a suite that fail; those that need a fixture or Hypothesis are left out."""
    failed = []
    for name in dir(suite):
        method = getattr(suite, name)
        if name.startswith("test_") and method.__code__.co_argcount == 1:
            try:
                method()
            except (Exception, pytest.fail.Exception):
                failed.append(name)
    return failed


def test_a_codec_that_loses_a_byte_is_told():
    class Suite(CodecConformance):
        def make(self) -> Any:
            return _Lossy()

    assert "test_what_it_encodes_comes_back" in _tell(Suite())
    assert "test_another_instance_decodes_without_the_spec" in _tell(Suite())
    assert _tell(TestZstd()) == []


def test_a_key_that_shows_its_secret_is_told():
    class Suite(KeyProviderConformance):
        def make(self) -> Any:
            return _Careless()

        make_other = make

    assert _tell(Suite()) == [
        "test_it_opens_the_slot_that_was_made_with_it_and_no_other_does",
        "test_it_shows_no_secret",
    ]


def test_a_policy_that_says_no_reason_is_told():
    class Suite(RetentionConformance):
        def make(self) -> Any:
            return _Forgetful(last=1)

    assert _tell(Suite()) == ["test_it_says_why_for_what_it_keeps_and_names_nothing_else"]


def test_a_trigger_that_remembers_and_says_no_reason_is_told():
    class Suite(TriggerConformance):
        def make(self) -> Any:
            return _Stubborn()

        def due(self) -> Any:
            return LATER

    assert _tell(Suite()) == [
        "test_it_is_due_with_a_reason_when_it_should_be",
        "test_it_is_not_due_when_it_should_not_be",
        "test_it_keeps_nothing",
        "test_it_says_a_reason_or_none_whatever_it_sees",
    ]


def test_the_suites_of_what_needs_no_numpy_load_without_it():
    program = "import chainstore.testing.conformance, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
