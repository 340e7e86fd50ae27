"""No test leaves a manager open: its signal handlers would be there for the next one."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def handlers_are_put_back() -> Iterator[None]:
    """Fail a test after which signals go elsewhere than before it."""
    watched = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in watched]
    yield
    after = [signal.getsignal(number) for number in watched]
    for number, handler in zip(watched, before, strict=True):
        signal.signal(number, handler)
    assert after == before, "a manager was not closed"
