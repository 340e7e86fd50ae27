"""Loading: a snapshot into live objects, in place.

Everything is planned and checked before a byte is written: where each object's state lies (`find_places`), what of it
fits (`plan`), and only when all of that holds, memory is filled and every object told (`load_into`).  What an object
is to a training run is read from what it can do, so that torch need not be imported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

from chainstore.display import size, some, table
from chainstore.errors import InvalidInput, StateMismatch
from chainstore.lazy.content import Content
from chainstore.model.paths import Path, format_path, parse_path
from chainstore.ops.fitting import (
    ROLES,
    check_fit,
    check_flag,
    group_problems,
    matched_names,
    moment_problems,
    role_of,
    under_live_names,
    under_stored_names,
    without_misfits,
)
from chainstore.state import Assembly, compare
from chainstore.state.rng import NO_RNG, RngPlan, plan_rng


@runtime_checkable
class Loadable(Protocol):
    """What `load_into` fills: modules, optimizers, schedulers, scalers, data loaders."""

    def state_dict(self) -> Mapping[str, object]: ...
    def load_state_dict(self, state_dict: Any) -> object: ...


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What `load_into` or `restore` did.

    Attributes:
        missing_keys: paths of what the objects have and the snapshot lacks.
        unexpected_keys: paths of what the snapshot holds and the objects lack.
        mismatched: paths of arrays of another dtype or shape, and of what else does not fit, with the reason.
        step: of the commit; of `restore`, what the state holds under "step".
        read_bytes: raw bytes of the chunks that had to be read; the rest was there already.
    """

    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]
    mismatched: tuple[str, ...]
    step: int | None
    read_bytes: int

    def __repr__(self) -> str:
        misfits = {"missing": self.missing_keys, "unexpected": self.unexpected_keys, "mismatched": self.mismatched}
        told = [f"{len(paths):,} {what}: {some(paths, 3)}" for what, paths in misfits.items() if paths]
        return f"<LoadResult step {self.step}, {size(self.read_bytes)} read, {'; '.join(told) or 'everything fits'}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        misfits = {"missing": self.missing_keys, "unexpected": self.unexpected_keys, "mismatched": self.mismatched}
        rows = [(what, f"{len(paths):,}: {some(paths)}") for what, paths in misfits.items() if paths]
        title = "loaded, but not all of it fits" if rows else "loaded; everything fits"
        return table(title, [("step", self.step), ("read", size(self.read_bytes)), *rows])


@dataclass(frozen=True, slots=True)
class Plan:
    """One object that is about to be loaded.

    Attributes:
        names: of the snapshot -> of the object.
    """

    thing: Loadable
    assembly: Assembly
    live: Mapping[str, object]
    names: dict[str, str]
    missing: list[str]
    unexpected: list[str]
    mismatched: list[str]

    @property
    def usable(self) -> bool:
        """Whether any of it may be loaded: of a model what fits, an optimizer whole or not at all."""
        return role_of(self.thing) == "model" or not self.mismatched

    def finish(self, strict: bool, assign: bool) -> None:
        """Hand the object what was read."""
        state = self.assembly.build()
        assert isinstance(state, Mapping)
        if role_of(self.thing) == "model":
            state = under_live_names(state, self.live, self.names)
            state = state if strict else without_misfits(state, self.live)
            self.thing.load_state_dict(state, strict=strict, assign=assign)  # type: ignore[call-arg]
        else:
            self.thing.load_state_dict(state)


def load_into(
    content: Content,
    places: Mapping[Path, Loadable],
    *,
    rng: bool,
    strict: bool,
    assign: bool,
    map_location: str | None,
) -> LoadResult:
    """Load what lies at each path into the object there; see `Snapshot.load_into`."""
    check_flag(rng)
    plans = [plan(content, path, thing, map_location) for path, thing in places.items()]
    numbers = _plan_numbers(content) if rng else NO_RNG
    result = LoadResult(
        (*(text for each in plans for text in each.missing), *numbers.missing),
        tuple(text for each in plans for text in each.unexpected),
        (*(text for each in plans for text in each.mismatched), *numbers.mismatched),
        content.commit.step,
        0,
    )
    if strict:
        check_fit(result.missing_keys, result.unexpected_keys, result.mismatched)
    plans = [each for each in plans if each.usable]
    read = content.fill([destination for each in plans for destination in each.assembly.destinations])
    for each in plans:
        each.finish(strict, assign)
    numbers.restore()
    return replace(result, read_bytes=read)


