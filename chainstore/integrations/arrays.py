"""Arrays as NumPy sees them: `.npy` and `.npz` files, and tensors on their way into them."""

import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from chainstore.errors import InvalidInput

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Shown:
    """An array as NumPy can hold it.

    Attributes:
        array: its elements, or their bits as unsigned integers where NumPy lacks the type.
        dtype: the name of the type it really has ("bfloat16").
    """

    array: Array
    dtype: str

    @property
    def bits(self) -> bool:
        """Whether `array` holds bits instead of numbers."""
        return str(self.array.dtype) != self.dtype


def read_arrays(path: Path) -> object:
    """Return the array in a `.npy` file, or the arrays in a `.npz` file by name.

    Raises:
        InvalidInput: it is no such file, or holds Python objects, which only unpickling could make.
    """
    try:
        found = np.load(path, allow_pickle=False)
        return found if isinstance(found, np.ndarray) else {name: found[name] for name in found.files}
    except (ValueError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise InvalidInput(
            f"{path} holds no plain arrays: {error}", hint="commit it as it is with --as-file"
        ) from error


def is_array(value: object) -> bool:
    """Tell whether a loaded value is an array, a NumPy scalar or a tensor."""
    return isinstance(value, np.ndarray | np.generic) or _is_tensor(value)


def shown(value: Any, name: str) -> Shown:
    """Return an array or tensor as NumPy can hold it.

    Args:
        name: its path, for errors.

    Raises:
        InvalidInput: it is sparse, quantized or nested.
    """
    if not _is_tensor(value):
        return Shown(np.asarray(value), str(np.asarray(value).dtype))
    dtype = str(value.dtype).removeprefix("torch.")
    if str(value.layout) != "torch.strided" or value.is_quantized or value.is_nested:
        raise InvalidInput(
            f"{name} is not a dense array, which is all that NumPy knows", hint="--format torch keeps every tensor"
        )
    host = value.detach().cpu().resolve_conj().resolve_neg()
    try:
        return Shown(host.numpy(), dtype)
    except TypeError:
        bits = getattr(sys.modules["torch"], f"uint{8 * host.element_size()}")
        return Shown(host.contiguous().view(bits).numpy(), dtype)


def write_npy(array: Array, stream: IO[bytes]) -> None:
    """Write one array as a `.npy` file."""
    np.lib.format.write_array(stream, array, allow_pickle=False)


def write_npz(arrays: Mapping[str, Array], stream: IO[bytes]) -> None:
    """Write arrays as a `.npz` file; unlike `numpy.savez` it takes any name."""
    with zipfile.ZipFile(stream, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            # a fixed date, so that equal arrays make equal files
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as part:
                np.lib.format.write_array(part, array, allow_pickle=False)


def summarize(value: Any, name: str) -> dict[str, object]:
    """Return what there is to say about an array: dtype, shape, bytes, range, mean, NaN and Inf, first elements.

    Raises:
        InvalidInput: as `shown`.
    """
    raw = shown(value, name)
    facts: dict[str, object] = {"dtype": raw.dtype, "shape": list(raw.array.shape), "nbytes": raw.array.nbytes}
    array = _readable(value, name)
    if array.dtype.kind in "fiub" and array.size:
        facts |= _numbers(array.astype(np.float64) if array.dtype.itemsize < 4 else array)
    return {**facts, "first": [_plain(item) for item in array.reshape(-1)[:8].tolist()]}


def raw_bytes(value: Any, name: str) -> bytes:
    """Return the elements of an array as bytes, C order, little-endian, in the type it really has.

    Raises:
        InvalidInput: as `shown`.
    """
    array = shown(value, name).array
    return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(order="C")


def elements(value: Any, name: str) -> dict[str, object]:
    """Return dtype, shape and all elements as nested lists that JSON can hold.

    Raises:
        InvalidInput: as `shown`.
    """
    raw, array = shown(value, name), _readable(value, name)
    return {"dtype": raw.dtype, "shape": list(raw.array.shape), "elements": _nested(array.tolist())}


def text(value: Any, name: str) -> list[str]:
    """Return all elements of an array as lines to read.

    Raises:
        InvalidInput: as `shown`.
    """
    array = _readable(value, name)
    return np.array2string(array, threshold=array.size + 1, max_line_width=100, floatmode="unique").splitlines()


def _readable(value: Any, name: str) -> Array:
    """Return an array with numbers of a type that NumPy has, as wide as it needs."""
    raw = shown(value, name)
    return np.asarray(value.detach().cpu().float()) if raw.bits and value.is_floating_point() else raw.array


def _nested(items: object) -> object:
    return [_nested(item) for item in items] if isinstance(items, list) else _plain(items)


def _numbers(array: Array) -> dict[str, object]:
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    facts: dict[str, object] = {}
    if finite.size:
        mean, deviation = finite.mean(dtype=np.float64), finite.std(dtype=np.float64)
        facts = {"min": _plain(finite.min().item()), "max": _plain(finite.max().item())}
        facts |= {"mean": _plain(float(mean)), "std": _plain(float(deviation))}
    if array.dtype.kind == "f":
        facts |= {"nan": int(np.isnan(array).sum()), "inf": int(np.isinf(array).sum())}
    return {**facts, "zeros": int(array.size - np.count_nonzero(array))}


def _plain(value: object) -> object:
    """Return an element as JSON can hold it."""
    if isinstance(value, float):
        return value if np.isfinite(value) else str(value)
    return value if isinstance(value, int | str) else str(value)


def _is_tensor(value: object) -> bool:
    return hasattr(value, "untyped_storage") and hasattr(value, "layout")
