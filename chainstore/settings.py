"""Settings: how a repository is used, and who said so.

In this order, and the first that says something decides: the argument of a call, or a flag; the environment
(CHAIN_CODEC, CHAIN_THREADS, CHAIN_MAX_MEMORY, CHAIN_SHADOW, CHAIN_GIT_DIFF); the repository's own settings, which
travel with it; the user's settings; the default.  What a repository forgets, and when its runs take snapshots, only the
repository itself may say: a policy in somebody's environment must not drop the snapshots of others.

    >>> resolve("threads", 3, {}).value, resolve("codec", None, {"codec": "small"}).origin
    (3, 'the repository')
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from chainstore import config
from chainstore.errors import ConfigError, InvalidInput
from chainstore.policies.interval_texts import format_interval, parse_interval
from chainstore.policies.texts import format_retention, parse_retention
from chainstore.refs import nearest_names

CODECS = ("auto", "none", "fast", "small")
MAX_THREADS = 256
Origin = Literal["argument", "environment", "the repository", "the user's settings", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing that can be set.

    Attributes:
        what: what it does, for people.
        parse: returns the value of text or number, ConfigError if it makes no sense.
        default: returns the value where nobody says anything.
        own: only the repository's own settings count.
    """

    what: str
    parse: Callable[[object], str | int]
    default: Callable[[], str | int]
    own: bool = False


@dataclass(frozen=True, slots=True)
class Resolved:
    """A setting, its value (`max_memory` in bytes), and who said so."""

    name: str
    value: str | int
    origin: Origin


def parse_codec(value: object) -> str:
    """Return the name of a codec; ConfigError if there is none of that name."""
    if value not in CODECS:
        raise ConfigError(f"no codec {value!r}: choose {', '.join(CODECS)}")
    return str(value)


def parse_threads(value: object) -> int:
    """Return a number of threads; ConfigError unless it is from 1 to MAX_THREADS."""
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_THREADS:
        raise ConfigError(f"threads must be a number from 1 to {MAX_THREADS}, not {value!r}")
    return number


def parse_memory(value: object) -> int:
    """Return a number of bytes above 0 of an int or text such as "256MiB"; ConfigError if it is none."""
    try:
        nbytes = config.parse_size(value if isinstance(value, int) else str(value))
    except InvalidInput as error:
        raise ConfigError(f"max_memory: {error}", hint=error.hint) from None
    if not nbytes:
        raise ConfigError("max_memory must be more than nothing", hint='write text such as "256MiB"')
    return nbytes


def parse_yes(value: object) -> str:
    """Return "yes" or "no"; ConfigError if it means neither."""
    text = str(value).lower()
    for answer, words in (("yes", ("yes", "true", "on", "1")), ("no", ("no", "false", "off", "0"))):
        if text in words:
            return answer
    raise ConfigError(f"choose yes or no, not {value!r}")


def parse_policy(value: object) -> str:
    """Return a retention policy in its one written form; ConfigError if it is none."""
    try:
        return format_retention(parse_retention(str(value)))
    except InvalidInput as error:
        raise ConfigError(f"retention: {error}", hint=error.hint) from None


def parse_when(value: object) -> str:
    """Return when snapshots are due in its one written form; ConfigError if it makes no sense."""
    try:
        return format_interval(parse_interval(value if type(value) is int else str(value)))
    except InvalidInput as error:
        raise ConfigError(f"interval: {error}", hint=error.hint) from None


KNOWN: Mapping[str, Setting] = {
    "codec": Setting("how arrays are coded: auto, none, fast, small", parse_codec, lambda: "auto"),
    "threads": Setting("workers of commit and checkout", parse_threads, lambda: min(os.cpu_count() or 1, 8)),
    "max_memory": Setting("bytes that commit and checkout may hold at once", parse_memory, lambda: 256 << 20),
    "retention": Setting("which snapshots forget and gc keep", parse_policy, lambda: "", own=True),
    "shadow": Setting("whether who commits keeps the last snapshot in memory: yes, no", parse_yes, lambda: "yes"),
    "git_diff": Setting("whether managers store the diff of git's work tree: yes, no", parse_yes, lambda: "yes"),
    "interval": Setting("when a manager takes snapshots", parse_when, lambda: "", own=True),
}


def known(name: str) -> Setting:
    """Return a setting by its name.

    Raises:
        ConfigError: there is none; says what comes closest.
    """
    if name not in KNOWN:
        near = nearest_names(name, list(KNOWN))
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(KNOWN)}"
        raise ConfigError(f"no setting {name!r}", hint=hint)
    return KNOWN[name]


def as_stored(name: str, value: str | int | None) -> str | None:
    """Return a value as a repository keeps it.

    Raises:
        ConfigError: there is no such setting, or the value makes no sense.
    """
    setting = known(name)
    if value is None:
        return None
    setting.parse(value)
    return str(value)


def resolve(name: str, given: object, repository: Mapping[str, str]) -> Resolved:
    """Return a setting and who said so.

    Args:
        given: by argument or flag; None if it was not.
        repository: the settings that the repository holds.

    Raises:
        ConfigError: there is no such setting, or what is said of it makes no sense; names who said it.
    """
    setting = known(name)
    if given is not None:
        return Resolved(name, setting.parse(given), "argument")
    said = config.setting_from_environment(name) if not setting.own else None
    if said is not None:
        return _parsed(name, said, "environment")
    if name in repository:
        return _parsed(name, repository[name], "the repository")
    users = config.read_user_config() if not setting.own else {}
    if name in users:
        return _parsed(name, users[name], "the user's settings")
    return Resolved(name, setting.default(), "default")


def _parsed(name: str, text: object, origin: Origin) -> Resolved:
    try:
        return Resolved(name, KNOWN[name].parse(text), origin)
    except ConfigError as error:
        raise ConfigError(f"{error} (set by {origin})", hint=error.hint) from None
