"""JUnit: a verification as the XML file that CI systems show, one test case for each check and each damaged thing.

The form is that of Jenkins' `junit-10.xsd`, which all readers of such files accept.
"""

import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from chainstore.repository import CHECKS, COVERED, Damage, VerifyReport

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # XML 1.0, section 2.2
_SUITE = "chain verify"
_MOST_LINES = 1000  # of one list in a failure; the JSON report has all


def junit_of(report: VerifyReport, seconds: float) -> bytes:
    """Return the XML of a report: a check that found nothing passes, one that was left out is skipped.

    What was healed passes too, and says so.
    """
    by_check: dict[str, list[Damage]] = {}
    for damage in report.damaged:
        by_check.setdefault(damage.check or "index", []).append(damage)
    cases: list[Element] = []
    for check, words in CHECKS.items():
        found = by_check.pop(check, [])
        if found:
            cases += [_failure(check, damage) for damage in found]
        elif check in COVERED[report.level]:
            cases.append(_case(check, words))
        else:
            case = _case(check, words)
            SubElement(case, "skipped", message=f"not part of level {report.level}")
            cases.append(case)
    cases += [_healed(damage) for damage in report.healed]
    return _suite(cases, seconds)


def junit_of_error(message: str, seconds: float) -> bytes:
    """Return the XML that says why nothing could be verified."""
    case = _case("open", "the repository opens")
    SubElement(case, "error", message=_clean(message), type="damaged").text = _clean(message)
    return _suite([case], seconds)


def write_junit(path: Path, xml: bytes) -> None:
    """Put the file in its place whole: who reads it meanwhile finds the old one or the new one."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(xml)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _suite(cases: Sequence[Element], seconds: float) -> bytes:
    def holding(name: str) -> str:
        return str(sum(case.find(name) is not None for case in cases))

    counts = {
        "tests": str(len(cases)),
        "failures": holding("failure"),
        "errors": holding("error"),
        "skipped": holding("skipped"),
        "time": f"{seconds:.3f}",
    }
    suites = Element("testsuites", {key: value for key, value in counts.items() if key != "skipped"})
    suite = SubElement(suites, "testsuite", {"name": _SUITE, **counts})
    suite.extend(cases)
    indent(suites)
    xml: bytes = tostring(suites, encoding="utf-8", xml_declaration=True)
    return xml


def _case(check: str, name: str) -> Element:
    return Element("testcase", {"classname": f"chain.verify.{check}", "name": _clean(name), "time": "0"})


def _failure(check: str, damage: Damage) -> Element:
    case = _case(check, f"object {damage.id}" if damage.id else damage.what)
    SubElement(case, "failure", message=_clean(damage.what), type="damaged").text = _clean(_details(damage))
    return case


def _healed(damage: Damage) -> Element:
    case = _case("healed", f"object {damage.id}" if damage.id else damage.what)
    SubElement(case, "system-out").text = _clean(f"healed: {_details(damage)}")
    return case


def _details(damage: Damage) -> str:
    lines = [damage.what]
    if damage.pack:
        lines.append(f"pack {damage.pack}" + (f" at byte {damage.offset}" if damage.offset >= 0 else ""))
    lines += _listed("commit", damage.commits)
    lines += _listed("path", damage.paths)
    return "\n".join(lines)


def _listed(noun: str, names: Sequence[str]) -> Iterable[str]:
    yield from (f"{noun} {name}" for name in names[:_MOST_LINES])
    if len(names) > _MOST_LINES:
        yield f"and {len(names) - _MOST_LINES} more"


def _clean(text: str) -> str:
    """Return text with everything escaped that XML cannot hold, such as control characters in names."""
    return _NOT_XML.sub(lambda found: repr(found[0])[1:-1], text)
