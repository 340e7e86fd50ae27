"""How fast chainstore is next to what people use instead, and how much it stores: in one run, interleaved.

    python -m benchmarks.run                          everything, under six minutes on two cores
    python -m benchmarks.run --quick                  small sizes, to see that it works; the figures mean nothing
    python -m benchmarks.run --only commit restore    some jobs: commit restore open diff partial log
    python -m benchmarks.run --workloads dense        some states: dense lora small history
    python -m benchmarks.run --against OLD.json       and compare the ratios with an older run; exit code 1 if worse
    python -m benchmarks.run --write                  keep the run as benchmarks/results/baseline.json, and put its
                                                      tables into README.md and docs/benchmarks.md
    python -m benchmarks.run --readme                 print the README's table of the kept run; runs nothing
    python -m benchmarks.run --from RESULTS.json      show (--against, --plots, --readme, --write) a run that was kept

docs/benchmarks.md says what is measured and how.
"""

import argparse
import gc
import importlib.util
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.compare.backup import Borg, Restic
from benchmarks.compare.chain import Chain
from benchmarks.compare.files import Dcp, Safetensors, TorchSave, TorchSaveSync
from benchmarks.compare.peer import Peer
from benchmarks.jobs import JOBS, PLAN, Arena, Row, Turns, WrongResult
from benchmarks.markdown import BASELINE, documents, readme
from benchmarks.report import Results, Unusable, machine, regressions, table, today
from benchmarks.workloads import QUICK, WORKLOADS, Sizes

PEERS: Sequence[type[Peer]] = (Chain, TorchSave, TorchSaveSync, Safetensors, Dcp, Borg, Restic)
LATEST = BASELINE.with_name("latest.json")
WORSE, MISUSED = 1, 2  # exit codes


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--quick", action="store_true", help="small sizes and few turns, under a minute")
    made.add_argument("--only", nargs="+", choices=JOBS, default=list(JOBS), metavar="JOB")
    made.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="STATE")
    names = [peer.name for peer in PEERS]
    made.add_argument("--peers", nargs="+", choices=names, default=names, metavar="PEER", help=", ".join(names))
    made.add_argument("--turns", type=int, help="times that each job is done (default 5, 2 with --quick)")
    made.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary one)")
    made.add_argument("--json", type=Path, default=LATEST, help="where the results go (default: %(default)s)")
    made.add_argument("--from", dest="kept", type=Path, metavar="RESULTS.json", help="show a run instead of making one")
    made.add_argument("--against", type=Path, metavar="OLD.json", help="exit code 1 if a ratio got worse")
    made.add_argument("--plots", type=Path, metavar="FOLDER", help="draw the results, as SVG")
    made.add_argument("--readme", action="store_true", help="print Markdown; of the kept run, if none is asked for")
    made.add_argument("--write", action="store_true", help="keep the run, and renew the documents' tables")
    return made


def chosen_peers(names: Sequence[str]) -> tuple[list[type[Peer]], tuple[str, ...]]:
    """Return the peers that are asked for and installed, and the names of those that are not."""
    wanted = [peer for peer in PEERS if peer.name in names]
    missing = tuple(peer.name for peer in wanted if peer.version() is None)
    return [peer for peer in wanted if peer.name not in missing], missing


def run_workload(
    name: str, jobs: Sequence[str], peers: Sequence[type[Peer]], sizes: Sizes, turns: Turns, base: Path
) -> list[Row]:
    """Do the jobs on one workload; every result is compared with the live state before a time is returned.

    Raises:
        WrongResult: a peer gave back something else than it got.
    """
    chosen = [job for job in PLAN[name] if job in jobs]
    able = [peer for peer in peers if any(job in peer.can for job in chosen)]
    if not chosen:
        return []
    workload = WORKLOADS[name](sizes)
    arena = Arena(workload, [kind(base / kind.__name__) for kind in able], turns)
    try:
        rows: list[Row] = []
        for job in chosen:
            print(f"{name}: {job} ...", file=sys.stderr, flush=True)
            rows += JOBS[job](arena)
        if "commit" in chosen and "restore" not in chosen:
            arena.check()
    finally:
        for peer in arena.peers:
            peer.rest()
    return rows


