"""`chain diff`"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import click

from chainstore.cli import app as cli
from chainstore.cli import exits
from chainstore.cli.app import App
from chainstore.cli.output import Output
from chainstore.cli.records import commit_fields, metrics_text, plain_json, step_text
from chainstore.cli.wording import first_line, printable, shape, size, table
from chainstore.model.commit import Commit
from chainstore.model.spec import Spec
from chainstore.repository import ANOMALY_KINDS, DIFF_ORDER, Diff, TensorDiff, ValueDiff

_COLORS = {"added": "green", "removed": "red", "reshaped": "yellow"}
_NUMBERS = (
    *("norm_a", "norm_b", "norm_diff", "relative", "max_abs_a", "max_abs_b", "max_abs_diff", "cosine"),
    *("nan_a", "nan_b", "inf_a", "inf_b"),
)


def kinds(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[str, ...]:
    """Return the kinds of anomaly that `nan,inf,explode` names."""
    found = tuple(kind.strip() for kind in (text or "").split(",") if kind.strip())
    unknown = [kind for kind in found if kind not in ANOMALY_KINDS]
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(ANOMALY_KINDS)}")
    return found


@cli.command(
    "diff",
    examples=[
        "chain diff main~1",
        "chain diff step:1000 step:1200 --select 'model/**' --top 10",
        "chain diff main~1 main --fail-on nan,inf,explode",
    ],
    codes=(*exits.READS, exits.ANOMALY),
)
@click.argument("a")
@click.argument("b", required=False)
@click.option("--select", metavar="GLOB", multiple=True, help="Only paths that match (repeat).")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show the first N tensors only.")
@click.option("--sort", type=click.Choice(DIFF_ORDER), default="rel", help="Order of the tensors; rel by default.")
@click.option(
    "--fail-on", metavar="KINDS", callback=kinds, help="End with 5 where b holds one of these: nan,inf,explode."
)
@click.option("--unchanged", is_flag=True, help="Measure tensors that are equal, too.")
@click.option("--no-norms", is_flag=True, help="Say what changed, not by how much; reads next to nothing.")
@click.pass_obj
def command(
    app: App,
    a: str,
    b: str | None,
    select: tuple[str, ...],
    top: int | None,
    sort: str,
    fail_on: tuple[str, ...],
    unchanged: bool,
    no_norms: bool,
) -> None:
    """Compare commit A with commit B (by default HEAD): A is the old side, B the new. `A..B` is the same as `A B`.

    Each line says of a tensor: relative change |b - a| / |a|, L2 norms of a and b, largest absolute difference, NaN and
    Inf in b, dtype and shape. Tensors with NaN or Inf stand first. Only what changed is read.

    A float tensor explodes if it changed by more than 10 times its norm, or its largest value grew more than 100 times.
    """
    cli.check_exclusive(no_norms=no_norms, fail_on=fail_on)
    cli.check_exclusive(no_norms=no_norms, unchanged=unchanged)
    if b is None and ".." in a:
        a, _, b = a.partition("..")
    with app.open(readonly=True) as repo:
        diff = repo.diff(a or "HEAD", b or "HEAD", select=list(select) or None, norms=not no_norms, unchanged=unchanged)
    found = diff.anomalies(*fail_on) if fail_on else ()
    if found:
        app.exit_code = exits.ANOMALY
    ranked = [*diff.ranked(sort), *(tensor for tensor in diff.tensors if unchanged and tensor.status == "equal")]
    shown = ranked[:top]
    if app.out.json:
        app.out.result("chain.diff/1", _fields(diff, shown, fail_on), "")
        return
    app.out.result("", {}, _lines(app.out, diff, shown, len(ranked) - len(shown)))
    for anomaly in found:
        app.out.say(f"{anomaly.kind}: {anomaly.path}: {anomaly.why}")


def _fields(diff: Diff, shown: Sequence[TensorDiff], fail_on: Sequence[str]) -> dict[str, object]:
    found = diff.anomalies() if diff.measured else ()
    return {
        "a": commit_fields(diff.a),
        "b": commit_fields(diff.b),
        "same": diff.same,
        "counts": dict(Counter(tensor.status for tensor in diff.tensors)),
        "tensors": [_tensor_fields(tensor) for tensor in shown],
        "values": [_value_fields(value) for value in diff.values],
        "metrics": [_value_fields(value) for value in diff.metrics],
        "meta": [_value_fields(value) for value in diff.meta],
        "files": [
            {"name": file.name, "status": file.status, "old_bytes": file.old_bytes, "new_bytes": file.new_bytes}
            for file in diff.files
        ],
        "anomalies": [{"kind": a.kind, "path": a.path, "why": a.why, "fails": a.kind in fail_on} for a in found],
        "read_bytes": diff.read_bytes,
    }


def _tensor_fields(tensor: TensorDiff) -> dict[str, object]:
    """Return a tensor for `--json`; a number that is not finite is null, and named in `nonfinite`."""
    numbers = {name: getattr(tensor, name) for name in _NUMBERS}
    odd = {name: str(x) for name, x in numbers.items() if isinstance(x, float) and not math.isfinite(x)}
    fields: dict[str, object] = {
        "path": tensor.path,
        "status": tensor.status,
        "old": _spec_fields(tensor.old),
        "new": _spec_fields(tensor.new),
        "nbytes": tensor.nbytes,
        "changed_bytes": tensor.changed_bytes,
        "aliases": list(tensor.aliases),
        **{name: None if name in odd else value for name, value in numbers.items()},
        "note": tensor.note,
    }
    return {**fields, "nonfinite": odd} if odd else fields


def _spec_fields(spec: Spec | None) -> dict[str, object] | None:
    return {"dtype": spec.dtype, "shape": list(spec.shape)} if spec is not None else None


def _value_fields(value: ValueDiff) -> dict[str, object]:
    old, new = plain_json(value.old), plain_json(value.new)
    return {"path": value.path, "status": value.status, "old": old, "new": new, "text": str(value)}


def _lines(out: Output, diff: Diff, shown: Sequence[TensorDiff], hidden: int) -> Iterator[str]:
    yield from table((side, *_commit_cells(out, commit)) for side, commit in (("a", diff.a), ("b", diff.b)))
    yield diff.summary()
    if shown:
        yield ""
        head = ("tensor", "", "relative", "|a|", "|b|", "max abs", "nan", "inf", "")
        yield from table([head, *(_tensor_cells(out, tensor) for tensor in shown)], indent="  ")
    if hidden > 0:
        yield f"  ... {hidden:,} more"
    for name, found in (("values", diff.values), ("metrics", diff.metrics), ("meta", diff.meta)):
        yield from _section(name, ((printable(value.path), printable(str(value))) for value in found))
    yield from _section("files", ((printable(f.name), f.status, _sizes(f.old_bytes, f.new_bytes)) for f in diff.files))


def _commit_cells(out: Output, commit: Commit) -> Sequence[str]:
    told = (step_text(commit), metrics_text(commit), first_line(commit.message))
    return out.style(commit.short, "yellow"), *told


def _tensor_cells(out: Output, tensor: TensorDiff) -> Sequence[str]:
    numbers = (tensor.relative, tensor.norm_a, tensor.norm_b, tensor.max_abs_diff)
    odd = (out.style(f"{count:,}", "red") if count else "" for count in (tensor.nan_b, tensor.inf_b))
    names = " ".join(f"= {printable(alias)}" for alias in tensor.aliases)
    told = "  ".join(filter(None, (_specs(tensor), names, printable(tensor.note))))
    status = out.style(tensor.status, _COLORS.get(tensor.status))
    return (printable(tensor.path), status, *map(_number, numbers), *odd, told)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _specs(tensor: TensorDiff) -> str:
    old, new = (f"{s.dtype} {shape(s.shape)}" if s is not None else "" for s in (tensor.old, tensor.new))
    return f"{old} -> {new}" if old and new and old != new else new or old


def _sizes(old: int | None, new: int | None) -> str:
    known = [size(nbytes) for nbytes in (old, new) if nbytes is not None]
    return " -> ".join(known)


def _section(name: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    lines = list(table(rows, indent="  "))
    if lines:
        yield ""
        yield name
        yield from lines
