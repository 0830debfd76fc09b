"""Real tables: models trained on them beat what one would guess without a model, on rows that they have not seen."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest

from cerebro_udf.client import load
from tests import requirements as requires

WARM = True
pytestmark = requires.segments(3)

EVALUATE = "select * from cerebro.evaluate(%s, %s::text::regclass, %s::jsonb)"


# ---- flights: numbers, times, texts, NULLs

FEATURES = ["dep_delay", "distance", "air_time", "sched_dep_time", "time_hour", "month", "carrier", "origin", "dest", "tailnum"]
OPTIONS = {
    "epochs": 4, "learning_rate": 0.004, "batch_size": 16, "order": "fixed", "encoders": {
        "month": "one_hot", "carrier": {"embedding": {"dim": 4}}, "sched_dep_time": {"bucketize": {"buckets": 6}}, "distance": "minmax",
        "tailnum": {"embedding": {"dim": 2}},
    },
    # A flight that was cancelled has neither delays nor, mostly, a plane.
    "nulls": {"dep_delay": {"value": 0, "indicator": True}, "air_time": "indicator", "tailnum": "indicator", "*": "skip"},
}  # fmt: skip


class Flights:
    """Every 56th of the 336,776 flights that left New York in 2013: half to learn from, half to be judged by."""

    def __init__(self, session):
        rows = list(itertools.islice(load.read(), 0, None, 56))
        self.train, self.test = rows[::2], rows[1::2]
        self.tables = [session.sharded(load.COLUMNS, part) for part in (self.train, self.test)]

    def labels(self, part: list, name: str) -> np.ndarray:
        place = list(load.COLUMNS).index(name)
        return np.array([row[place] for row in part if row[place] is not None], float)


@pytest.fixture(scope="module")
def flights(session):
    return Flights(session)


def test_whether_a_flight_is_late_is_told_better_than_by_the_most_frequent_answer(session, flights):
    model = session.model({"layers": [{"Dense": {"units": 16, "activation": "relu"}}, {"Dense": {"units": "$classes"}}]})
    run = session.fit(flights.tables[0], model, "late", FEATURES, **OPTIONS)
    found = dict(session.rows(EVALUATE, run, flights.tables[1].name, '{"nulls": "skip"}'))
    late = flights.labels(flights.test, "late")
    guessed = max(late.mean(), 1 - late.mean())
    assert 0.7 < guessed < 0.8 and found["accuracy"] > guessed + 0.07
    ((shards, train),) = session.rows("select shards -> 'stats', (encoders #>> '{rows,train}')::int from cerebro.run where run = %s", run)
    assert train == len(flights.labels(flights.train, "late"))
    assert sum(shard["rows"] + shard["skipped"] for shard in shards) == len(flights.train)


def test_how_late_a_flight_is_is_told_better_than_by_the_median(session, flights):
    model = session.model({"layers": [{"Dense": {"units": 16, "activation": "relu"}}, {"Dense": {"units": 1}}]})
    run = session.fit(flights.tables[0], model, "arr_delay", FEATURES, task="regression", loss="mae", **OPTIONS)
    found = dict(session.rows(EVALUATE, run, flights.tables[1].name, '{"nulls": "skip"}'))
    train, test = (flights.labels(part, "arr_delay") for part in (flights.train, flights.test))
    assert found["mae"] < 0.6 * np.abs(test - np.median(train)).mean()


# ---- texts: paragraphs of the documentation of three libraries

LIBRARIES = {"keras": "src/layers", "numpy": "lib", "sqlalchemy": "orm"}
GIVEAWAYS = re.compile(r"\b(keras|np|numpy|sqlalchemy|orm|tensorflow|sql)\b|[^a-z \n]", re.IGNORECASE)


def paragraphs(library: str) -> list[str]:
    """Paragraphs of a library's docstrings, without its names and without code; read from its files, never imported."""
    (folder,) = importlib.util.find_spec(library).submodule_search_locations
    found = []
    for path in sorted((Path(folder) / LIBRARIES[library]).rglob("*.py")):
        if "test" in str(path.relative_to(folder)):
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.Module)):
                blocks = (ast.get_docstring(node) or "").split("\n\n")
                found += [block for block in blocks if len(block.split()) > 12 and ">>>" not in block]
    return [GIVEAWAYS.sub(" ", block) for block in random.Random(1).sample(sorted(set(found)), 400)]


def test_the_library_that_a_paragraph_documents_is_told_by_its_words(session):
    rows = [[paragraph, library] for library in LIBRARIES for paragraph in paragraphs(library)]
    random.Random(2).shuffle(rows)
    train, test = (session.sharded({"paragraph": "text", "library": "text"}, part) for part in (rows[::2], rows[1::2]))
    embedding = {"Embedding": {"input_dim": 2000, "output_dim": 16, "mask_zero": True}}
    model = session.model({"layers": [embedding, {"GlobalAveragePooling1D": {}}, {"Dense": {"units": "$classes"}}]})
    encoders = {"paragraph": {"tokens": {"length": 40, "size": 2000}}}
    run = session.fit(train, model, "library", ["paragraph"], epochs=6, learning_rate=0.02, batch_size=16, order="fixed", encoders=encoders)
    found = dict(session.rows(EVALUATE, run, test.name, "{}"))
    assert found["accuracy"] > 0.8, "a guess is right in a third of them"
    words = "Trains the layer on a batch of input tensors with the given activation and kernel initializer."
    assert session.rows("select cerebro.predict_class(%s, %s::text)", run, '{"paragraph": "%s"}' % words) == [("keras",)]
