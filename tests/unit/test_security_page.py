"""What docs/security.md names as proof is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_test_that_the_page_names_exists():
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "security.md").read_text("utf-8"))
    files = [file.read_text("utf-8") for file in ROOT.glob("tests/**/test_*.py")]
    made = {name for text in files for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}
    assert len(named) > 20 and set(named) <= made, set(named) - made
