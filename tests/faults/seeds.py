"""Seeds: what was random in a test can be had again.

CHAIN_TEST_SEED=1234 pytest tests/faults -k kill
"""

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager


def base_seed() -> int:
    """Return CHAIN_TEST_SEED, or a new number."""
    named = os.environ.get("CHAIN_TEST_SEED")
    return int(named) if named else random.SystemRandom().randrange(1 << 32)


@contextmanager
def replayable(seed: int, *details: object) -> Iterator[None]:
    """Add to whatever goes wrong inside how it is run again, and with which details it happened."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"replay with CHAIN_TEST_SEED={seed}" + "".join(f"; {detail}" for detail in details))
        raise
