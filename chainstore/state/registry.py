"""Types that users taught chainstore: how to take their objects apart and put them together again.

A stored object names its type and the version of its encoding, and never a module to import: what is not
registered here when it is loaded is not loaded.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chainstore.errors import InvalidInput, Unsupported

Encode = Callable[[Any], object]
Decode = Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Registration:
    """One version of how objects of one type are stored.

    Attributes:
        encode, decode: both None for a tensor subclass that takes itself apart (`__tensor_flatten__`).
    """

    type: type
    name: str
    version: int
    encode: Encode | None
    decode: Decode | None


class Registry:
    """Registrations by type (the newest version, to store with) and by stored name and version (to load with).

    Safe to share between threads: each change is one assignment into a dict.
    """

    def __init__(self) -> None:
        self._by_type: dict[type, Registration] = {}
        self._by_name: dict[tuple[str, int], Registration] = {}

    def register(
        self,
        type: type,
        encode: Encode | None = None,
        decode: Decode | None = None,
        version: int = 1,
        *,
        name: str | None = None,
    ) -> None:
        """Store objects of exactly `type` as what `encode` makes of them.

        Registering the same name and version again replaces what was there (a notebook cell that runs twice).
        Objects are stored with the highest version; keep the older ones registered to load what they wrote.

        Args:
            encode: given an object, returns any state that can be stored; it may hold arrays.
            decode: given that state, returns the object.  Leave out both for a tensor subclass that defines
                `__tensor_flatten__` and `__tensor_unflatten__`.
            version: of the encoding, at least 1; raise it when `encode` returns something new.
            name: what is stored instead of the type's module and qualified name.

        Raises:
            InvalidInput: `type` is no type, only one of `encode` and `decode` was given, or the version is below 1.
        """
        stored_name = _check(type, encode, decode, version, name)
        registration = Registration(type, stored_name, version, encode, decode)
        self._by_name[stored_name, version] = registration
        current = self._by_type.get(type)
        if current is None or current.version <= version:
            self._by_type[type] = registration

    def by_type(self, type: type) -> Registration | None:
        """Return how objects of exactly `type` are stored, None when nobody said."""
        return self._by_type.get(type)

    def by_name(self, name: str, version: int) -> Registration:
        """Return what was registered under a stored name and version.

        Raises:
            Unsupported: nothing was.
        """
        found = self._by_name.get((name, version))
        if found is None:
            known = sorted(number for known, number in self._by_name if known == name)
            versions = f" (registered: version {', '.join(map(str, known))})" if known else ""
            raise Unsupported(
                f"this snapshot holds a {name!r}, version {version}, and no such type is registered{versions}",
                hint="call cs.register(type, encode, decode, version=...) for it before loading",
            )
        return found


def _check(type: object, encode: object, decode: object, version: object, name: str | None) -> str:
    """Return the name to store; InvalidInput when the arguments of a registration make no sense."""
    if not isinstance(type, _TYPE):
        raise InvalidInput(f"register takes a type first, not {type!r}")
    if (encode is None) != (decode is None):
        raise InvalidInput(f"register {type.__qualname__}: give both encode and decode, or neither")
    if not all(part is None or callable(part) for part in (encode, decode)):
        raise InvalidInput(f"register {type.__qualname__}: encode and decode must be callable")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise InvalidInput(f"register {type.__qualname__}: version must be an int of at least 1, not {version!r}")
    return name if name is not None else f"{type.__module__}.{type.__qualname__}"


_TYPE = type  # arguments above are called `type`, as users write them

REGISTRY = Registry()  # behind cs.register: one for the process
