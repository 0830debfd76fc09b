"""Every error that a user can meet says what repairs it."""

from __future__ import annotations

import ast
from pathlib import Path

from cerebro_udf import errors

PACKAGE = Path(__file__).resolve().parent.parent.parent / "cerebro_udf"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.CerebroError)}

# Files whose errors never reach a user, or get their hint from who passes them on.
EXCEPTIONS = {
    "segment/worker.py": "parts out of order: only a coordinator calls these",
    "segment/predict.py": "a definition that trained can be built",
}


def without_hint(file: Path):
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES):
            continue
        hints = node.args[2:3] + [keyword.value for keyword in node.keywords if keyword.arg == "hint"]
        if not hints or (isinstance(hints[0], ast.Constant) and not hints[0].value):
            yield "%s:%d" % (file.relative_to(PACKAGE), node.lineno)


def test_every_error_has_a_hint():
    found = [line for file in sorted(PACKAGE.rglob("*.py")) for line in without_hint(file)]
    assert [line for line in found if line.split(":")[0] not in EXCEPTIONS] == []
    assert {line.split(":")[0] for line in found} == set(EXCEPTIONS), "exceptions that are none any more"
