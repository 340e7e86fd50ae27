"""Collecting: garbage of a repository taken away, by its own policy first; and history made smaller."""

from dataclasses import replace

from chainstore import config
from chainstore.errors import InvalidInput, ReadOnly
from chainstore.observe import Notice
from chainstore.ops.gc import collect
from chainstore.ops.gc_report import GcReport
from chainstore.ops.repack import RepackReport
from chainstore.ops.repack import repack as choose_anew
from chainstore.repository import forgetting
from chainstore.repository.handles import Handle


def gc(handle: Handle, dry_run: bool, forget: bool) -> GcReport:
    """Drop what the stored policy drops, then take away what nothing leads to; see `Repository.gc`."""
    _check_writable(handle)
    dropped = _forget(handle, dry_run) if forget and forgetting.stored_retention(handle) is not None else 0
    return replace(_collect(handle, dry_run), forgotten=dropped)


def repack(handle: Handle, dry_run: bool) -> RepackReport:
    """Choose bases and codecs anew for all history; see `Repository.repack`."""
    _check_writable(handle)
    report = RepackReport(dry_run)
    if not dry_run:
        report.freed_bytes += _collect(handle, False).freed_bytes  # what nothing leads to is not worth coding
    choose_anew(handle.db, report, _now(), handle.settings.observer)
    if not dry_run:
        report.freed_bytes += _collect(handle, False).freed_bytes
    return report


def _collect(handle: Handle, dry_run: bool) -> GcReport:
    return collect(handle.db, dry_run=dry_run, since=_now(), observer=handle.settings.observer)


def _now() -> str:
    return f"{config.now():%Y-%m-%d %H:%M:%S}"


def _check_writable(handle: Handle) -> None:
    if handle.settings.readonly:
        raise ReadOnly(f"{handle.settings.root} was opened for reading", hint="open it without readonly=True")


def _forget(handle: Handle, dry_run: bool) -> int:
    """Drop what the stored policy drops; one that makes no sense for what is there now drops nothing, and says so."""
    try:
        return len(forgetting.forget(handle, None, None, dry_run, False).dropped)
    except InvalidInput as error:
        handle.settings.observer(Notice("retention", f"the repository's own policy dropped nothing: {error}"))
        return 0
