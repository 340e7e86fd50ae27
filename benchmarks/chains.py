"""How small and how fast the chain of a training run is kept: every codec, next to what others would keep.

    python -m benchmarks.chains                       every chain in small sizes, twenty-odd minutes on two cores
    python -m benchmarks.chains --quick               tiny ones, to see that it works; the figures mean nothing
    python -m benchmarks.chains --full --only W1 W4   large ones; minutes to hours, up to 70 GB of disk
    python -m benchmarks.chains --only dense-gpt-k1   some chains, by name or by W1 to W8
    python -m benchmarks.chains --codecs small        some of none fast auto small
    python -m benchmarks.chains --traces FOLDER       keep the recorded states there, and use them again
    python -m benchmarks.chains --write               keep the run, and put its tables and pictures into docs
    python -m benchmarks.chains --from RESULTS.json   show (--plots, --write) a run that was kept

Every state that comes back is compared bit by bit before a figure is printed.  docs/benchmarks.md says what is
measured and how.
"""

import argparse
import importlib
import importlib.util
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.chain_report import OURS, ChainResults, Restoring, Storing, Subject, summary, table
from benchmarks.chain_workers import (
    BACKUPS,
    BOUND,
    BackupSaver,
    Child,
    Committer,
    Done,
    End,
    Forgetter,
    Restorer,
    Ruler,
    TorchLoader,
    TorchSaver,
)
from benchmarks.compare.rules import RULES
from benchmarks.jobs import WrongResult
from benchmarks.markdown import CHAINS_KEPT, ROOT, documents
from benchmarks.measure import settle_disk
from benchmarks.recorded import Trace, find
from benchmarks.report import Unusable, machine, today
from benchmarks.run import scratch
from benchmarks.traces import CHAINS, SEED, Chain

