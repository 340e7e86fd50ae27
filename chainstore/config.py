"""Configuration: the only module that asks the environment, the home directory, the host and the clock.

The face and everything above it call this and pass on what they learned; nothing below may.  It knows no key, only
where one is to be found: a `KeySource`.

    >>> parse_size("256MiB"), parse_duration("1h30m")
    (268435456, 5400.0)

Environment: NO_COLOR, CHAIN_REPO, CHAIN_HOME, CHAIN_CONFIG_DIR, CHAIN_CACHE_DIR, CHAIN_KEY_FILE, CHAIN_KEY_COMMAND,
CHAIN_PASSPHRASE, CHAIN_INDEX_DIR, SLURM_TMPDIR, TMPDIR, CHAIN_CODEC, CHAIN_THREADS, CHAIN_MAX_MEMORY,
CHAIN_SHADOW and CHAIN_GIT_DIFF; an empty variable counts as unset.  The user's settings are `config.toml` in the
configuration directory.
"""

import getpass
import os
import re
import site
import socket
import sysconfig
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Literal

import platformdirs

from chainstore.errors import ConfigError, InvalidInput

APPLICATION = "chainstore"
_EXPORTED = "user.key.exported"  # lies beside the user's key

# what such a file system holds is gone after a reboot, or with the container
_FLEETING_TYPES = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs", "overlay", "aufs", "fuse.fuse-overlayfs"})

_SIZE = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?) *([kmgtp]?)(i?)(b?)")
_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,9})?)(ms|min|sec|m|s|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True, repr=False)
class KeySource:
    """Where a key is to be found; the face makes a key provider of it.

    Attributes:
        kind: what `value` is.
        value: a path (`~` resolved), a command line, or the passphrase itself; shown only if it is a path.
        origin: the variable or setting it comes from, to show to people.
    """

    kind: Literal["file", "command", "passphrase"]
    value: str
    origin: str

    def __repr__(self) -> str:
        return f"KeySource({self.kind!r}, {self.value if self.kind == 'file' else '...'}, {self.origin!r})"


def config_dir() -> Path:
    """Return the directory of the user's settings and key: CHAIN_CONFIG_DIR, else the system's place for them."""
    chosen = _variable("CHAIN_CONFIG_DIR")
    return _path(chosen) if chosen else platformdirs.user_config_path(APPLICATION)


def cache_dir() -> Path:
    """Return the directory for what can be had again: CHAIN_CACHE_DIR, else the system's place for it."""
    chosen = _variable("CHAIN_CACHE_DIR")
    return _path(chosen) if chosen else platformdirs.user_cache_path(APPLICATION)


def index_dirs() -> tuple[Path, ...]:
    """Return where an index may be kept that cannot lie in its repository (on a network disk), best first.

    CHAIN_INDEX_DIR alone, else below SLURM_TMPDIR, below TMPDIR, and in `cache_dir()`.
    """
    chosen = _variable("CHAIN_INDEX_DIR")
    if chosen:
        return (_path(chosen),)
    below = [_variable("SLURM_TMPDIR"), _variable("TMPDIR")]
    dirs = [*(_path(text) / APPLICATION / "index" for text in below if text), cache_dir() / "index"]
    return tuple(dict.fromkeys(dirs))


def chain_home() -> Path:
    """Return the directory of repositories that are named, not placed: CHAIN_HOME, else the user's data directory."""
    chosen = _variable("CHAIN_HOME")
    return _path(chosen) if chosen else platformdirs.user_data_path(APPLICATION)


def user_key_path() -> Path:
    """Return where the user's one key for all repositories lies, or is to be made."""
    return config_dir() / "user.key"


def note_key_exported() -> None:
    """Remember that the user made a copy of the key, so that nobody is told to any more; where that can be kept."""
    with suppress(OSError):
        (config_dir() / _EXPORTED).write_text(f"{now().isoformat()}\n", encoding="ascii")


def key_was_exported() -> bool:
    """Tell whether `chain key export` was run since the user's key was made."""
    try:
        return (config_dir() / _EXPORTED).stat().st_mtime_ns >= user_key_path().stat().st_mtime_ns
    except OSError:
        return False


def home_is_durable(path: Path | None = None) -> bool:
    """Tell whether a key can be kept in the configuration directory and would outlive this container."""
    return home_problem(path) is None


def home_problem(path: Path | None = None) -> str | None:
    """Return why a key should not be kept in a directory, as the end of a sentence, or None if it can.

    Args:
        path: the directory, which need not exist yet; by default `config_dir()`.

    Where the system does not tell its mounts, a writable place is taken as durable.
    """
    path = config_dir() if path is None else path
    if not path.is_absolute():
        return "there is no home directory"
    existing = next(place for place in (path, *path.parents) if os.path.exists(place))  # unlike Path's, never raises
    if not os.access(existing, os.W_OK | os.X_OK):
        return f"{existing} cannot be written"
    kind = _file_system_type(existing.stat().st_dev, _mountinfo())
    return f"{existing} lies on {kind}, which does not last" if kind in _FLEETING_TYPES else None


def helper_environment(import_from: Path) -> dict[str, str]:
    """Return the environment of a process that helps this one: the same, and modules are found where ours were.

    Args:
        import_from: the folder that chainstore was imported from; named only where Python would not look by itself,
            for it then comes before the standard library.
    """
    usual = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), site.getusersitepackages()}
    if str(import_from) in usual:
        return dict(os.environ)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(import_from), _variable("PYTHONPATH")]))}