def run(options: argparse.Namespace, peers: Sequence[type[Peer]], missing: tuple[str, ...]) -> Results:
    """Do all that is asked for, printing each workload when it is done."""
    sizes = QUICK if options.quick else Sizes()
    turns = Turns(2, 1) if options.quick else Turns()
    if options.turns:
        turns = Turns(options.turns, min(options.turns, turns.slow))
    rows: list[Row] = []
    gc.freeze()  # what torch imported is looked through at no turn: 0.2 s each
    with scratch(options.folder) as folder:
        where = machine(folder)
        for name in options.workloads:
            with tempfile.TemporaryDirectory(dir=folder) as base:
                more = run_workload(name, options.only, peers, sizes, turns, Path(base))
            rows += more
            show(Results(options.quick, "", {}, {}, (), tuple(more)))
    versions = {peer.name: peer.version() or "" for peer in peers}
    return Results(options.quick, today(), where, versions, missing, tuple(rows))


def show(results: Results) -> None:
    for by_peer in results.lines().values():
        print("\n".join(table(list(by_peer.values()))), end="\n\n", flush=True)


@contextmanager
def scratch(base: Path | None) -> Iterator[Path]:
    """Yield a folder for everything, and keep settings and keys out of the user's home meanwhile."""
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=base) as folder:
        had = os.environ.get("CHAIN_CONFIG_DIR")
        os.environ["CHAIN_CONFIG_DIR"] = str(Path(folder) / "settings")
        try:
            yield Path(folder)
        finally:
            del os.environ["CHAIN_CONFIG_DIR"]
            if had is not None:
                os.environ["CHAIN_CONFIG_DIR"] = had


def obtain(options: argparse.Namespace) -> Results:
    """Return the run that is asked for: a kept one, or a new one."""
    kept = options.kept or (BASELINE if options.readme and not options.write else None)
    if kept:
        return read(kept)
    peers, missing = chosen_peers(options.peers)
    for name in missing:
        print(f"{name} is not installed: left out")
    started = time.perf_counter()
    print(f"torch {torch.__version__}, {os.cpu_count()} cores; quick sizes: {'yes' if options.quick else 'no'}\n")
    results = run(options, peers, missing)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(results.to_json())
    print(f"{time.perf_counter() - started:.0f} s; kept in {options.json}")
    return results


def read(path: Path) -> Results:
    """Read a run that was kept."""
    if not path.is_file():
        raise Unusable(f"there is no {path}")
    return Results.from_json(path.read_text())


def judge(old: Path, new: Results) -> int:
    """Print what got worse since an older run and return the exit code."""
    worse = regressions(read(old), new)
    print("\n".join(f"worse: {text}" for text in worse) or "nothing got worse")
    return WORSE if worse else 0


def write(results: Results) -> None:
    """Keep a run as the one that the documents show."""
    if results.quick:
        raise Unusable("a quick run says nothing about speed: it is not kept")
    BASELINE.write_text(results.to_json())
    for path, text in documents().items():
        path.write_text(text)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parser().parse_args(arguments)
    try:
        results = obtain(options)
        if options.kept and not options.readme:
            show(results)
        if options.readme:
            print(readme(results), end="")
        if options.write:
            write(results)
        if options.plots:
            plot(results, options.plots)
        return judge(options.against, results) if options.against else 0
    except WrongResult as error:
        print(f"wrong: {error}", file=sys.stderr)
        return WORSE
    except Unusable as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED


def plot(results: Results, folder: Path) -> None:
    if not importlib.util.find_spec("matplotlib"):
        raise Unusable("--plots needs matplotlib: pip install 'chainstore[bench]'")
    drawing = importlib.import_module("benchmarks.plots")  # slow to load, and optional
    for path in drawing.draw(results, folder):
        print(path)


if __name__ == "__main__":
    raise SystemExit(main())