CODECS = ("none", "fast", "auto", "small")
SAVE, SYNC, LOAD = "torch.save", "torch.save + fsync", "torch.load"
RESTORE = "restore"  # W8
RESTORED = ("dense-gpt-k1", "dense-gpt-k10", "zipf-dense-k10")
PARTS, CACHES = ("whole", "layer", "tensor"), (False, True)
AGAIN = 4  # the first state is restored as often as every so many others, so that depth 0 has a median
PICTURES, PICTURED = ROOT / "docs" / "pictures", ("dense-gpt-k1", "bf16-rl-k1")  # in docs/benchmarks.md
LATEST = CHAINS_KEPT.with_name("chains-latest.json")
WORSE, MISUSED = 1, 2  # exit codes


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is: its size, a folder on the disk that is measured, and one for traces."""

    size: str
    folder: Path
    traces: Path
    codecs: tuple[str, ...]
    rules: tuple[str, ...]
    backups: tuple[str, ...]

    def record(self, chain: Chain) -> Trace:
        folder = self.traces / f"{chain.name}-{self.size}"
        trace = find(folder, chain.key(self.size))
        if trace is None:
            _say(f"{chain.name}: training ...")
            trace = chain.record(self.size, folder)
            settle_disk()
        return trace


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.chains",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = made.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="size", action="store_const", const="quick", default="default")
    sizes.add_argument("--full", dest="size", action="store_const", const="full")
    names = [*CHAINS, RESTORE]
    ids = sorted({chain.id for chain in CHAINS.values()} | {"W8"})
    made.add_argument("--only", nargs="+", choices=[*ids, *names], default=names, metavar="CHAIN")
    made.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    made.add_argument("--rules", nargs="*", choices=RULES, default=list(RULES), metavar="RULE", help=", ".join(RULES))
    made.add_argument(
        "--backups", nargs="*", choices=BACKUPS, default=list(BACKUPS), metavar="PROGRAM", help="borg restic"
    )
    made.add_argument("--bound", action="store_true", help="the entropy too where a target is reached")
    made.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary one)")
    made.add_argument("--traces", type=Path, help="recorded states stay there (default: they are deleted)")
    made.add_argument("--json", type=Path, default=LATEST, help="where the results go (default: %(default)s)")
    made.add_argument("--from", dest="kept", type=Path, metavar="RESULTS.json", help="show a run instead of making one")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the results, as SVG")
    made.add_argument("--write", action="store_true", help="keep the run, and renew the documents' tables")
    return made


def chosen(only: Sequence[str]) -> list[str]:
    """Return the names of the chains that are asked for, by name or id."""
    found = [chain.name for chain in CHAINS.values() if chain.name in only or chain.id in only]
    return found + [RESTORE] * bool({RESTORE, "W8"} & set(only))


@contextmanager
def children(makes: Mapping[str, tuple[Any, ...]]) -> Iterator[dict[str, Child]]:
    """Yield a process for each, which ends with the block."""
    made: dict[str, Child] = {}
    try:
        for name, (make, *arguments) in makes.items():
            made[name] = Child(make, *arguments)
        yield made
    finally:
        for child in made.values():
            child.close()


def in_turns(names: Sequence[str], turn: int) -> list[str]:
    """Return the names with another one first each turn."""
    first = turn % len(names)
    return [*names[first:], *names[:first]]


def measure(chain: Chain, place: Place) -> tuple[Subject, list[Storing], list[Restoring]]:
    """Commit a chain with every codec, and in turns save its states; restore all; let the rules store it.

    Raises:
        WrongResult: a state came back otherwise than it was.
    """
    trace = place.record(chain)
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        storing, commits = _store(chain, trace, place, Path(folder))
        restoring = _restore_all(chain, trace, Path(folder), commits)
        facts = _forget(trace, Path(folder), commits) if chain.branches else ()
    subject = Subject(
        *(chain.name, chain.id, chain.what, len(trace.moments), trace.moments[0].raw_bytes, chain.target, None, facts)
    )
    return subject, storing, restoring


def _store(chain: Chain, trace: Trace, place: Place, folder: Path) -> tuple[list[Storing], dict[str, dict[int, str]]]:
    makes: dict[str, tuple[Any, ...]] = {codec: (Committer, trace, folder / codec, codec) for codec in place.codecs}
    makes[SAVE], makes[SYNC] = ((TorchSaver, trace, folder / f"{sync}.pt", sync) for sync in (False, True))
    makes |= {name: (BackupSaver, trace, folder / name, name) for name in place.backups}
    _say(f"{chain.name}: commit ...")
    done: dict[str, list[Done]] = {name: [] for name in makes}
    with children(makes) as workers:
        for number in range(len(trace.moments)):
            for name in in_turns(list(workers), number):
                done[name].append(workers[name].ask(number))
        ends: dict[str, End] = {name: worker.ask(None) for name, worker in workers.items()}
    rows = [_storing(chain, trace, name, done, ends[name]) for name in makes]
    for rule in place.rules:
        _say(f"{chain.name}: {rule} ...")
        rows.append(_storing(chain, trace, rule, *_rule(trace, rule)))
    return rows, {codec: dict(enumerate(ends[codec].commits)) for codec in place.codecs}


def _rule(trace: Trace, rule: str) -> tuple[dict[str, list[Done]], End]:
    with children({rule: (Ruler, trace, rule)}) as workers:
        done = [workers[rule].ask(number) for number in range(len(trace.moments))]
        return {rule: done}, workers[rule].ask(None)


def _storing(chain: Chain, trace: Trace, name: str, done: Mapping[str, list[Done]], end: End) -> Storing:
    """Return what one peer took; a repository must have as many bytes of records as its commits said."""
    mine, ours = done[name], bool(end.commits)
    growth, total = [], 0
    for each in mine:
        growth.append(total := total + each.stored_bytes)
    if ours and total != end.record_bytes:
        raise WrongResult(f"{name}: commits say that they store {total} bytes, there are {end.record_bytes}")
    new = sum(each.new_bytes for each in mine)
    writes = name not in RULES
    return Storing(
        chain.name,
        f"{OURS} {name}" if ours else name,
        ours,
        trace.raw_bytes,
        trace.moments[0].raw_bytes,
        tuple(growth),
        end.disk_bytes or None,
        sum(each.delta_bytes for each in mine) / max(1, new) if ours else None,
        sum(each.seconds for each in mine),
        sum(each.cpu_seconds for each in mine),
        _typical(mine) / _typical(done[SAVE]) if writes else None,
        _typical(mine) / _typical(done[SYNC]) if writes else None,
        end.peak_bytes,
    )


def _typical(done: Sequence[Done]) -> float:
    return statistics.median(each.seconds for each in done[1:] or done)


def _restore_all(chain: Chain, trace: Trace, folder: Path, commits: Mapping[str, Mapping[int, str]]) -> list[Restoring]:
    """Restore every state of every repository, in an order that is random, and time that by depth."""
    _say(f"{chain.name}: restore ...")
    order = list(range(len(trace.moments)))
    random.Random(SEED).shuffle(order)
    order = [0, *(number for turn, other in enumerate(order) for number in ([other] if turn % AGAIN else [0, other]))]
    makes: dict[str, tuple[Any, ...]] = {
        codec: (Restorer, trace, folder / codec, ids) for codec, ids in commits.items()
    }
    taken = _read(makes, trace, folder, [(number, "whole", False) for number in order])
    return [row for codec in commits for row in _restoring(chain.name, codec, "whole", False, taken)]


Taken = dict[tuple[str, str, bool], list[Done]]  # by worker, part and whether it was cold


def _read(
    makes: dict[str, tuple[Any, ...]], trace: Trace, folder: Path, orders: Sequence[tuple[int, str, bool]]
) -> Taken:
    """Let everybody restore the same, in turns, once before it counts."""
    taken: Taken = {}
    with children({**makes, LOAD: (TorchLoader, trace, folder / "whole.pt")}) as workers:
        for worker in workers.values():
            worker.ask(0, "whole", False)
        for turn, (number, part, cold) in enumerate(orders):
            for name in in_turns(list(workers), turn):
                taken.setdefault((name, part, cold), []).append(workers[name].ask(number, part, cold))
    return taken


def _restoring(chain: str, codec: str, part: str, cold: bool, taken: Taken) -> Iterator[Restoring]:
    by_depth: dict[int, list[float]] = {}
    for each in taken[codec, part, cold]:
        by_depth.setdefault(each.depth, []).append(each.seconds)
    load = statistics.median(each.seconds for each in taken[LOAD, part, cold])
    zero = statistics.median(by_depth[0]) if 0 in by_depth else None
    for depth, seconds in sorted(by_depth.items()):
        median = statistics.median(seconds)
        ratio = median / zero if zero is not None else None
        cache = "cold" if cold else "warm"
        yield Restoring(chain, f"{OURS} {codec}", part, cache, depth, tuple(seconds), ratio, median / load)


def _forget(trace: Trace, folder: Path, commits: Mapping[str, Mapping[int, str]]) -> tuple[tuple[str, str], ...]:
    """Forget and collect in every repository."""
    facts: list[tuple[str, str]] = []
    for codec, ids in commits.items():
        with children({codec: (Forgetter, trace, folder / codec, ids)}) as workers:
            facts += [(f"{codec}, {what}", found) for what, found in workers[codec].ask()]
    return tuple(facts)


def restore(chain: Chain, place: Place) -> tuple[Subject, list[Storing], list[Restoring]]:
    """Restore random states of a chain: whole, one layer, one tensor; warm and cold."""
    trace = place.record(chain)
    name, codec = f"{RESTORE} {chain.name}", place.codecs[-1]
    _say(f"{name} ...")
    source = random.Random(SEED)
    turns = max(len(trace.moments), 8)
    orders = [
        (number, part, cold)
        for turn in range(turns)
        for number in [source.randrange(len(trace.moments)) if turn % AGAIN else 0]
        for cold in CACHES
        for part in PARTS
    ]
    with tempfile.TemporaryDirectory(dir=place.folder) as folder:
        with children({codec: (Committer, trace, Path(folder) / codec, codec)}) as workers:
            for number in range(len(trace.moments)):
                workers[codec].ask(number)
            commits = dict(enumerate(workers[codec].ask(None).commits))
        taken = _read({codec: (Restorer, trace, Path(folder) / codec, commits)}, trace, Path(folder), orders)
    rows = [row for cold in CACHES for part in PARTS for row in _restoring(name, codec, part, cold, taken)]
    states = len(trace.moments), trace.moments[0].raw_bytes
    return Subject(name, "W8", f"random states of {chain.what}", *states, None, None, ()), [], rows


def with_bound(subject: Subject, storing: Sequence[Storing], trace: Trace, always: bool) -> Subject:
    """Return a chain with the entropy of its differences, where its target is missed."""
    ours = max(row.later for row in storing if row.ours)
    if subject.target is None or (ours >= subject.target and not always):
        return subject
    _say(f"{subject.chain}: entropy ...")
    done, _ = _rule(trace, BOUND)
    raw = sum(moment.raw_bytes for moment in trace.moments[1:])
    return replace(subject, bound=raw / sum(each.stored_bytes for each in done[BOUND][1:]))


Job = Callable[[Chain, Place], tuple[Subject, list[Storing], list[Restoring]]]


def jobs(names: Sequence[str]) -> Iterator[tuple[Job, Chain]]:
    """Yield what to do, in order."""
    for name in names:
        if name == RESTORE:
            yield from ((restore, CHAINS[chain]) for chain in RESTORED)
        else:
            yield measure, CHAINS[name]


def run(options: argparse.Namespace) -> ChainResults:
    """Measure all that is asked for, printing each chain when it is done."""
    versions = {rule: RULES[rule].version() for rule in options.rules}
    versions |= {name: BACKUPS[name].version() for name in options.backups}
    missing = tuple(name for name, version in versions.items() if version is None)
    for name in missing:
        print(f"{name} is not installed: left out")
    there = {name: version for name, version in versions.items() if version is not None}
    rules, backups = ([name for name in asked if name in there] for asked in (options.rules, options.backups))
    subjects: list[Subject] = []
    storing: list[Storing] = []
    restoring: list[Restoring] = []
    with scratch(options.folder) as folder:
        peers = tuple(options.codecs), tuple(rules), tuple(backups)
        place = Place(options.size, folder, options.traces or folder / "traces", *peers)
        results = ChainResults(options.size, today(), machine(folder), there, missing, (), (), ())
        for job, chain in jobs(chosen(options.only)):
            subject, stored, restored = job(chain, place)
            if stored:
                subject = with_bound(subject, stored, place.record(chain), options.bound)
            subjects.append(subject)
            storing += stored
            restoring += restored
            one = replace(results, subjects=(subject,), storing=tuple(stored), restoring=tuple(restored))
            print("\n".join(table(one, subject)), end="\n\n", flush=True)
            if not options.traces:
                shutil.rmtree(place.traces)
    return replace(results, subjects=tuple(subjects), storing=tuple(storing), restoring=tuple(restoring))


def show(results: ChainResults) -> None:
    for subject in results.subjects:
        print("\n".join(table(results, subject)), end="\n\n", flush=True)
    print("\n".join(summary(results)))


def obtain(options: argparse.Namespace) -> ChainResults:
    """Return the run that is asked for: a kept one, or a new one."""
    if options.kept:
        if not options.kept.is_file():
            raise Unusable(f"there is no {options.kept}")
        results = ChainResults.from_json(options.kept.read_text())
        show(results)
        return results
    started = time.perf_counter()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; {options.size} sizes\n")
    results = run(options)
    print("\n".join(summary(results)))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(results.to_json())
    print(f"{time.perf_counter() - started:.0f} s; kept in {options.json}")
    return results


def write(results: ChainResults) -> None:
    """Keep a run as the one that the documents show."""
    if results.size == "quick":
        raise Unusable("a quick run says nothing: it is not kept")
    plot(results, PICTURES, PICTURED)
    CHAINS_KEPT.write_text(results.to_json())
    for path, text in documents().items():
        path.write_text(text)


def plot(results: ChainResults, folder: Path, only: Sequence[str] = ()) -> None:
    if not importlib.util.find_spec("matplotlib"):
        raise Unusable("pictures need matplotlib: pip install 'chainstore[bench]'")
    drawing = importlib.import_module("benchmarks.plots")  # slow to load, and optional
    for path in drawing.draw_chains(results, folder, only):
        print(path)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        results = obtain(options)
        if options.plots:
            plot(results, options.plots)
        if options.write:
            write(results)
    except WrongResult as error:
        print(f"wrong: {error}", file=sys.stderr)
        return WORSE
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
