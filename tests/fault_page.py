"""The fault table of docs/reliability.md: written from what a run of the faults has shown, and read back."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping

from tests.fault_bench import Fault

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reliability.md"
HEAD = ["| what happens to the installation | what the user sees | what becomes of the run | to go on |", "|---|---|---|---|"]
GOES_ON = {"itself": "nothing", "resume": "`cerebro.resume(run)`", "fit": "call `fit` again"}


def line(fault: Fault, seen: str) -> str:
    """A row of the table; `seen` is the line that told the user, empty where none did."""
    told = "`%s`" % seen if seen else "nothing"
    if fault.sees not in ("00000", "gone"):
        told = "%s %s" % (fault.sees, told)
    return "| %s | %s | %s | %s |" % (fault.name, told, fault.becomes, GOES_ON[fault.then])


def rows() -> dict[str, tuple[str, ...]]:
    """The table as it stands: fault -> its other columns."""
    text = PAGE.read_text("utf-8").split("\n".join(HEAD) + "\n")[1]
    cells = [tuple(cell.strip() for cell in row.strip("|").split(" | ")) for row in text.splitlines() if row.startswith("| ")]
    return {first: others for first, *others in cells}


def write(faults: list[Fault], seen: Mapping[str, str]) -> None:
    """Put what was seen into the page; a fault that could not strike here keeps its row."""
    head, old = PAGE.read_text("utf-8").split("\n".join(HEAD) + "\n")
    kept = {row.split(" | ")[0].strip("| "): row for row in old.splitlines() if row.startswith("| ")}
    made = [line(fault, seen[fault.name]) if fault.name in seen else kept.get(fault.name, line(fault, "")) for fault in faults]
    PAGE.write_text(head + "\n".join([*HEAD, *made]) + "\n", "utf-8")
