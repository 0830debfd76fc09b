"""The README's SQL runs as it is written, and gives the output that stands below it."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"


def fences() -> list[tuple[str, str]]:
    return re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def cells(text: str) -> list[list[str]]:
    """The cells of every table line that psql prints."""
    lines = [line for line in text.splitlines() if " | " in line and not line.startswith(("NOTICE", "psql"))]
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def test_the_readmes_sql_gives_the_output_below_it(cluster, every_core, make_role, make_schema):
    """Figures may differ in their last digit: another processor rounds otherwise."""
    blocks = fences()
    at = next(i for i, (kind, _) in enumerate(blocks) if kind == "sql")
    script, shown = blocks[at][1], blocks[at + 1][1]
    assert len([line for line in script.splitlines() if line.strip()]) <= 12
    reader = make_role()
    schema = make_schema("of_" + reader, reader)
    printed = cluster.psql("set search_path = %s;\n%s" % (schema, script), role=reader)
    assert "ERROR" not in printed, printed
    expected, got = cells(shown), cells(printed)
    assert len(got) == len(expected), printed
    for wanted, line in zip(expected, got):
        for a, b in zip(wanted, line):
            if re.fullmatch(r"0\.\d+", a):
                assert abs(float(a) - float(b)) <= 0.02, printed
            else:
                assert a == b, printed
