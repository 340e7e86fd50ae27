"""Live objects and states: what a training run consists of becomes one state, and a loaded state goes back into it.

state = capture(model, optimizer, scheduler)      {"model": ..., "optimizer": ..., "scheduler": ..., "rng": ...}
repo.commit(state, step=1200)
restore(repo.checkout(), model, optimizer, scheduler)

`repo[revision].load_into(model, optimizer, rng=True)` does the same as the last line without a copy in between.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chainstore.errors import InvalidInput, StateMismatch
from chainstore.lazy import Loadable, LoadResult, Snapshot
from chainstore.ops.fitting import (
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
from chainstore.state import compare
from chainstore.state.flatten import Walk
from chainstore.state.rng import NO_RNG, capture_rng, plan_rng

_RNG = "rng"


def capture(*objects: Loadable, rng: bool = True, **named: Loadable) -> dict[str, Any]:
    """Return the state of live objects, and of the random numbers, as one state that can be committed.

    Each object is asked for its own `state_dict()` and for nothing else: no gradient, no optimizer step, no random
    number is made for it.  The arrays in the state are those of the live objects, not copies: commit it, or copy it,
    before training goes on.

    Args:
        objects: modules, optimizers, schedulers, scalers: stored under "model", "optimizer", "scheduler", "scaler".
        rng: store under "rng" the states of the generators of Python, of numpy and torch where they are loaded, and
            of the CUDA devices that this process uses.
        named: objects stored under their names; what else has a `state_dict` (a data loader), and all of a kind
            where there are several, must be named.

    Returns:
        Name to state: a dict of your own, to which more can be added (`state["epoch"] = 3`) before it is committed.

    Raises:
        InvalidInput: two objects would be stored under one name, or one has no `state_dict`.
    """
    check_flag(rng)
    things: dict[str, Loadable] = {}
    for thing in objects:
        name = _role(thing)
        if name in things:
            raise InvalidInput(
                f"two objects are called {name!r}: {type(things[name]).__name__} and {type(thing).__name__}",
                hint="name them: cs.capture(generator=g, critic=c)",
            )
        things[name] = thing
    for name, thing in named.items():
        if name in things:
            raise InvalidInput(f"two objects are called {name!r}", hint="choose another name for one of them")
        _check_loadable(thing, name)
        things[name] = thing
    state: dict[str, Any] = {name: thing.state_dict() for name, thing in things.items()}
    return {**state, _RNG: capture_rng()} if rng else state


def restore(
    state: Mapping[str, Any], *objects: Loadable, rng: bool = True, strict: bool = True, **named: Loadable
) -> LoadResult:
    """Load a state that `capture` made, after `repo.checkout`, into live objects: the inverse of `capture`.

    Everything is checked before anything is written; the random numbers come last.  Names that differ only by the
    `module.` and `_orig_mod.` of wrappers are matched.  torch's optimizers keep the arrays they are given: to restore
    the same commit once more, check it out once more.

    Args:
        state: name to state.
        objects: as for `capture`; a lone model may also be given the state of a model itself.
        rng: put the generators of "rng" back as well.
        strict: refuse when names, dtypes or shapes of a module, the parameters of an optimizer, or the generators
            do not fit; else load what fits, an optimizer whole or not at all.
        named: objects by the name they were captured under.

    Returns:
        What did not fit; `step` is what the state holds under "step", if that is a number.

    Raises:
        StateMismatch: an object has no place in the state, or does not fit; nothing was written.
        InvalidInput: `state` is no state.
    """
    check_flag(rng)
    if isinstance(state, Snapshot) or not isinstance(state, Mapping):
        raise InvalidInput(
            f"restore takes a loaded state, not a {type(state).__name__}",
            hint="repo.checkout(revision) loads one; snapshot.load_into(model, ..., rng=True) needs none",
        )
    plans = [_plan(place, thing, state) for place, thing in _places(state, objects, named)]
    numbers = plan_rng(state.get(_RNG)) if rng else NO_RNG
    step = state.get("step")
    result = LoadResult(
        (*(text for plan in plans for text in plan.missing), *numbers.missing),
        tuple(text for plan in plans for text in plan.unexpected),
        (*(text for plan in plans for text in plan.mismatched), *numbers.mismatched),
        step if type(step) is int else None,
        0,
    )
    if strict:
        check_fit(result.missing_keys, result.unexpected_keys, result.mismatched)
    for plan in plans:
        plan.finish(strict)
    numbers.restore()
    return result


@dataclass(frozen=True, slots=True)
class _Plan:
    """One object that is about to be loaded."""

    thing: Loadable
    stored: Any
    live: Mapping[str, Any]
    names: dict[str, str]  # of the state -> of the object
    missing: Sequence[str] = ()
    unexpected: Sequence[str] = ()
    mismatched: Sequence[str] = ()

    def finish(self, strict: bool) -> None:
        if not isinstance(self.stored, Mapping):
            return
        if role_of(self.thing) == "model":
            state = under_live_names(self.stored, self.live, self.names)
            state = state if strict else without_misfits(state, self.live)
            self.thing.load_state_dict(state, strict=strict)  # type: ignore[call-arg]
        elif not self.mismatched:
            self.thing.load_state_dict(self.stored)


def _places(
    state: Mapping[str, Any], objects: Sequence[Loadable], named: Mapping[str, Loadable]
) -> list[tuple[str | None, Loadable]]:
    """Return each object with its name in `state`; None for a model whose state is `state` itself."""
    places: list[tuple[str | None, Loadable]] = []
    for thing in objects:
        role = _role(thing)
        place = None if role not in state and role == "model" and set(thing.state_dict()) <= set(state) else role
        places.append((place, thing))
    for name, thing in named.items():
        _check_loadable(thing, name)
        places.append((name, thing))
    names = [place for place, _ in places]
    for place in names:
        if place is not None and place not in state:
            raise StateMismatch(
                f"nothing is called {place!r} in this state; there are {', '.join(map(str, state))}",
                hint="name the object by what it was captured under: cs.restore(state, generator=g)",
            )
        if names.count(place) > 1:
            raise StateMismatch(
                f"two objects would be loaded from {place!r}",
                hint="name them: cs.restore(state, generator=g, critic=c)",
            )
    return places


def _plan(place: str | None, thing: Loadable, state: Mapping[str, Any]) -> _Plan:
    stored = state if place is None else state[place]
    if not isinstance(stored, Mapping):
        return _Plan(thing, stored, {}, {}, mismatched=[f"{place}: a {type(stored).__name__}, not a state"])
    if role_of(thing) == "optimizer":
        return _Plan(thing, stored, {}, {}, mismatched=_optimizer_problems(place or "", stored, thing))
    if role_of(thing) != "model":
        return _Plan(thing, stored, {}, {})
    live = thing.state_dict()
    names = matched_names(stored, live)
    walk = Walk(stored)
    found = compare(walk.leaves, under_stored_names(live, names))
    prefix = f"{place}/" if place is not None else ""
    missing = [prefix + text for text in found.missing if text not in walk.refused]
    unexpected, mismatched = ([prefix + text for text in texts] for texts in found[1:])
    return _Plan(thing, stored, live, names, missing, unexpected, mismatched)


def _optimizer_problems(place: str, stored: Mapping[str, Any], thing: Loadable) -> list[str]:
    """Return why the state of an optimizer does not fit, [] if it does."""
    theirs, live = stored.get("param_groups", []), thing.param_groups  # type: ignore[attr-defined]
    states = stored.get("state")
    shapes = {
        (number, str(name)): tuple(value.shape)
        for number, moments in (states.items() if isinstance(states, Mapping) else ())
        if isinstance(moments, Mapping)
        for name, value in moments.items()
        if hasattr(value, "shape")
    }
    groups = group_problems(theirs, live, f"{place}/param_groups")
    return groups or moment_problems(shapes, theirs, live, f"{place}/state")


def _role(thing: object) -> str:
    """Return what an object without a name is called."""
    _check_loadable(thing)
    role = role_of(thing)
    if role == "scheduler" and not hasattr(thing, "step"):
        kind = type(thing).__name__
        raise InvalidInput(
            f"{kind} is no model, optimizer, scheduler or scaler", hint=f"give it a name: {kind.lower()}=..."
        )
    return role


def _check_loadable(thing: object, name: str = "") -> None:
    if not isinstance(thing, Loadable) or isinstance(thing, type):
        shown = f"{name}= " if name else ""
        raise InvalidInput(
            f"{shown}a {type(thing).__name__} has no state_dict and load_state_dict",
            hint="put plain values and arrays into the state yourself: state[name] = value",
        )
