"""Fitting: what a snapshot holds, next to the live objects it is to be loaded into, before anything is written.

torch is not imported here; its objects are known by what they have.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chainstore.errors import InvalidInput, StateMismatch

WRAPPERS = frozenset({"module", "_orig_mod"})  # what DistributedDataParallel and torch.compile put before names
ROLES = frozenset({"model", "optimizer", "scheduler", "scaler"})  # what objects that are given without a name can be
_SHAPED_LIKE_PARAMETERS = frozenset(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "exp_inf", "sum"}
)  # of torch.optim; factored or quantized states have shapes and names of their own


def role_of(thing: object) -> str:
    """Return what an object is to a training run (one of `ROLES`), from what it can do."""
    if hasattr(thing, "named_parameters"):
        return "model"
    if hasattr(thing, "param_groups"):
        return "optimizer"
    if hasattr(thing, "unscale_"):
        return "scaler"
    return "scheduler"


def check_fit(missing: Sequence[str], unexpected: Sequence[str], mismatched: Sequence[str]) -> None:
    """Refuse what does not fit; the first five paths of each kind are named, the error's attributes hold all.

    Raises:
        StateMismatch: any of the three holds something.
    """
    kinds = {
        "missing from the snapshot": missing,
        "not in the objects": unexpected,
        "of another dtype or shape": mismatched,
    }
    parts = [f"{len(paths)} {what}: {_first(paths)}" for what, paths in kinds.items() if paths]
    if parts:
        text = "the snapshot does not fit: " + " | ".join(parts)
        hint = "rng=False leaves the random numbers as they are" if missing[-1:] == ("rng",) else ""
        raise StateMismatch(text, missing=missing, unexpected=unexpected, mismatched=mismatched, hint=hint)


def check_flag(rng: object) -> None:
    """Refuse an object that was given the name `rng`, which means something else.

    Raises:
        InvalidInput: it is not True or False.
    """
    if not isinstance(rng, bool):
        raise InvalidInput(f"rng is True or False, not a {type(rng).__name__}", hint="the name rng is taken")


def _first(paths: Sequence[str]) -> str:
    return "; ".join(paths[:5]) + (f"; and {len(paths) - 5} more" if len(paths) > 5 else "")


def matched_names(stored: Iterable[object], live: Iterable[object]) -> dict[str, str]:
    """Return stored name -> live name for names that differ only by what wrappers put before them.

    Names that both sides have stay; where two could be meant, none is.
    """
    ours, theirs = _texts(stored), _texts(live)
    by_core: dict[str, list[str]] = {}
    for name in theirs - ours:
        by_core.setdefault(_core(name), []).append(name)
    cores = [_core(name) for name in ours - theirs]
    return {
        name: by_core[core][0]
        for name in ours - theirs
        if len(by_core.get(core := _core(name), ())) == 1 and cores.count(core) == 1
    }


def under_stored_names(live: Mapping[str, object], names: Mapping[str, str]) -> Mapping[str, object]:
    """Return a live state under the names of the snapshot: the same values, `names` applied backwards."""
    back = {ours: stored for stored, ours in names.items()}
    return {back.get(name, name): value for name, value in live.items()} if names else live


def under_live_names(state: Mapping[str, Any], live: Mapping[str, Any], names: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a loaded state under the names of the live object, torch's `_metadata` (names of modules) included."""
    if not names:
        return state
    made = OrderedDict((names.get(name, name), value) for name, value in state.items())
    metadata, ours = getattr(state, "_metadata", None), getattr(live, "_metadata", {})
    if metadata is not None:
        modules = matched_names(metadata, ours)
        made._metadata = {modules.get(name, name): value for name, value in metadata.items()}  # type: ignore[attr-defined]
    return made


def without_misfits(state: Mapping[str, Any], live: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what of a model's state has the shape of its counterpart, or none; for loads that need not be complete."""
    fits = OrderedDict((name, value) for name, value in state.items() if _same_shape(value, live.get(name, value)))
    vars(fits).update(getattr(state, "__dict__", {}))
    return fits


def group_problems(stored: Sequence[Mapping[str, Any]], live: Sequence[Mapping[str, Any]], path: str) -> list[str]:
    """Return why the parameter groups of an optimizer do not fit, [] if they do."""
    if not isinstance(stored, list | tuple) or not all(_is_group(group) for group in stored):
        return [f"{path}: not the parameter groups of an optimizer"]
    theirs, ours = ([len(group["params"]) for group in groups] for groups in (stored, live))
    if ours == theirs:
        return []
    return [f"{path}: groups of {theirs} parameters in the snapshot, of {ours} in the live state"]


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("params"), list | tuple)


def moment_problems(
    shapes: Mapping[tuple[object, str], tuple[int, ...]],
    stored: Sequence[Mapping[str, Any]],
    live: Sequence[Mapping[str, Any]],
    path: str,
) -> list[str]:
    """Return which arrays of an optimizer's state belong to parameters of another shape than the live ones.

    Args:
        shapes: (number of the parameter, name in its state) -> shape, of the snapshot.
        stored, live: groups, as many and as long on both sides.
    """
    problems = []
    for theirs, ours in zip(stored, live, strict=True):
        wanted = {
            number: tuple(parameter.shape) for number, parameter in zip(theirs["params"], ours["params"], strict=True)
        }
        for (number, name), shape in shapes.items():
            if name in _SHAPED_LIKE_PARAMETERS and wanted.get(number, shape) != shape:
                found = f"{list(shape)} in the snapshot, {list(wanted[number])} for the live parameter"
                problems.append(f"{path}/{number}/{name}: {found}")
    return problems


def _texts(names: Iterable[object]) -> set[str]:
    return {name for name in names if isinstance(name, str)}


def _core(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _same_shape(a: object, b: object) -> bool:
    return getattr(a, "shape", None) == getattr(b, "shape", None)