def processes_of_torchrun() -> int:
    """Return how many processes torchrun started together with this one; 1 where it did not start it."""
    size = _variable("WORLD_SIZE") if _variable("TORCHELASTIC_RUN_ID") else None
    return int(size) if size is not None and size.isdecimal() else 1


def repo_from_environment() -> str | None:
    """Return the path or URL in CHAIN_REPO."""
    return _variable("CHAIN_REPO")


def setting_from_environment(name: str) -> str | None:
    """Return what CHAIN_CODEC, CHAIN_THREADS, CHAIN_MAX_MEMORY, CHAIN_SHADOW or CHAIN_GIT_DIFF says of a setting."""
    return _variable(f"CHAIN_{name.upper()}")


def completion_wanted() -> bool:
    """Tell whether a shell that completes a command line asks for it, in the words of click."""
    return _variable("_CHAIN_COMPLETE") is not None


def key_from_environment() -> KeySource | None:
    """Return the key that CHAIN_KEY_FILE, CHAIN_KEY_COMMAND or CHAIN_PASSPHRASE names.

    Raises:
        ConfigError: more than one does; which of them was meant cannot be guessed safely.
    """
    return _one_source(
        _key_file(_variable("CHAIN_KEY_FILE"), "CHAIN_KEY_FILE"),
        _source("command", _variable("CHAIN_KEY_COMMAND"), "CHAIN_KEY_COMMAND"),
        _source("passphrase", _variable("CHAIN_PASSPHRASE"), "CHAIN_PASSPHRASE"),
    )


def key_from_user_config(settings: Mapping[str, object]) -> KeySource | None:
    """Return the key that `key_file` or `key_command` names in the user's settings.

    Raises:
        ConfigError: both are set, or one is no text.
    """
    return _one_source(
        _key_file(_text(settings, "key_file"), "key_file in the user's settings"),
        _source("command", _text(settings, "key_command"), "key_command in the user's settings"),
    )


def read_user_config() -> dict[str, object]:
    """Return the user's settings (`config.toml` in `config_dir()`), empty if there are none.

    Raises:
        ConfigError: the file is not TOML, or cannot be read.
    """
    path = config_dir() / "config.toml"
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ConfigError(
            f"the settings in {path} cannot be read: {error.strerror}",
            hint="name another place for the user's settings and key with CHAIN_CONFIG_DIR",
        ) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ConfigError(f"the settings in {path} are not TOML: {error}") from None


def plain_text_wanted() -> bool:
    """Tell whether the environment asks for output without colour: NO_COLOR (no-color.org), or a dumb terminal."""
    return _variable("NO_COLOR") is not None or _variable("TERM") == "dumb"


def host_name() -> str:
    """Return this host's name, to show to people; it decides nothing."""
    return socket.gethostname()


def user_name() -> str:
    """Return the user's name, or `uid N` where the system knows none (as in many containers)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return f"uid {os.getuid()}"


def now() -> datetime:
    """Return the time, with zone (UTC)."""
    return datetime.now(UTC)


def parse_size(size: int | str) -> int:
    """Return a number of bytes: an int as it is, or text such as `256MiB`, `1.5 GB`, `64k`, `4096`.

    `KiB` and a bare `k` are 1024 bytes, `kB` is 1000; upper and lower case are the same.

    Raises:
        InvalidInput: neither, or negative.
    """
    if isinstance(size, int) and not isinstance(size, bool) and size >= 0:
        return size
    found = _SIZE.fullmatch(size.strip().lower()) if isinstance(size, str) else None
    if not found or (found[3] and not found[2]):
        raise InvalidInput(f"{size!r} is no size", hint='write a number of bytes, or text such as "256MiB"')
    number, prefix, binary, unit = found.groups()
    base = 1000 if unit and not binary else 1024
    return int(Fraction(number) * base ** ("kmgtp".index(prefix) + 1 if prefix else 0))


def parse_duration(duration: float | str) -> float:
    """Return seconds: a number as it is, or text such as `90s`, `12h`, `1h30m`, `500ms`, `2w`.

    Raises:
        InvalidInput: neither, negative, or text without a unit.
    """
    if isinstance(duration, int | float) and not isinstance(duration, bool) and 0 <= duration < float("inf"):
        return float(duration)
    text = duration.replace(" ", "").lower() if isinstance(duration, str) else ""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise InvalidInput(f"{duration!r} is no duration", hint='write seconds, or text such as "30s", "12h", "1h30m"')
    return float(sum(float(number) * _SECONDS[unit] for number, unit in parts))


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None


def _path(text: str) -> Path:
    return Path(text).expanduser().absolute()


def _text(settings: Mapping[str, object], name: str) -> str | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} in the user's settings must be text, not {type(value).__name__}")
    return value or None


def _source(kind: Literal["file", "command", "passphrase"], value: str | None, origin: str) -> KeySource | None:
    return KeySource(kind, value, origin) if value else None


def _key_file(path: str | None, origin: str) -> KeySource | None:
    return _source("file", str(_path(path)) if path else None, origin)


def _one_source(*candidates: KeySource | None) -> KeySource | None:
    given = [source for source in candidates if source]
    if len(given) > 1:
        names = " and ".join(source.origin for source in given)
        raise ConfigError(f"{names} are set at once", hint="leave only the one that is meant")
    return given[0] if given else None


def _mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _file_system_type(device: int, mountinfo: str) -> str:
    """Return the type of the file system with this device number (`st_dev`), "" if it is not listed.

    Source: proc_pid_mountinfo(5): the third word is major:minor, the type follows " - ".
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        if left.split(" ")[2:3] == [number]:
            return right.split(" ")[0]
    return ""
