"""The gate in front of a memory map."""

import threading
import time

import pytest

from chainstore.errors import StorageError
from chainstore.storage import gate as module
from chainstore.storage.gate import Gate, is_in

SOON = 5.0  # seconds that a thread may take to get somewhere on a busy machine


def run(target) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_many_threads_are_inside_at_once():
    gate, together = Gate(), threading.Barrier(4, timeout=SOON)

    def visit():
        thread = gate.enter()
        together.wait()
        gate.leave(thread)

    threads = [run(visit) for _ in range(4)]
    for thread in threads:
        thread.join(SOON)
        assert not thread.is_alive()
    assert not together.broken


def test_who_wants_to_be_alone_waits_for_those_inside():
    gate, alone = Gate(), threading.Event()
    token = gate.enter()

    def want():
        with gate.alone():
            alone.set()

    thread = run(want)
    assert not alone.wait(0.1)
    gate.leave(token)
    assert alone.wait(SOON)
    thread.join(SOON)


def test_nobody_comes_in_while_one_is_alone():
    gate, inside = Gate(), threading.Event()

    def visit():
        thread = gate.enter()
        inside.set()
        gate.leave(thread)

    with gate.alone():
        run(visit)
        assert not inside.wait(0.1)
    assert inside.wait(SOON)


def test_who_is_inside_enters_again_while_another_waits_to_be_alone():
    gate, alone = Gate(), threading.Event()
    outer = gate.enter()

    def want():
        with gate.alone():
            alone.set()

    run(want)
    time.sleep(0.05)
    inner = gate.enter()  # would wait for ever for somebody who waits for us
    gate.leave(inner)
    assert not alone.is_set()
    gate.leave(outer)
    assert alone.wait(SOON)


def test_who_is_inside_cannot_be_alone():
    gate = Gate()
    token = gate.enter()
    with pytest.raises(StorageError, match="this thread has a transaction open"), gate.alone():
        pass
    gate.leave(token)
    with gate.alone():
        pass


def test_patience_ends_with_an_error_and_the_gate_still_works(monkeypatch):
    monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    gate, done = Gate(), threading.Event()
    thread = gate.enter()
    errors = []

    def want():
        try:
            with gate.alone():
                pass
        except StorageError as error:
            errors.append(error)
        done.set()

    run(want)
    assert done.wait(SOON)
    assert len(errors) == 1
    gate.leave(thread)
    with gate.alone():
        pass


def test_another_thread_may_leave_for_the_one_that_entered():
    gate = Gate()
    tokens = []
    run(lambda: tokens.append(gate.enter())).join(SOON)
    gate.leave(tokens[0])
    with gate.alone():
        pass


def test_holding_waits_for_the_busy_and_keeps_newcomers_out():
    gate, busy, here, inside = Gate(), threading.Event(), threading.Event(), threading.Event()
    busy.set()

    def visit():
        gate.enter()
        here.set()
        inside.wait(SOON)  # a thread that ends gives its number to the next one

    visitor = run(visit)
    here.wait(SOON)
    threading.Timer(0.1, busy.clear).start()
    gate.hold(lambda thread: busy.is_set(), SOON)
    assert not busy.is_set()
    run(lambda: (gate.enter(), inside.set()))
    assert not inside.wait(0.1)
    gate.release()
    assert inside.wait(SOON)
    visitor.join(SOON)


def test_holding_gives_up():
    gate = Gate()
    run(gate.enter).join(SOON)
    started = time.monotonic()
    gate.hold(lambda thread: True, patience_seconds=0.05)
    assert time.monotonic() - started < SOON
    gate.release()


def test_who_holds_may_be_inside_itself():
    gate = Gate()
    token = gate.enter()
    gate.hold(lambda thread: True, patience_seconds=SOON)
    gate.leave(gate.enter())
    gate.release()
    gate.leave(token)
    with gate.alone():
        pass


def test_a_thread_in_a_call_is_told_from_one_elsewhere():
    leave, inside = threading.Event(), threading.Event()

    def call():
        inside.set()
        leave.wait(SOON)

    thread = run(call)
    inside.wait(SOON)
    assert is_in(thread.ident, __file__)
    assert not is_in(thread.ident, module.__file__)
    leave.set()
    thread.join(SOON)
    assert not is_in(thread.ident, __file__)
