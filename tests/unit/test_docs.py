"""The pages in docs/ and the README say what the code does."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

from cerebro_udf import errors
from cerebro_udf.coordinator import options

ROOT = Path(__file__).resolve().parent.parent.parent


def rows(page: str) -> dict:
    """First column to second column of every table on a page."""
    found = re.findall(r"^\| `?([^|`]+)`? \| ([^|]*) \|", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
    return {first.strip(): second.strip() for first, second in found}


def test_every_option_is_described_with_its_default():
    described = rows("options.md")
    for field in dataclasses.fields(options.Options):
        default = getattr(options.parse(None, {"layers": [{"Dense": {"units": 1}}]}), field.name)
        if field.name == "optimizer":
            default = "adam"
        assert described[field.name].strip("`") == json.dumps(default), field.name


def test_every_sqlstate_is_described():
    described = rows("errors.md")
    raised = {
        value.sqlstate
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.CerebroError)
    }
    assert raised <= set(described)


def test_the_readme_is_short_and_points_at_pages_that_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 150
    for page in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text("utf-8")):
            assert (ROOT / target).exists(), (page, target)
