"""Make the pages that say what stands elsewhere already: `python -m tests.pages` writes them.

`docs/reference/python.md` and `metrics.md` are made from the code, `docs/changelog.md` from the fragments in
`docs/changes/`.  `tests/test_pages.py` fails where one of them is not in step.
"""

import dataclasses
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import chainstore
from chainstore.metrics.registry import SECONDS
from chainstore.metrics.snapshots import TABLE

DOCS = Path(__file__).resolve().parent.parent / "docs"
MADE = "<!-- made by `python -m tests.pages`; do not edit -->\n"
WIDTH = 100
KINDS = {"break": "Breaking changes", "feature": "What is new", "fix": "What was fixed"}


def sentence(thing: object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    return " ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split())


def attributes(kind: type) -> list[str]:
    """Return the lines of the section "Attributes" of a class."""
    found = re.search(r"^Attributes:\n((?:    .*\n?)+)", inspect.getdoc(kind) or "", re.M)
    lines: list[str] = []
    for line in found[1].splitlines() if found else ():
        if line.startswith("     "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line.strip())
    return [part for line in lines for part in re.split(r"(?<=\.)  (?=[\w, ]+: )", line)]


def written(annotation: object) -> str:
    """Return an annotation as it stands in a signature: names without the modules they come from."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:chainstore|collections|typing|datetime|pathlib|types)(?:\.\w+)*\.(?=\w)", "", text)


def default(value: object) -> str:
    """Return a default value; a function by its name."""
    return getattr(value, "__name__", repr(value)) if callable(value) else repr(value)


def signature(name: str, function: Callable[..., object]) -> str:
    """Return a signature as one line, or with one parameter a line where that is too long."""
    found = inspect.signature(function)
    parts, bare = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not bare and not any(part.startswith("*") for part in parts):
            parts.append("*")
            bare = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{stars}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {written(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {default(parameter.default)}"
        parts.append(text)
    back = found.return_annotation
    arrow = "" if back is found.empty or inspect.isclass(function) else f" -> {written(back)}"
    line = f"{name}({', '.join(parts)}){arrow}"
    return line if len(line) <= WIDTH or not parts else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){arrow}"


def members(kind: type) -> Iterator[tuple[str, object]]:
    """Yield the public methods and properties that a class defines, and those of operators."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("chainstore.")]
    for name, member in {name: member for base in ours for name, member in vars(base).items()}.items():
        if name in ("__getitem__", "__contains__", "__iter__") or not name.startswith("_"):
            function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if inspect.isfunction(function) or isinstance(function, property):
                yield name, function


def class_lines(kind: type, level: str, *, made: bool) -> Iterator[str]:
    """Yield the description of a class: what it is, its attributes, and how it is made, or else its methods."""
    yield f"{sentence(kind)}\n"
    if made:
        yield f"```py\n{signature(kind.__name__, kind)}\n```\n"
        return
    listed = attributes(kind)
    yield from (f"* {line}" for line in listed)
    said = " ".join(line.partition(":")[0] for line in listed)
    fields = [at.name for at in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    others = [at for at in fields if not re.search(rf"\b{at}\b", said)]
    if others:
        yield f"* {', '.join(others)}"
    for at, member in members(kind):
        if isinstance(member, property) and sentence(member):
            yield f"* {at}: {sentence(member)}"
    yield ""
    for at, member in members(kind):
        if not isinstance(member, property):
            function = typing.cast(Callable[..., object], member)
            yield f"{level} {kind.__name__}.{at}\n\n```py\n{signature(at, function)}\n```\n\n{sentence(member)}\n"


def given_back(kind: type) -> set[type]:
    """Return the classes of ours that the methods of a class return."""
    space = vars(inspect.getmodule(kind))
    methods = [member for _, member in members(kind) if not isinstance(member, property)]
    backs = [written(inspect.signature(typing.cast(Callable[..., object], one)).return_annotation) for one in methods]
    named = [space.get(word) for back in backs for word in re.findall(r"\w+", back)]
    return {one for one in named if inspect.isclass(one) and one.__module__.startswith("chainstore.")}


def python_page() -> str:
    """Return the reference of the Python interface."""
    public = {name: getattr(chainstore, name) for name in chainstore.__all__ if not name.startswith("__")}
    classes = {value for value in public.values() if inspect.isclass(value)}
    returned = set().union(*map(given_back, classes)) | {chainstore.Repository}
    lines = [
        MADE,
        "# Python\n",
        "Everything public is in `chainstore`, imported as `cs` in these documents. Errors have",
    ]
    lines += ["[a page of their own](errors.md); `help()` on any of these names says more.\n"]
    for name, value in public.items():
        if inspect.isfunction(value):
            lines += [f"## {name}\n", f"```py\n{signature(name, value)}\n```\n", f"{sentence(value)}\n"]
    for name, value in sorted(public.items(), key=lambda item: item[0] not in ("Repository", "Snapshot", "Commit")):
        if inspect.isclass(value):
            made = value not in returned and not issubclass(value, Exception)
            lines += [f"## {name}\n", *class_lines(value, "###", made=made)]
    for name, value in public.items():
        if inspect.ismodule(value):
            lines += [f"## {name}\n", f"{sentence(value)} See [errors](errors.md).\n"]
    lines += ["## What calls return\n", "These have no public name: you get them, you do not make them.\n"]
    for kind in sorted(returned - classes, key=lambda kind: kind.__name__):
        lines += [f"### {kind.__name__}\n", *class_lines(kind, "####", made=False)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def changelog_page() -> str:
    """Return the changelog, made of the fragments `docs/changes/NAME.kind.md`."""
    lines = [MADE, "# Changelog\n", f"## {chainstore.__version__} (not released yet)\n"]
    for kind, title in KINDS.items():
        fragments = sorted((DOCS / "changes").glob(f"*.{kind}.md"))
        if fragments:
            texts = ["* " + fragment.read_text().strip().replace("\n", "\n  ") for fragment in fragments]
            lines += [f"### {title}\n", *texts, ""]
    return "\n".join(lines).rstrip() + "\n"


def metrics_page() -> str:
    """Return the reference of the metrics, made of their table."""
    lines = [
        MADE,
        "# Metrics\n",
        "What a manager counts, in the text format that Prometheus reads (0.0.4). Every line may carry labels that",
        "tell runs apart, such as the branch. Names and meanings do not change.\n",
        "| name | type | what it says |\n|---|---|---|",
    ]
    for row in TABLE.values():
        labels = "".join(f" By `{name}`: {meaning}." for name, meaning in row.labels.items())
        lines.append(f"| `{row.name}` | {row.kind} | {row.help}{labels} |")
    bounds = ", ".join(f"{bound:g}" for bound in SECONDS[:-1]) + f" and {SECONDS[-1]:g}"
    lines += [
        f"\nHistograms have the upper bounds {bounds} s;",
        "their lines have `_bucket`, `_sum` and `_count` after the name.\n",
        "## Questions they answer\n",
        "| question | expression |\n|---|---|",
        "| How much work would a failure lose now? | `time() - chain_last_durable_timestamp_seconds` |",
        "| What part of the time do snapshots stall training? | `rate(chain_snapshot_stall_seconds_sum[1h])` |",
        "| How long until nine of ten snapshots are safe? | "
        "`histogram_quantile(0.9, rate(chain_snapshot_time_to_durable_seconds_bucket[1h]))` |",
        "| How much smaller is what is stored than what was saved? | "
        '`rate(chain_snapshot_bytes_total{kind="stored"}[1h])` over the sum of the kinds `new` and `reused` |',
        "\nAlert on the first: a textfile that nobody writes any more keeps the age that it had, the time goes on.",
        "What the interval should be is [a guide of its own](../guides/interval.md).",
    ]
    return "\n".join(lines) + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "reference/python.md": python_page,
    "reference/metrics.md": metrics_page,
    "changelog.md": changelog_page,
}


def main() -> None:
    for name, make in PAGES.items():
        (DOCS / name).write_text(make())


if __name__ == "__main__":
    main()
