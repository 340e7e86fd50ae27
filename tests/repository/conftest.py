"""What the tests of the face share: small states, and children that are processes of their own."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

Array = np.ndarray
Child = Callable[..., "subprocess.CompletedProcess[str]"]

PRELUDE = """
import os, sys, signal, time
from pathlib import Path
import numpy as np
import chainstore as cs
from chainstore import errors
root = Path(sys.argv[1])
"""


def noise(seed: int, nbytes: int) -> Array:
    """Return bytes that nothing compresses, the same ones for the same seed."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


def script(code: str) -> str:
    return PRELUDE + textwrap.dedent(code)


@pytest.fixture
def child(tmp_path: Path) -> Child:
    """Give a function that runs Python code in a process of its own, `root` being the repository's path.

    A child that does not end by itself, or by sys.exit(), fails the test with what it wrote to stderr.
    """

    def run(
        code: str,
        root: Path,
        *arguments: str,
        wrap: tuple[str, ...] = (),
        ok: bool = True,
        env: dict[str, str] | None = None,
    ) -> "subprocess.CompletedProcess[str]":
        command = [*wrap, sys.executable, "-c", script(code), str(root), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})})
        assert not ok or done.returncode == 0, done.stderr
        return done

    return run
