"""Files of `torch.save`: read without running anything in them, written so that `torch.load` reads them."""

import re
import zipfile
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
import torch.serialization

from chainstore.errors import InvalidInput

# what the restricted unpickler of torch refuses with; reached through torch, because we never unpickle ourselves
_Refused = cast(type[Exception], vars(torch.serialization)["pickle"].UnpicklingError)
_CULPRIT = re.compile(r"GLOBAL (\S+)")


def read_torch(path: Path) -> object:
    """Return what a file of `torch.save` holds, on the host; no code in it is run (`weights_only=True`).

    Args:
        path: a file, mapped into memory where its format allows, so that tensors are read as they are used.

    Raises:
        InvalidInput: it is no such file, or holds objects that only unpickling could make.
    """
    return _load(path, str(path), mmap=zipfile.is_zipfile(path))


def read_stream(stream: IO[bytes], what: str) -> object:
    """Return what a stream of torch.save holds, as `read_torch`; `what` names it in errors."""
    return _load(stream, what, mmap=False)


def _load(source: Path | IO[bytes], what: str, *, mmap: bool) -> object:
    try:
        with torch.serialization.safe_globals(_numpy_parts()):
            return torch.load(source, map_location="cpu", weights_only=True, mmap=mmap)
    except _Refused as error:
        found = _CULPRIT.search(str(error))
        raise InvalidInput(
            f"{what} holds {found[1] if found else 'objects'}, which only unpickling could make, and that could run "
            "anything",
            hint="commit it as it is with --as-file, or save its state_dict() with torch.save",
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
        why = (str(error) or type(error).__name__).strip().partition("\n")[0]
        raise InvalidInput(
            f"{what} is not a whole file of torch.save: {why}", hint="commit it as it is with --as-file"
        ) from error


def _numpy_parts() -> list[Any]:
    """Return what arrays of NumPy consist of in a file of torch.save; making them runs nothing.

    Source: `safe_globals` in transformers/trainer_utils.py, for the random states that its Trainer saves.
    """
    rebuild = np.zeros(0).__reduce__()[0]
    kinds = [type(np.dtype(code)) for code in "?bhilqBHILQefdFD"]
    return [rebuild, np.ndarray, np.dtype, *kinds, (rebuild, "numpy.core.multiarray._reconstruct")]


def write_torch(state: object, stream: IO[bytes]) -> None:
    """Write a state as `torch.save` does."""
    guarded = _Guarded(stream)
    try:
        torch.save(state, cast(IO[bytes], guarded))
    except RuntimeError:
        if guarded.error is not None:
            raise guarded.error from None  # torch turns what a stream raises into an error of its own
        raise


class _Guarded:
    """A stream that remembers why writing to it failed."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._stream.write(data)
        except BaseException as error:
            self.error = error
            raise

    def flush(self) -> None:
        self._stream.flush()
