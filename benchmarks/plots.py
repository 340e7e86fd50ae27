"""Pictures of a run: `python -m benchmarks.run --from RESULTS.json --plots FOLDER`; needs matplotlib.

So do those of `python -m benchmarks.chains --from RESULTS.json --plots FOLDER`.
"""

from collections.abc import Collection
from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.chain_report import GB, ChainResults, Restoring, Storing, Subject
from benchmarks.jobs import Row
from benchmarks.report import OURS, Results, seconds, size, title

OUR_COLOR, OTHER_COLOR = "#1f6f8b", "#b9c4c9"
plt.rcParams["svg.fonttype"] = "none"  # letters stay letters: a third of the bytes


def draw(results: Results, folder: Path) -> list[Path]:
    """Write one picture of times for each job and workload, and one of bytes stored; return where."""
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for (job, workload), by_peer in results.lines().items():
        rows = list(by_peer.values())
        name = f"{job}-{workload}".replace(" ", "-")
        made.append(_bars(folder / f"{name}.svg", title(rows[0]), rows, [row.median for row in rows], stored=False))
        kept = [row for row in rows if row.stored_bytes is not None]
        if kept:
            values = [float(row.stored_bytes or 0) for row in kept]
            heading = f"stored by {title(rows[0])}"
            made.append(_bars(folder / f"{name}-stored.svg", heading, kept, values, stored=True))
    return made


def _bars(path: Path, heading: str, rows: list[Row], values: list[float], *, stored: bool) -> Path:
    """Draw a bar for each peer; the whisker goes from the fastest turn to the slowest."""
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.4 * len(rows)), layout="constrained")
    spread = None
    if not stored:
        spread = [[row.median - min(row.seconds) for row in rows], [max(row.seconds) - row.median for row in rows]]
    colors = [OUR_COLOR if row.peer == OURS else OTHER_COLOR for row in rows]
    bars = axes.barh([row.peer for row in rows], values, color=colors, xerr=spread, ecolor="#555555")
    axes.bar_label(bars, [size(int(value)) if stored else seconds(value) for value in values], padding=6)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("bytes" if stored else "seconds")
    axes.set_title(heading, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path


def draw_chains(results: ChainResults, folder: Path, only: Collection[str] = ()) -> list[Path]:
    """Write a picture for each chain of bytes over commits, of throughput, and of restore over depth; return where.

    Args:
        only: names of chains; none for all.
    """
    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for subject in results.subjects:
        if only and subject.chain not in only:
            continue
        storing, restoring = results.of(subject)
        name = subject.chain.replace(" ", "-")
        if storing:
            made.append(_bytes(folder / f"{name}-bytes.svg", subject, storing))
            made.append(_throughput(folder / f"{name}-throughput.svg", subject, storing))
        if restoring:
            made.append(_depths(folder / f"{name}-restore.svg", subject, restoring))
    return made


def _bytes(path: Path, subject: Subject, rows: list[Storing]) -> Path:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for row in rows:
        values = [value / 1e6 for value in row.stored_bytes]
        axes.plot(range(1, len(values) + 1), values, "-" if row.ours else "--", label=row.peer)
    axes.set(xlabel="commits", ylabel="MB stored", yscale="log")
    return _finished(path, subject.what, figure, axes)


def _throughput(path: Path, subject: Subject, rows: list[Storing]) -> Path:
    figure, axes = plt.subplots(figsize=(8, 0.8 + 0.4 * len(rows)), layout="constrained")
    values = [row.raw_bytes / max(row.seconds, 1e-9) / GB for row in rows]
    bars = axes.barh([row.peer for row in rows], values, color=[OUR_COLOR if row.ours else OTHER_COLOR for row in rows])
    axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=6)
    axes.invert_yaxis()
    axes.margins(x=0.2)
    axes.set_xlabel("GB/s of raw state")
    return _finished(path, f"storing {subject.what}", figure, axes)


def _depths(path: Path, subject: Subject, rows: list[Restoring]) -> Path:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name in dict.fromkeys((row.peer, row.part, row.cache) for row in rows):
        line = [row for row in rows if (row.peer, row.part, row.cache) == name]
        axes.plot([row.depth for row in line], [row.to_load for row in line], "o-", label=", ".join(name))
    axes.set(xlabel="differences in a row", ylabel="restore time / torch.load", ylim=(0, None))
    return _finished(path, f"restoring {subject.what}", figure, axes)


def _finished(path: Path, heading: str, figure: Figure, axes: Axes) -> Path:
    axes.set_title(heading, loc="left", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))  # beside the lines: they are many
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    return path
