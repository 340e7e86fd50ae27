"""Interval texts: when snapshots are due, as users write it and as it is stored.

    100, "100 steps"       every 100 optimizer steps          "adaptive"            as often as pays
    "50 batches"           counted within the epoch           "adaptive:lost=10m:overhead=2%"
    "30m", "1h30m"         since the last snapshot            "best:loss:min"       whenever the loss is best
    "epoch", "2 epochs"                                       "best:acc:max:delta=0.01:patience=500"
    "durable"              as soon as the last one is         "signal"              when somebody asks

`or` or a comma between them combines; `every` may stand before any.

>>> format_interval(parse_interval("every 100 steps or 90 minutes"))
'100 steps or 1h30m'
"""

import re
from collections.abc import Iterator
from datetime import timedelta

from chainstore.errors import InvalidInput
from chainstore.policies.interval import Interval, Limits
from chainstore.policies.progress import Trigger
from chainstore.policies.spans import format_span, parse_span
from chainstore.policies.triggers import (
    Adaptive,
    EveryBatches,
    EveryEpoch,
    EverySeconds,
    EverySteps,
    OnBest,
    Signal,
    WhenDurable,
    as_trigger,
    simple_triggers,
)

HINT = 'write 100 (steps), "30m", "2 epochs", "adaptive", "best:loss:min", or several: "100 steps or 30m"'

_OR = re.compile(r"\s+or\s+|\s*,\s*")
_EVERY = re.compile(r"every\s+(?=\S)", re.IGNORECASE)
_COUNTED = re.compile(r"([0-9]{1,15})?\s*(step|steps|batch|batches|epoch|epochs)?", re.IGNORECASE)
_COUNTERS: dict[str, type[EverySteps] | type[EveryBatches] | type[EveryEpoch]] = {
    "s": EverySteps,
    "b": EveryBatches,
    "e": EveryEpoch,
}
_UNITS = re.compile(r"(?<=[0-9 ])(second|minute|hour|day|week)s?(?![a-z])")
_WORD = re.compile(r"[^\s:,=]+")  # a metric that can be written here
_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,25})?(?:e[-+]?[0-9]{1,3})?", re.IGNORECASE)


def parse_interval(interval: int | str) -> Trigger:
    """Return the trigger that a number of steps, or text, says.

    Raises:
        InvalidInput: it says none; names the part that makes no sense.
    """
    if not isinstance(interval, str):
        return _every_steps(interval)
    try:
        return as_trigger([_parse_one(_EVERY.sub("", part, count=1)) for part in _OR.split(interval.strip())])
    except InvalidInput as error:
        raise InvalidInput(f"{interval!r} is no interval: {error}", hint=HINT) from None


def format_interval(trigger: Trigger) -> str:
    """Return a trigger as text that `parse_interval` reads, what an adaptive one has learned left out.

    Raises:
        InvalidInput: it is of a kind, or a metric has a name, that cannot be written.
    """
    return " or ".join(_format_one(each) for each in simple_triggers(trigger))


def _every_steps(interval: object) -> Trigger:
    try:
        return EverySteps(interval)  # type: ignore[arg-type]
    except InvalidInput as error:
        raise InvalidInput(f"{interval!r} is no interval: {error}", hint=HINT) from None


def _parse_one(text: str) -> Trigger:
    name, *options = text.split(":")
    if name == "best":
        return _parse_best(options)
    if name.lower() == "adaptive":
        return _parse_adaptive(options)
    if text.lower() in ("durable", "signal"):
        return WhenDurable() if text.lower() == "durable" else Signal()
    counted = _COUNTED.fullmatch(text)
    if counted and text:
        return _COUNTERS[(counted[2] or "s").lower()[0]](int(counted[1] or 1))
    return EverySeconds(_seconds(text))


def _parse_best(options: list[str]) -> OnBest:
    metric, mode = [*options, "", ""][:2]
    if mode and "=" in mode:
        options.insert(1, mode := "min")
    if mode not in ("", "min", "max"):
        raise InvalidInput(f"best is by min or max, not {mode!r}")
    given = dict(_pairs(options[2:], ("delta", "patience")))
    patience = given.get("patience", "0")
    if not re.fullmatch("[0-9]{1,15}", patience):
        raise InvalidInput(f"patience is a number of steps, not {patience!r}")
    return OnBest(metric, "max" if mode == "max" else "min", _number("delta", given.get("delta", "0")), int(patience))


def _parse_adaptive(options: list[str]) -> Adaptive:
    given = dict(_pairs(options, ("lost", "overhead")))
    limits = Limits()
    lost = _seconds(given["lost"]) if "lost" in given else limits.max_lost_s
    overhead = limits.max_overhead
    if "overhead" in given:
        text = given["overhead"]
        overhead = _number("overhead", text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    return Adaptive(Interval(limits=Limits(lost, overhead)))


def _pairs(options: list[str], known: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    seen = set()
    for option in options:
        name, _, value = option.partition("=")
        if name not in known or not value or name in seen:
            raise InvalidInput(f"{option!r} is not {' or '.join(f'{each}=...' for each in known)}, each once")
        seen.add(name)
        yield name, value


def _seconds(text: str) -> float:
    short = _UNITS.sub(lambda found: found[1][0], text.lower()).replace(" ", "")
    try:
        return parse_span(short) / timedelta(seconds=1)
    except InvalidInput:
        raise InvalidInput(f"{text!r} is neither a number nor a length of time") from None


def _number(what: str, text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise InvalidInput(f"{what} is a number from 0 on, not {text!r}")
    return float(text)


def _format_one(trigger: Trigger) -> str:
    match trigger:
        case EverySteps(n):
            return f"{n} step{'s' * (n > 1)}"
        case EveryBatches(n):
            return f"{n} batch{'es' * (n > 1)}"
        case EveryEpoch(n):
            return f"{n} epoch{'s' * (n > 1)}"
        case EverySeconds(seconds):
            return format_span(timedelta(seconds=seconds))
        case OnBest():
            return _format_best(trigger)
        case Adaptive():
            return _format_adaptive(trigger)
        case WhenDurable():
            return "durable"
        case Signal():
            return "signal"
    raise InvalidInput(f"{trigger!r} has no text", hint="give it in Python: triggers=[...]")


def _format_best(rule: OnBest) -> str:
    if not _WORD.fullmatch(rule.metric):
        raise InvalidInput(f"the metric {rule.metric!r} has no text", hint="give it in Python: triggers=[OnBest(...)]")
    delta = f":delta={rule.min_delta!r}" if rule.min_delta else ""
    return f"best:{rule.key}{delta}{f':patience={rule.patience}' if rule.patience else ''}"


def _format_adaptive(trigger: Adaptive) -> str:
    limits, usual, text = trigger.known.limits, Limits(), "adaptive"
    if limits.max_lost_s != usual.max_lost_s:
        text += f":lost={format_span(timedelta(seconds=limits.max_lost_s))}"
    return text if limits.max_overhead == usual.max_overhead else f"{text}:overhead={limits.max_overhead!r}"
