"""Refuse Python that version 3.9 would not run, and imports that would break a layer's promise.

    python scripts/lint_python.py

Reads what servers import: cerebro_udf/ without client/. Library names newer than 3.9 are vermin's to find (see
lint.sh); here is what it misses, above all `int | None` where it is evaluated, and what no general tool knows.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Iterator, Optional

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 9)

# Decide from their arguments alone: no clock, no files, no network, no database, no state of the process.
PURE = (
    "architecture.py",
    "columns.py",
    "compilation.py",
    "definition.py",
    "encoders.py",
    "forms.py",
    "keras2.py",
    "keras_arguments.py",
    "keras_bounds.py",
    "keras_names.py",
    "keras_objects.py",
    "loss_forms.py",
    "metric_forms.py",
    "optimizers.py",
    "placeholders.py",
    "precision.py",
    "refusals.py",
    "sequences.py",
    "siphash.py",
    "sparse.py",
    "tensors.py",
    "wire.py",
    "coordinator/augment.py",
    "coordinator/directions.py",
    "coordinator/matching.py",
    "coordinator/options.py",
    "coordinator/ends.py",
    "coordinator/per_column.py",
    "coordinator/pruners.py",
    "coordinator/ranks.py",
    "coordinator/samplers.py",
    "coordinator/scheduler.py",
    "coordinator/search.py",
    "coordinator/simulate.py",
    "coordinator/space.py",
    "coordinator/stopping.py",
    "coordinator/study.py",
    "coordinator/validation.py",
    "coordinator/weights.py",
    "coordinator/work.py",
)
PURE_IMPORTS = frozenset(
    "__future__ collections copy dataclasses decimal functools hashlib heapq itertools json math numpy operator"
    " optuna random re typing unicodedata cerebro_udf.architecture cerebro_udf.columns cerebro_udf.compilation"
    " cerebro_udf.definition cerebro_udf.encoders cerebro_udf.errors cerebro_udf.keras2 cerebro_udf.keras_names"
    " cerebro_udf.keras_bounds cerebro_udf.keras_objects cerebro_udf.keras_arguments cerebro_udf.forms"
    " cerebro_udf.loss_forms"
    " cerebro_udf.metric_forms cerebro_udf.optimizers cerebro_udf.placeholders cerebro_udf.precision cerebro_udf.refusals"
    " cerebro_udf.sequences cerebro_udf.siphash cerebro_udf.sparse cerebro_udf.coordinator.augment"
    " cerebro_udf.coordinator.directions cerebro_udf.coordinator.matching cerebro_udf.coordinator.options"
    " cerebro_udf.coordinator.ends cerebro_udf.coordinator.per_column cerebro_udf.coordinator.pruners cerebro_udf.coordinator.samplers"
    " cerebro_udf.coordinator.scheduler cerebro_udf.coordinator.search cerebro_udf.coordinator.space"
    " cerebro_udf.coordinator.stopping cerebro_udf.coordinator.validation cerebro_udf.coordinator.weights"
    " cerebro_udf.coordinator.work cerebro_udf.wire".split()
)
IMPURE_CALLS = frozenset("open input print exec eval compile __import__ breakpoint globals".split())

# In whose arguments a union of types would be made at run time.
TYPE_TAKERS = frozenset("isinstance issubclass cast NewType TypeVar".split())
TYPE_NAMES = frozenset(
    "int float str bytes bool dict list tuple set frozenset complex type object bytearray memoryview Any"
    " Optional Union List Dict Tuple Set FrozenSet Sequence Mapping Iterable Iterator Callable Type".split()
)


def unions(code: ast.Module) -> Iterator[ast.BinOp]:
    """Every `X | Y` of types that Python 3.9 would evaluate, and fail."""
    lazy = any(
        isinstance(node, ast.ImportFrom)
        and node.module == "__future__"
        and any(alias.name == "annotations" for alias in node.names)
        for node in code.body
    )
    kept = set()  # inside annotations that stay text, or that were reported already
    for parent in ast.walk(code):
        for field in ("annotation", "returns"):
            annotation = getattr(parent, field, None)
            for node in ast.walk(annotation) if isinstance(annotation, ast.AST) else ():
                if not lazy and is_union(node):
                    yield node
                kept.add(node)
    for node in ast.walk(code):
        if isinstance(node, ast.Call) and called(node) in TYPE_TAKERS:
            for inner in (inner for argument in node.args for inner in ast.walk(argument)):
                if is_union(inner) and inner not in kept:
                    kept.add(inner)
                    yield inner
    for node in ast.walk(code):
        if is_union(node) and node not in kept and (is_type(node.left) or is_type(node.right)):
            kept.update(ast.walk(node))
            yield node


def is_union(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)


def is_type(node: ast.AST) -> bool:
    """Whether an operand of `|` looks like a type: `None`, a known name, or one with brackets."""
    if isinstance(node, ast.Constant):
        return node.value is None
    if isinstance(node, ast.Subscript):
        return is_type(node.value)
    if isinstance(node, ast.Attribute):
        return node.attr in TYPE_NAMES
    return isinstance(node, ast.Name) and node.id in TYPE_NAMES


def called(node: ast.Call) -> Optional[str]:
    return getattr(node.func, "id", None) or getattr(node.func, "attr", None)


def imported(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level:
        yield "." * node.level
    elif isinstance(node, ast.ImportFrom):
        known = node.module in PURE_IMPORTS
        yield from [node.module] if known else ["%s.%s" % (node.module, alias.name) for alias in node.names]


def allowed(name: str) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:n]) in PURE_IMPORTS for n in range(1, len(parts) + 1))


def check(text: str, where: str = "") -> list[tuple[int, str]]:
    """What is wrong with one file: (line, what), in order.

    Args:
        text: Its source.
        where: Its path below the package, which decides what it may import.
    """
    try:
        code = ast.parse(text, feature_version=OLDEST)
    except SyntaxError as error:
        return [(error.lineno or 0, "Python %d.%d: %s" % (*OLDEST, error.msg))]
    found = [
        (node.lineno, "a union of types that is evaluated: write Union or Optional") for node in unions(code)
    ]
    if where in PURE:
        for node in ast.walk(code):
            found += [(node.lineno, "%s in a pure module" % n) for n in imported(node) if not allowed(n)]
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in IMPURE_CALLS:
                found.append((node.lineno, "%s() in a pure module" % node.func.id))
    return sorted(found)


def main(package: Path = ROOT / "cerebro_udf") -> Optional[str]:
    problems = []
    for file in sorted(package.rglob("*.py")):
        where = file.relative_to(package).as_posix()
        if not where.startswith("client/"):
            problems += [
                "%s:%d: %s" % (file, line, what) for line, what in check(file.read_text("utf-8"), where)
            ]
    missing = [where for where in PURE if not (package / where).exists()]
    return (
        "\n".join(problems + ["%s is gone: correct the list of pure modules" % name for name in missing])
        or None
    )


if __name__ == "__main__":
    sys.exit(main())
