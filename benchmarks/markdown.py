"""The tables of README.md and docs/benchmarks.md, made from one kept run; a test compares them with it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.chain_report import (
    RESTORING_HEAD,
    STORING_HEAD,
    SUMMARY_HEAD,
    ChainResults,
    heading,
    restoring_cells,
    storing_cells,
    summary_rows,
    verdict,
)
from benchmarks.jobs import Row
from benchmarks.report import OURS, Results, seconds, size, title, worst

ROOT = Path(__file__).resolve().parent.parent
BASELINE = ROOT / "benchmarks" / "results" / "baseline.json"
CHAINS_KEPT = BASELINE.with_name("chains.json")
CHAIN_MARKS = ("<!-- chains: begin (made by `python -m benchmarks.chains --write`) -->", "<!-- chains: end -->")
MARKS = ("<!-- benchmarks: begin (made by `python -m benchmarks.run --write`) -->", "<!-- benchmarks: end -->")
HEADLINES = [("commit", "dense"), ("commit", "lora"), ("restore", "dense"), ("restore", "lora")]
PEERS = ("torch.save", "torch.save + fsync", "safetensors", "DCP", "borg", "restic")
JOBS = {
    "commit": "commit",
    "restore": "restore",
    "open": "open and list",
    "partial": "open and read one tensor",
    "partial rows": "open and read 16 rows",
    "diff": "name what changed",
    "log": "read the history",
}


def readme(results: Results) -> str:
    """Return the README's table: what people ask for first, and the two jobs at which we are worst."""
    lines = results.lines()
    chosen = [line for line in HEADLINES if line in lines]
    weak = [line for line in worst(results) if line not in chosen]
    shown = chosen + weak + [line for line in worst(results, len(lines)) if line not in chosen + weak]
    shown = shown[: len(chosen) + 2]
    peers = [peer for peer in PEERS if any(peer in lines[line] for line in shown)]
    out = [*_head(["", OURS, *peers])]
    for line in shown:
        rows = lines[line]
        first = next(iter(rows.values()))
        mark = "" if line in chosen else ", *where we do worst*"
        cells = [_times(rows.get(peer), rows[OURS]) for peer in peers]
        out.append(_line([f"{JOBS[line[0]]}: {first.what}{mark}", f"**{seconds(rows[OURS].median)}**", *cells]))
        if rows[OURS].stored_bytes is not None:
            cells = [_bytes(rows.get(peer)) for peer in peers]
            out.append(_line([f"- stored, of {size(first.raw_bytes)}", f"**{_bytes(rows[OURS])}**", *cells]))
    return "\n".join([*out, "", _place(results)]) + "\n"


def everything(results: Results) -> str:
    """Return all rows of a run, a table for each job."""
    out: list[str] = [_place(results), ""]
    for rows in results.lines().values():
        out += [f"**{title(next(iter(rows.values())))}**", ""]
        out += [*_head(["peer", "median", "min", "max", "turns", "CPU", "peak memory", "stored", "time / ours"])]
        out += [_line(_full(row, rows)) for row in rows.values()]
        out.append("")
    return "\n".join(out)


def documents() -> dict[Path, str]:
    """Return the documents that hold tables, each with the text it should have now."""
    results = Results.from_json(BASELINE.read_text())
    made = {ROOT / "README.md": readme(results), ROOT / "docs" / "benchmarks.md": everything(results)}
    renewed = {path: _renewed(path.read_text(), table, MARKS) for path, table in made.items()}
    if CHAINS_KEPT.exists():
        table = chains(ChainResults.from_json(CHAINS_KEPT.read_text()))
        renewed[ROOT / "docs" / "benchmarks.md"] = _renewed(
            renewed[ROOT / "docs" / "benchmarks.md"], table, CHAIN_MARKS
        )
    return renewed


def chains(results: ChainResults) -> str:
    """Return all that a run over chains found: a table over all, then two for each."""
    where = results.machine
    versions = ", ".join(f"{name} ({version})" for name, version in results.versions.items())
    place = ", ".join(where[name] for name in ("processor", "memory", "file system"))
    out = [f"{results.size.capitalize()} sizes, {results.date}: {place}; Python {where['python']}; {versions}."]
    if results.skipped:
        out.append(f"Not installed there: {', '.join(results.skipped)}.")
    out += ["", *_head(list(SUMMARY_HEAD)), *(_line(row) for row in summary_rows(results))]
    for subject in results.subjects:
        storing, restoring = results.of(subject)
        out += ["", f"**{heading(subject)}**", ""]
        if storing:
            out += [*_head(list(STORING_HEAD)), *(_line(storing_cells(row)) for row in storing), ""]
        if restoring:
            out += [*_head(list(RESTORING_HEAD)), *(_line(restoring_cells(row)) for row in restoring), ""]
        out += [f"* {text}" for text in verdict(subject, storing)]
    return "\n".join(out) + "\n"


def _renewed(document: str, table: str, marks: tuple[str, str]) -> str:
    before, _, rest = document.partition(marks[0] + "\n")
    _, _, after = rest.partition(marks[1])
    return f"{before}{marks[0]}\n{table}{marks[1]}{after}"


def _full(row: Row, rows: Mapping[str, Row]) -> list[str]:
    ratio = f"{row.median / rows[OURS].median:.2f}" if OURS in rows else ""
    span = [seconds(row.median), seconds(min(row.seconds)), seconds(max(row.seconds)), str(len(row.seconds))]
    return [row.peer, *span, seconds(row.cpu_seconds), size(row.peak_bytes), _bytes(row), ratio]


def _times(row: Row | None, ours: Row) -> str:
    """Say a time, and how many times ours it is."""
    return f"{seconds(row.median)} ({_ratio(row.median / ours.median)})" if row else "-"


def _ratio(value: float) -> str:
    if value >= 10:
        return f"{value:.0f}x"
    return f"{value:.2f}x" if value >= 0.1 else f"{value:.3f}x"


def _bytes(row: Row | None) -> str:
    return "-" if row is None or row.stored_bytes is None else size(row.stored_bytes)


def _place(results: Results) -> str:
    where = results.machine
    quick = " **Small sizes: these figures say nothing about speed.**" if results.quick else ""
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items() if "fsync" not in name)
    place = ", ".join(where[name] for name in ("processor", "memory", "file system"))
    return f"Median of interleaved turns, {results.date}: {place}; Python {where['python']}, {versions}.{quick}"


def _head(names: list[str]) -> Iterator[str]:
    yield _line(names)
    yield "|" + "---|" * len(names)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
