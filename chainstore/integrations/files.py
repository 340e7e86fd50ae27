"""Files of `torch.save`: read without running anything in them, written so that `torch.load` reads them."""

import re
import zipfile
from pathlib import Path
from typing import IO, cast

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
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except _Refused as error:
        found = _CULPRIT.search(str(error))
        raise InvalidInput(
            f"{path} holds {found[1] if found else 'objects'}, which only unpickling could make, and that could run "
            "anything",
            hint="commit it as it is with --as-file, or save its state_dict() with torch.save",
        ) from error
    except (RuntimeError, EOFError, KeyError, ValueError, IndexError, zipfile.BadZipFile) as error:
        why = (str(error) or type(error).__name__).strip().partition("\n")[0]
        raise InvalidInput(
            f"{path} is not a whole file of torch.save: {why}", hint="commit it as it is with --as-file"
        ) from error


def write_torch(state: object, stream: IO[bytes]) -> None:
    """Write a state as `torch.save` does."""
    torch.save(state, stream)
