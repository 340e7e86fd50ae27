"""Collecting: garbage of a repository taken away, by its own policy first."""

from dataclasses import replace

from chainstore import config
from chainstore.errors import InvalidInput, ReadOnly
from chainstore.observe import Notice
from chainstore.ops.gc import collect
from chainstore.ops.gc_report import GcReport
from chainstore.repository import forgetting
from chainstore.repository.handles import Handle


def gc(handle: Handle, dry_run: bool, forget: bool) -> GcReport:
    """Drop what the stored policy drops, then take away what nothing leads to; see `Repository.gc`."""
    if handle.settings.readonly:
        raise ReadOnly(f"{handle.settings.root} was opened for reading", hint="open it without readonly=True")
    dropped = _forget(handle, dry_run) if forget and forgetting.stored_retention(handle) is not None else 0
    since = f"{config.now():%Y-%m-%d %H:%M:%S}"
    report = collect(handle.db, dry_run=dry_run, since=since, observer=handle.settings.observer)
    return replace(report, forgotten=dropped)


def _forget(handle: Handle, dry_run: bool) -> int:
    """Drop what the stored policy drops; one that makes no sense for what is there now drops nothing, and says so."""
    try:
        return len(forgetting.forget(handle, None, None, dry_run, False).dropped)
    except InvalidInput as error:
        handle.settings.observer(Notice("retention", f"the repository's own policy dropped nothing: {error}"))
        return 0
