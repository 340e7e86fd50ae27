"""Thrift: what is not worth its time on this disk is stored as it is."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import chainstore as cs
from chainstore.codecs import plane_codec
from chainstore.codecs.chain import Decoder, Encoder
from chainstore.codecs.sampling import sample_of
from chainstore.codecs.thrift import LEAST_WRITTEN, Thrift, seconds_in_line
from chainstore.model.spec import Spec

GB = 1 << 30
WEIGHTS = np.random.default_rng(1).normal(0, 0.02, 1 << 18).astype(np.float32)
SPEC = Spec("float32", WEIGHTS.shape)


def told(*, coder: float, disk: float, rest: float = 1.0) -> Thrift:
    """Return thrift that knows these speeds, in seconds for a GB."""
    thrift = Thrift()
    thrift.coded(GB, coder)
    thrift.handled(GB, rest)
    thrift.wrote(GB, disk)
    return thrift


def encoded_length(encoder: Encoder, array: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> int:
    coded = encoder.encode(memoryview(array), SPEC)
    plain = bytearray(array.nbytes)
    Decoder().decode(coded.tags, coded.payload, memoryview(plain))
    assert plain == array.tobytes()
    return len(coded.payload)


@pytest.mark.parametrize(
    ("coder", "disk", "is_coded"),
    [(2.5, 0.0, False), (2.5, 0.4, False), (2.5, 10.0, True), (0.1, 0.4, True)],
    ids=["memory", "fast disk", "slow disk", "fast coder"],
)
def test_floats_are_coded_where_that_is_worth_its_time(coder: float, disk: float, is_coded: bool) -> None:
    encoder = Encoder("auto", told(coder=coder, disk=disk))
    assert (encoded_length(encoder, WEIGHTS) < WEIGHTS.nbytes) == is_coded


@pytest.mark.parametrize("codec", ["fast", "small"])
def test_a_codec_that_was_asked_for_by_name_is_used(codec: str) -> None:
    assert encoded_length(Encoder(codec, told(coder=2.5, disk=0.0)), WEIGHTS) < WEIGHTS.nbytes


def test_what_costs_little_and_saves_much_is_coded_on_the_fastest_disk() -> None:
    encoder = Encoder("auto", told(coder=2.5, disk=0.0))
    assert encoded_length(encoder, np.zeros(1 << 18, np.float32)) < 100
    few = np.where(np.arange(1 << 18) % 1000, np.float32(0), WEIGHTS)
    assert encoded_length(encoder, few) < few.nbytes / 100


def test_until_both_speeds_are_known_everything_is_worth_it() -> None:
    thrift = Thrift()
    encoder = Encoder("auto", thrift)
    assert encoded_length(encoder, WEIGHTS) < WEIGHTS.nbytes
    thrift.wrote(LEAST_WRITTEN - 1, 0.0)
    for _ in range(8):
        assert encoded_length(encoder, WEIGHTS) < WEIGHTS.nbytes
    thrift.wrote(1, 0.0)
    assert encoded_length(encoder, WEIGHTS) == WEIGHTS.nbytes


def test_what_is_cheap_to_code_is_seen_after_any_number_of_chunks_that_are_not() -> None:
    encoder = Encoder("auto", told(coder=2.5, disk=0.0))
    for _ in range(50):
        assert encoded_length(encoder, WEIGHTS) == WEIGHTS.nbytes
        assert encoded_length(encoder, np.zeros(1 << 18, np.float32)) < 100
    for _ in range(50):
        encoded_length(encoder, WEIGHTS)
    assert encoded_length(encoder, np.full(1 << 18, np.float32(0.1))) < 100
    assert encoded_length(encoder, np.where(np.arange(1 << 18) % 2, np.float32(0), WEIGHTS)) < WEIGHTS.nbytes * 0.6


def test_few_of_the_chunks_that_are_like_refused_ones_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = Encoder("auto", told(coder=2.5, disk=0.0))
    sampled = 0

    def count(words: "np.ndarray[tuple[int], np.dtype[np.uint32]]") -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
        nonlocal sampled
        sampled += 1
        return sample_of(words)

    monkeypatch.setattr(plane_codec, "sample_of", count)
    for _ in range(60):
        encoded_length(encoder, WEIGHTS)
    assert 8 <= sampled < 20
    encoded_length(encoder, WEIGHTS[: 1 << 17])  # of another size: nothing is known of such
    assert sampled < 21


def test_now_and_then_it_is_coded_anyway_so_that_the_speed_of_the_coder_stays_known() -> None:
    encoder = Encoder("auto", told(coder=1e6, disk=0.0))
    coded = [encoded_length(encoder, WEIGHTS) < WEIGHTS.nbytes for _ in range(128)]
    assert sum(coded) == 2


def test_a_disk_that_becomes_slow_is_noticed() -> None:
    thrift = told(coder=2.5, disk=0.0)
    encoder = Encoder("auto", thrift)
    assert encoded_length(encoder, WEIGHTS) == WEIGHTS.nbytes
    thrift.wrote(GB, 20.0)
    assert encoded_length(encoder, WEIGHTS) < WEIGHTS.nbytes


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="no schedstat here")
def test_time_in_line_for_the_processor_is_told_from_time_that_passes() -> None:
    before = os.sched_getaffinity(0)
    core = {min(before)}
    rival = subprocess.Popen(
        [sys.executable, "-c", "import time\nprint(flush=True)\nend = time.time() + 60\nwhile time.time() < end: pass"],
        stdout=subprocess.PIPE,
    )
    try:
        assert rival.stdout is not None and rival.stdout.readline()
        os.sched_setaffinity(rival.pid, core)
        os.sched_setaffinity(0, core)
        waited, busy, started = seconds_in_line(), time.thread_time(), time.perf_counter()
        while time.perf_counter() - started < 0.5:
            pass
        passed = time.perf_counter() - started
        waited, busy = seconds_in_line() - waited, time.thread_time() - busy
    finally:
        os.sched_setaffinity(0, before)
        rival.kill()
        rival.communicate()
    assert waited > 0.05
    assert waited + busy == pytest.approx(passed, abs=0.1)


def test_a_repository_measures_its_disk_while_it_writes(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    written: list[tuple[int, float]] = []
    wrote = Thrift.wrote

    def note(self: Thrift, nbytes: int, seconds: float) -> None:
        written.append((nbytes, seconds))
        wrote(self, nbytes, seconds)

    monkeypatch.setattr(Thrift, "wrote", note)
    with cs.init(tmp_path / "repo", encrypt=False) as repo:
        repo.commit({"small": WEIGHTS})
        assert written == []
        large = np.random.default_rng(2).normal(0, 0.02, 8 << 20).astype(np.float32)
        repo.commit({"large": large})
        [(nbytes, seconds)] = written
        assert large.nbytes / 2 < nbytes < large.nbytes * 1.1 and seconds > 0
        assert (repo.checkout()["large"] == large).all()
