"""Names: which arrays of a state a name could mean that an optimizer has for a parameter.

A name is dotted; in the state its parts may be spread over keys, wrappers may stand in between, and either side may
have more in front of it.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Generic, TypeVar

from chainstore.model.paths import Attr, Path
from chainstore.ops.fitting import WRAPPERS

T = TypeVar("T")

_WRAPPERS: Final = WRAPPERS | {"_fsdp_wrapped_module", "_checkpoint_wrapped_module"}
_MOST: Final = 4  # a name that could mean more than these means none


class Names(Generic[T]):
    """What names mean.

    Args:
        named: path -> what has it, in walk order; a thing may have several.
        wanted: the names that will be asked for.
    """

    def __init__(self, named: Iterable[tuple[Path, T]], wanted: Iterable[str]) -> None:
        ends = {end for name in wanted for end in _ends(_parts(name))}
        self._found: dict[str, list[T]] = {}
        if ends:
            for path, thing in named:
                for end in _ends(_parts_of(path)):
                    if end in ends:
                        self._found.setdefault(end, []).append(thing)

    def __getitem__(self, name: str) -> Sequence[T]:
        """Return what `name` could mean, by the longest end of it that means anything."""
        for end in _ends(_parts(name)):
            found = self._found.get(end)
            if found is not None:
                return found if len(found) <= _MOST else ()
        return ()


def _parts(name: str) -> list[str]:
    return [part for part in name.split(".") if part not in _WRAPPERS]


def _parts_of(path: Path) -> list[str]:
    return [part for key in path if type(key) is not Attr for part in _parts(str(key))]


def _ends(parts: Sequence[str]) -> Iterator[str]:
    """Yield a name, and it without its first part, and so on."""
    for first in range(len(parts)):
        yield ".".join(parts[first:])
