"""Texts: a retention policy as it is stored, and as people read it.

    last=5 daily=7 every_steps=1000 best=loss:min:3        a setting of the repository; read again, the same policy
    keep-last 5, keep-daily 7, keep-every-steps 1000       in a forget mark, and wherever somebody asks why

Both name every rule that is set, and nothing else.

>>> parse_retention("last=5 within=12h first").within == parse_retention("first within=720m last=5").within
True
>>> describe_retention(parse_retention("last=all best=loss:min:3"))
'keep-last all, keep-best 3 loss min'
"""

import re
import shlex
from collections.abc import Callable, Iterator
from typing import Any

from chainstore.errors import InvalidInput
from chainstore.policies.retention import ALL, Best, Retention
from chainstore.policies.spans import format_span, parse_span

_COUNTS = ("last", "hourly", "daily", "weekly", "monthly", "yearly")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_RULES = (*_COUNTS, "within", "tag", "every_steps", "best", "first", "group_by")


def format_retention(retention: Retention) -> str:
    """Return a policy as one line of text that `parse_retention` reads."""
    return shlex.join(name if value is None else f"{name}={value}" for name, value in _pairs(retention))


def describe_retention(retention: Retention) -> str:
    """Return a policy for people, in the words of the command line: `keep-last 5, keep-daily 7`."""
    return ", ".join(_described(retention))


def parse_retention(text: str) -> Retention:
    """Return the policy that text such as `last=5 daily=7 best=loss:min:3` says.

    Counts are numbers or `all`; `tag=` may stand several times; `best=METRIC:MODE:COUNT`; `first` stands alone;
    `within` takes text such as `12h` or `2w`.  A word with a space in it is put in quotes.

    Raises:
        InvalidInput: a rule is not known, stands twice, or makes no sense; names it.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InvalidInput(f"{text!r} is no retention policy: {error}") from None
    found: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _RULES or bool(equals) == (name == "first"):
            raise InvalidInput(
                f"{word!r} is no rule of a retention policy",
                hint='write text such as "last=5 daily=7 every_steps=1000 best=loss:min:3 first"',
            )
        if name == "tag":
            found["tags"] = (*found.get("tags", ()), value)
        elif name in found:
            raise InvalidInput(f"the rule {name!r} stands twice in {text!r}")
        else:
            found[name] = _READERS[name](word, value)
    return Retention(**found)


def count_text(count: int) -> str:
    """Return the number of a rule: `5`, or `all`."""
    return "all" if count == ALL else str(count)


def _pairs(retention: Retention) -> Iterator[tuple[str, str | None]]:
    for name in _COUNTS:
        count = getattr(retention, name)
        if count is not None:
            yield name, count_text(count)
    if retention.within is not None:
        yield "within", format_span(retention.within)
    yield from (("tag", pattern) for pattern in retention.tags)
    if retention.every_steps is not None:
        yield "every_steps", str(retention.every_steps)
    if retention.best is not None:
        yield "best", f"{retention.best.metric}:{retention.best.mode}:{count_text(retention.best.count)}"
    if retention.first:
        yield "first", None
    if retention.group_by != "branch":
        yield "group_by", retention.group_by


def _described(retention: Retention) -> Iterator[str]:
    for name, value in _pairs(retention):
        if name == "best" and (best := retention.best) is not None:
            yield f"keep-best {count_text(best.count)} {best.metric} {best.mode}"
        else:
            words = f"group-by {value}" if name == "group_by" else f"keep-{name.replace('_', '-')} {value or ''}"
            yield words.rstrip()


def _count(word: str, value: str) -> int:
    if value == "all":
        return ALL
    if not _NUMBER.fullmatch(value):
        raise InvalidInput(f"{word!r} needs a number from 1 on, or `all`")
    return int(value)


def _span(word: str, value: str) -> object:
    try:
        return parse_span(value)
    except InvalidInput as error:
        raise InvalidInput(f"{word!r}: {error}", hint=error.hint) from None


def _steps(word: str, value: str) -> int:
    if not _NUMBER.fullmatch(value):
        raise InvalidInput(f"{word!r} needs a number from 1 on")
    return int(value)


def _best(word: str, value: str) -> Best:
    metric, mode, count = [*value.rsplit(":", 2), "", ""][:3]
    if not metric or mode not in ("min", "max") or not count:
        raise InvalidInput(f"{word!r} names no metric, min or max, and number", hint="write best=loss:min:3")
    return Best(metric, _count(word, count), "min" if mode == "min" else "max")


_READERS: dict[str, Callable[[str, str], object]] = {
    **dict.fromkeys(_COUNTS, _count),
    "within": _span,
    "every_steps": _steps,
    "best": _best,
    "first": lambda word, value: True,
    "group_by": lambda word, value: value,
}
