"""A Git-like, encrypted snapshot chain for training state.

    import chainstore as cs

    repo = cs.open("runs/gpt", create=True)
    repo.commit({"model": model.state_dict()}, "first", step=1)      # durable when it returns
    state = repo.checkout("HEAD")                                    # bit for bit what was committed

This is the front door: everything a user needs is in `__all__`, and each name is looked up on first use, so
that `import chainstore` costs milliseconds and loads neither torch nor numpy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chainstore import errors
    from chainstore.crypto.keys import KeyCommand, KeyFile, Passphrase
    from chainstore.errors import ChainError
    from chainstore.lazy import Snapshot
    from chainstore.model.commit import Commit
    from chainstore.repository import Repository, init, open
    from chainstore.state.values import register

__version__ = "0.1.0"

__all__ = [
    "ChainError",
    "Commit",
    "KeyCommand",
    "KeyFile",
    "Passphrase",
    "Repository",
    "Snapshot",
    "__version__",
    "errors",
    "init",
    "open",
    "register",
]

_HOMES = {
    "ChainError": "chainstore.errors",
    "Commit": "chainstore.model.commit",
    "KeyCommand": "chainstore.crypto.keys",
    "KeyFile": "chainstore.crypto.keys",
    "Passphrase": "chainstore.crypto.keys",
    "Repository": "chainstore.repository",
    "Snapshot": "chainstore.lazy",
    "init": "chainstore.repository",
    "open": "chainstore.repository",
    "register": "chainstore.state.values",
}


def __getattr__(name: str) -> object:
    """Look a public name up in the module that defines it, once."""
    if name == "errors":
        return import_module("chainstore.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'chainstore' has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
