"""Pictures of a run: `python -m benchmarks.run --from RESULTS.json --plots FOLDER`; needs matplotlib."""

from pathlib import Path

import matplotlib
from matplotlib import pyplot as plt

from benchmarks.jobs import Row
from benchmarks.report import OURS, Results, seconds, size, title

OUR_COLOR, OTHER_COLOR = "#1f6f8b", "#b9c4c9"


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
