"""A Git-like, encrypted snapshot chain for training state.

    import chainstore as cs

    repo = cs.open("runs/gpt", create=True)
    repo.commit(cs.capture(model, optimizer), "first", step=1)       # durable when it returns
    state = repo.checkout("HEAD")                                    # bit for bit what was committed
    cs.restore(state, model, optimizer)                              # or in place: repo["HEAD"].load_into(...)

This is the front door: everything a user needs is in `__all__`, and each name is looked up on first use, so
that `import chainstore` costs milliseconds and loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chainstore import errors
    from chainstore.crypto.keys import KeyCommand, KeyFile, Passphrase
    from chainstore.errors import ChainError
    from chainstore.lazy import LoadResult, Snapshot, TensorInfo
    from chainstore.live import capture, restore
    from chainstore.manager.manager import SnapshotManager
    from chainstore.model.commit import Commit
    from chainstore.policies.retention import Best, Retention
    from chainstore.repository import (
        Diff,
        ForgetPlan,
        GcReport,
        RekeyReport,
        RepackReport,
        Repository,
        RepositoryStats,
        VerifyReport,
        init,
        open,
    )
    from chainstore.state.values import register

__version__ = "0.1.0"

__all__ = [
    "Best",
    "ChainError",
    "Commit",
    "Diff",
    "ForgetPlan",
    "GcReport",
    "KeyCommand",
    "KeyFile",
    "LoadResult",
    "Passphrase",
    "RekeyReport",
    "RepackReport",
    "Repository",
    "RepositoryStats",
    "Retention",
    "Snapshot",
    "SnapshotManager",
    "TensorInfo",
    "VerifyReport",
    "__version__",
    "capture",
    "errors",
    "init",
    "open",
    "register",
    "restore",
]

_HOMES = {
    "Best": "chainstore.policies.retention",
    "ChainError": "chainstore.errors",
    "Commit": "chainstore.model.commit",
    "Diff": "chainstore.repository",
    "ForgetPlan": "chainstore.repository",
    "GcReport": "chainstore.repository",
    "KeyCommand": "chainstore.crypto.keys",
    "KeyFile": "chainstore.crypto.keys",
    "LoadResult": "chainstore.lazy",
    "Passphrase": "chainstore.crypto.keys",
    "RekeyReport": "chainstore.repository",
    "RepackReport": "chainstore.repository",
    "Repository": "chainstore.repository",
    "RepositoryStats": "chainstore.repository",
    "Retention": "chainstore.policies.retention",
    "Snapshot": "chainstore.lazy",
    "SnapshotManager": "chainstore.manager.manager",
    "TensorInfo": "chainstore.lazy",
    "VerifyReport": "chainstore.repository",
    "capture": "chainstore.live",
    "init": "chainstore.repository",
    "open": "chainstore.repository",
    "register": "chainstore.state.values",
    "restore": "chainstore.live",
}


def _look_up(name: str) -> object:
    """Return what a public name stands for, from the module that defines it; once, then it is here."""
    if name == "errors":
        return import_module("chainstore.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'chainstore' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


if not TYPE_CHECKING:
    __getattr__ = _look_up  # type checkers would take any name for public if they saw it


def __dir__() -> list[str]:
    return sorted(__all__)
