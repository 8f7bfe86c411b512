"""A gate as JUnit XML, which the test pages of CI services read: one test case for each check."""

import re
from xml.etree import ElementTree as Xml

from depthscope.gates.record import Gate

# XML 1.0 has no place for these, not even escaped, and a model may be called anything.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(gate: Gate) -> str:
    """The text of a file. Names and sentences are escaped; characters that XML cannot hold become a question mark."""
    count = {"tests": str(len(gate.checks)), "failures": str(len(gate.failed)), "errors": "0", "skipped": "0"}
    root = Xml.Element("testsuites", {"name": "depthscope gate", **count})
    suite = Xml.SubElement(root, "testsuite", {"name": _legal(gate.model), **count})
    by_stream = {judged.stream: judged for judged in gate.streams}
    for check in gate.checks:
        case = Xml.SubElement(
            suite, "testcase", {"classname": _legal(f"depthscope.gate.{gate.model}"), "name": _legal(check.title)}
        )
        if not check.holds:
            judged = by_stream[check.stream]
            failure = Xml.SubElement(case, "failure", {"message": _legal(check.says), "type": check.name})
            failure.text = _legal(f"{check.says}\n{judged.status}: {judged.text}\n{judged.advice}")
    if gate.notes:
        Xml.SubElement(suite, "system-out").text = _legal("\n".join(gate.notes))
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


def _legal(words: str) -> str:
    return FORBIDDEN.sub("?", words)
