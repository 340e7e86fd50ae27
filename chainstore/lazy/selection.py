"""Selection: which paths of a snapshot `select` and `exclude` leave."""

from collections.abc import Callable, Sequence

from chainstore.model.paths import Path, compile_glob

Globs = str | Sequence[str] | None


def selection(select: Globs, exclude: Globs) -> Callable[[Path], bool] | None:
    """Return a test for paths: some `select` matches and no `exclude` does; None where everything is wanted."""
    if select is None and exclude is None:
        return None
    wanted = [compile_glob(glob) for glob in listed(select)] if select is not None else None
    unwanted = [compile_glob(glob) for glob in listed(exclude)]

    def test(path: Path) -> bool:
        chosen = wanted is None or any(match(path) for match in wanted)
        return chosen and not any(match(path) for match in unwanted)

    return test


def listed(globs: Globs) -> Sequence[str]:
    """Return one glob, several or none as a list."""
    return [globs] if isinstance(globs, str) else globs or []
