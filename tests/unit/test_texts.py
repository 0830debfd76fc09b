"""How errors and notices say things."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import cerebro_udf
from cerebro_udf.errors import counted

NOUNS = "row|segment|shard|epoch|trial|block|visit|feature"


def test_one_of_a_kind_is_singular():
    assert [counted(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]


def test_no_notice_writes_a_plural_for_any_number():
    """What is counted goes through ``counted``."""
    for path in sorted(Path(cerebro_udf.__file__).parent.rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and getattr(call.func, "attr", None) == "notice":
                texts = [node.value for node in ast.walk(call) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
                assert not [text for text in texts if re.search(r"%%d (%s)s\b" % NOUNS, text)], path
