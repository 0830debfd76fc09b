"""What users see, as text: each tests/sql/NAME.sql goes through psql, and NAME.out is what psql shows.

After a wanted change: CEREBRO_UPDATE_TEXTS=1 pytest tests/test_texts.py, then read the difference.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests import requirements as requires
from tests.cluster import ROLE
from tests.session import POINTS, Session, points

pytestmark = requires.segments(3)

FOLDER = Path(__file__).parent / "sql"
SCHEMA = "texts"
UPDATE = "CEREBRO_UPDATE_TEXTS"

# What differs from one run, machine or change of a line to the next.
MASKS = [
    (r"127\.0\.0\.1:\d+", "127.0.0.1:PORT"),
    (r", \d+:\d\d left", ", M:SS left"),
    (r"(\b(?:val_)?(?:loss|accuracy|mae)) [-+.e\d]+", r"\1 X"),
    (r"line \d+, in", "line N, in"),
    (r" and [\d.]+ MB promised to other runs that load here now", ""),
    (r"(take|;) [\d.]+ MB", r"\1 X MB"),
    (r"segment \"segment_\d\": the shard", 'segment "segment_N": the shard'),
    (r"The first \d+ rows", "The first N rows"),
]


@pytest.fixture
def place(cluster):
    """A schema with tables that the texts name."""
    for node in cluster.nodes:
        node.execute("drop schema if exists {0} cascade; create schema {0} authorization {1}".format(SCHEMA, ROLE))
    made = Session(cluster, SCHEMA)
    try:
        made.sharded(POINTS, points(60), name="points")
        made.local(POINTS, name="empty")
        made.sharded(POINTS, [(None, 1, True), (2, float("nan"), False), (1, 2, None)], name="holes")
        made.sharded({"x": "real[]", "label": "boolean"}, [([1], True), ([1, 2], False)], [2], [2], name="ragged")
        made.sharded(POINTS, [(k, 1, True) for k in range(6)], name="constant")
        made.conn.execute("create view seen as select * from points")
        yield made
    finally:
        made.close()
        for node in cluster.nodes:
            node.execute("drop schema %s cascade" % SCHEMA)


def masked(text: str) -> str:
    for pattern, mask in MASKS:
        text = re.sub(pattern, mask, text)
    return text


def test_there_are_texts():
    names = {file.stem for file in FOLDER.glob("*.sql")}
    assert names and names == {file.stem for file in FOLDER.glob("*.out")}


@pytest.mark.parametrize("name", sorted(file.stem for file in FOLDER.glob("*.sql")))
def test_text(cluster, place, name):
    script = "set search_path = %s;\n" % SCHEMA + (FOLDER / (name + ".sql")).read_text("utf-8")
    shown = masked(cluster.psql(script, "-a", "-q").partition("\n")[2])
    file = FOLDER / (name + ".out")
    if os.environ.get(UPDATE):
        file.write_text(shown, "utf-8")
    assert shown == file.read_text("utf-8"), "see the docstring of this file"
