"""What is deliberately absent: imports that a layer must not have (see ARCHITECTURE.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent.parent / "cerebro_udf"

TENSORFLOW = {"tensorflow", "keras", "tf_keras", "torch", "jax"}
CLIENT = {"sqlalchemy", "cerebro_udf.client"}

# Files (folders end in /), and what they never import, not even inside a function.
FORBIDDEN = {
    "coordinator/": TENSORFLOW | CLIENT,
    "engines/": TENSORFLOW | CLIENT,
    "architecture.py": TENSORFLOW | CLIENT,
    "compilation.py": TENSORFLOW | CLIENT,
    "definition.py": TENSORFLOW | CLIENT,
    "columns.py": TENSORFLOW | CLIENT,
    "encoders.py": TENSORFLOW | CLIENT,
    "forms.py": TENSORFLOW | CLIENT,
    "keras2.py": TENSORFLOW | CLIENT,
    "keras_arguments.py": TENSORFLOW | CLIENT,
    "keras_objects.py": TENSORFLOW | CLIENT,
    "refusals.py": TENSORFLOW | CLIENT,
    "sequences.py": TENSORFLOW | CLIENT,
    "tensors.py": TENSORFLOW | CLIENT,
    "optimizers.py": TENSORFLOW | CLIENT,
    "placeholders.py": TENSORFLOW | CLIENT,
    "precision.py": TENSORFLOW | CLIENT,
    "catalog.py": TENSORFLOW | CLIENT,
    "entry.py": TENSORFLOW | CLIENT,
    "wire.py": TENSORFLOW | CLIENT,
    "segment/": CLIENT | {"psycopg", "cerebro_udf.catalog.Ledger", "cerebro_udf.coordinator", "cerebro_udf.engines"},
    "coordinator/matching.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/scheduler.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/simulate.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/search.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/space.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/samplers.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/pruners.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/study.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/stopping.py": {"psycopg", "time", "socket", "threading", "os"},
    "coordinator/work.py": {"psycopg", "time", "socket", "threading", "os"},
    "client/": TENSORFLOW | {"cerebro_udf.coordinator", "cerebro_udf.segment", "cerebro_udf.engines"},
    "": {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"},
}


def imports(file: Path) -> set[str]:
    """Every module named by an import statement, with its parents."""
    names = set()
    package = ("cerebro_udf",) + file.relative_to(PACKAGE).parent.parts
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            names.add(module)
            names.update(module + "." + alias.name for alias in node.names)
    return {".".join(name.split(".")[:n]) for name in names for n in range(1, name.count(".") + 2)}


@pytest.mark.parametrize("where", FORBIDDEN)
def test_layer_imports_nothing_forbidden(where):
    files = PACKAGE.rglob("*.py") if where == "" else (PACKAGE / where).rglob("*.py")
    for file in [PACKAGE / where] if where.endswith(".py") else files:
        if not file.exists():
            continue
        found = imports(file) & FORBIDDEN[where]
        assert not found, "%s imports %s" % (file.relative_to(PACKAGE), ", ".join(sorted(found)))


def test_newer_annotations_are_never_evaluated():
    """`int | None` parses on Python 3.9 but fails there unless annotations stay text."""
    for file in PACKAGE.rglob("*.py"):
        code = ast.parse(file.read_text("utf-8"), feature_version=(3, 9))
        annotations = [
            node
            for parent in ast.walk(code)
            for field in ("annotation", "returns")
            for node in ast.walk(getattr(parent, field, None) or ast.Pass())
        ]
        unions = [n for n in annotations if isinstance(n, ast.BinOp) and isinstance(n.op, ast.BitOr)]
        future = any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in code.body)
        assert future or not unions, "%s needs from __future__ import annotations" % file