def _plan_numbers(content: Content) -> RngPlan:
    """Return how the random numbers of a snapshot would be put back."""
    path = (*content.root, "rng")
    return plan_rng(content.load(path) if path in content.manifest else None)


def find_places(content: Content, objects: Sequence[Loadable], at: Mapping[str, str]) -> dict[Path, Loadable]:
    """Return where the state of each object lies: where `at` says, or under the name of its role.

    Raises:
        StateMismatch: an object has no place, or two have one.
    """
    unknown = set(at) - ROLES
    if unknown:
        raise InvalidInput(f"at= names no {', '.join(sorted(unknown))}; it may name {', '.join(sorted(ROLES))}")
    places: dict[Path, Loadable] = {}
    for thing in objects:
        role = role_of(thing)
        path = parse_path(at[role]) if role in at else _find(content, role, thing)
        if path in places:
            raise StateMismatch(
                f"two objects would be loaded from {format_path(path)!r}",
                hint="name them: snap.load_into(generator=g, critic=c)",
            )
        places[path] = thing
    return places


def _find(content: Content, role: str, thing: Loadable) -> Path:
    if (*content.root, role) in content.manifest:
        return (role,)
    if set(thing.state_dict()) <= set(content.child_keys()) and role == "model":
        return ()
    candidates = [str(key) for key in content.child_keys()]
    raise StateMismatch(
        f"no {role!r} in {content.commit.short} for {type(thing).__name__}; there are {', '.join(candidates)}",
        hint=f"say where it is: load_into(..., at={{{role!r}: {candidates[0] if candidates else '...'!r}}})",
    )


def plan(content: Content, path: Path, thing: Loadable, map_location: str | None) -> Plan:
    """Return what loading one object would do.

    Raises:
        StateMismatch: nothing lies there, or it is nothing that can be loaded into.
    """
    full = (*content.root, *path)
    if not isinstance(thing, Loadable):
        raise StateMismatch(f"{type(thing).__name__} has no state_dict and load_state_dict")
    if full not in content.manifest:
        raise StateMismatch(f"nothing at {format_path(full)!r} in {content.commit.short}")
    live = thing.state_dict()
    entries = content.needed(full)
    if role_of(thing) != "model":
        assembly = Assembly(entries, root=full, into=live, map_location=map_location)
        return Plan(thing, assembly, live, {}, [], [], _optimizer_problems(content, full, thing))
    stored = [entry.path[-1] for entry in entries if entry.path and entry.path[:-1] == full]
    names = matched_names(stored, live)
    into = under_stored_names(live, names)
    assembly = Assembly(entries, root=full, into=into, map_location=map_location)
    prefix = format_path(full) + "/" if full else ""
    found = compare(entries, into, root=full)
    missing, unexpected, mismatched = ([prefix + text for text in texts] for texts in found)
    return Plan(thing, assembly, live, names, missing, unexpected, mismatched)


def _optimizer_problems(content: Content, path: Path, thing: Loadable) -> list[str]:
    """Return why the state of an optimizer does not fit; [] for anything else."""
    if role_of(thing) != "optimizer":
        return []
    # a state without a single array is one plain value
    whole: Any = content.load(path) if (*path, "param_groups") not in content.manifest else {}
    stored: Any = whole.get("param_groups", []) if whole else content.load((*path, "param_groups"))
    live = thing.param_groups  # type: ignore[attr-defined]
    problems = group_problems(stored, live, format_path((*path, "param_groups")))
    states = (*path, "state")
    shapes: dict[tuple[object, str], tuple[int, ...]] = {
        (e.path[-2], str(e.path[-1])): e.spec.shape
        for e in content.manifest.entries
        if e.spec is not None and e.path[:-2] == states
    }
    return problems or moment_problems(shapes, stored, live, format_path(states))
