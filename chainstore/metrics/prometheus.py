"""Prometheus: a registry as text, in the exposition format 0.0.4.

Rendering only: whoever keeps a textfile for node_exporter writes it to another name and renames it, or a scrape would
read half.

Source: prometheus.io/docs/instrumenting/exposition_formats.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import inf, isnan

from chainstore.metrics.registry import AnyFamily, HistogramValue, Registry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render(registry: Registry) -> str:
    """Return every metric of a registry as text, in the order in which they were made."""
    return "".join(line + "\n" for family in registry for line in _lines(family, registry.labels))


def write_textfile(registry: Registry) -> bytes:
    """Return the content of a textfile for node_exporter; the caller writes it, atomically."""
    return render(registry).encode("utf-8", "replace")


def _lines(family: AnyFamily, common: Mapping[str, str]) -> Iterator[str]:
    yield f"# HELP {family.name} {_escaped(family.help)}"
    yield f"# TYPE {family.name} {family.kind}"
    for key, value in family.values():
        labels = [*common.items(), *zip(family.labels, key, strict=True)]
        if isinstance(value, HistogramValue):
            reading = value.read()
            for bound, count in reading.buckets:
                yield f"{family.name}_bucket{_labels([*labels, ('le', number(bound))])} {number(count)}"
            yield f"{family.name}_sum{_labels(labels)} {number(reading.sum)}"
            yield f"{family.name}_count{_labels(labels)} {number(reading.count)}"
        else:
            yield f"{family.name}{_labels(labels)} {number(value.read())}"


def number(value: float) -> str:
    """Return a number as Prometheus reads it."""
    if isnan(value):
        return "NaN"
    if value in (inf, -inf):
        return "+Inf" if value > 0 else "-Inf"
    return str(value) if isinstance(value, int) else repr(float(value))


def _labels(pairs: Iterable[tuple[str, str]]) -> str:
    inner = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in pairs)
    return f"{{{inner}}}" if inner else ""


def _escaped(text: str, quoted: bool = False) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quoted else escaped
