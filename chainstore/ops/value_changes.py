"""What changed inside plain values: `optimizer/param_groups/0/lr: 0.001 -> 0.0005` instead of two long lists.

Dicts are compared key by key, lists and tuples item by item where they hold containers or few items; other values as a
whole, by type and by what Python writes for them (so a NaN equals a NaN, and 1 differs from 1.0 and True).
"""

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

from chainstore.model.paths import Path, format_path, is_key
from chainstore.ops.differences import Unreadable, ValueDiff

_FEW_ITEMS = 16  # longer lists of scalars are one value: shapes are told item by item, random states are not


def value_changes(path: Path, old: object, new: object) -> Iterator[ValueDiff]:
    """Yield what differs between two plain values, at the paths where it does."""
    if isinstance(old, dict) and isinstance(new, dict) and type(old) is type(new):
        yield from mapping_changes(path, old, new)
    elif _is_walked(old) and _is_walked(new) and type(old) is type(new):
        yield from mapping_changes(path, dict(enumerate(old)), dict(enumerate(new)))
    elif not _same(old, new):
        yield ValueDiff(format_path(path), "changed", old, new)


def mapping_changes(path: Path, old: Mapping[Any, Any], new: Mapping[Any, Any]) -> Iterator[ValueDiff]:
    """Yield what differs between two mappings, in the order of the new one, then what is gone."""
    ours, theirs = ({_name(key): key for key in mapping} for mapping in (old, new))
    for name, key in theirs.items():
        if name in ours:
            yield from value_changes(_below(path, key), old[ours[name]], new[key])
        else:
            yield ValueDiff(format_path(_below(path, key)), "added", None, new[key])
    for name, key in ours.items():
        if name not in theirs:
            yield ValueDiff(format_path(_below(path, key)), "removed", old[key], None)


def _name(key: object) -> tuple[type, object]:
    return type(key), key if key == key else repr(key)


def _below(path: Path, key: Any) -> Path:
    return (*path, key if is_key(key) else repr(key))


def _is_walked(value: object) -> TypeGuard[list[object] | tuple[object, ...]]:
    if not isinstance(value, list | tuple):
        return False
    return len(value) <= _FEW_ITEMS or any(isinstance(item, dict | list | tuple) for item in value)


def _same(old: object, new: object) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, Unreadable):
        return False  # bytes differ, or nobody would ask
    return repr(old) == repr(new)
