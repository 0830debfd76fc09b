"""Shards larger than the memory that they may take: what does not fit is read from files, and nothing else changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests import outcome
from tests.cluster import ADMIN, ROLE
from tests.session import refusal

WARM = True

ROWS, WIDTH, EPOCHS = 3000, 40, 2
MODEL = {
    "layers": [
        {"Dense": {"units": 8, "activation": "relu"}}, {"Dropout": {"rate": "$dropout"}}, {"Dense": {"units": "$classes"}}
    ]
}  # fmt: skip
SEARCH = {"space": {"learning_rate": [0.01, 0.001], "dropout": [0.1, 0.3]}}


@pytest.fixture(scope="module")
def begin(session):
    """Gives the arguments of a fit of these trials; a shard's arrays take about 270 kB."""
    random = np.random.default_rng(3)
    x = random.normal(2, 3, (ROWS, WIDTH)).astype(np.float32)
    words = random.choice(["a", "b", "c", "d"], ROWS)
    columns = {"x": "real[]", "word": "text", "weight": "real", "y": "integer"}
    values = {"x": x, "word": words, "weight": random.uniform(0, 2, ROWS), "y": (x[:, 0] + (words == "a") > 2).astype(int)}
    table, model = session.sharded(columns, values), session.model(MODEL)

    def fit(**options) -> str:
        given = {"validation": 0.2, "epochs": EPOCHS, "batch_size": 32, "order": "fixed", "search": SEARCH, "sample_weight": "weight"}
        return session.fit(table, model, "y", ["x", "word"], **{**given, **options})

    fit.table, fit.model = table, model
    return fit


@pytest.fixture(scope="module")
def whole(begin):
    return begin()


def reads(session, run: str, phase: str = "train") -> list[tuple]:
    return session.rows(
        "select rows, (details ->> 'hits')::int, (details ->> 'misses')::int, (details ->> 'read_bytes')::int8"
        " from cerebro.visit where run = %s and phase = %s order by started_at, trial",
        run,
        phase,
    )


@pytest.mark.parametrize("memory", ["300kB", "1kB"])
def test_a_shard_beyond_its_budget_trains_to_the_same_bits(session, cluster, begin, whole, memory):
    session.notices.clear()
    run = begin(memory=memory)
    assert outcome.everything(cluster, run) == outcome.everything(cluster, whole)
    assert any("shards that do not fit the memory they may take: " in notice for notice in session.notices)
    row_bytes = 4 * (WIDTH + 1)  # numbers, and the word's code
    found = reads(session, run) + reads(session, run, "validate")
    assert found and all(hits + misses == rows and size == misses * row_bytes for rows, hits, misses, size in found)
    assert all((hits > 2) == (memory == "300kB") and misses > 0 for _, hits, misses, _ in found)
    assert reads(session, whole)[0][1:] == (None, None, None)


def test_the_part_in_memory_is_as_large_as_the_budget_says(session, begin):
    rows, hits, misses, _ = reads(session, begin(memory="300kB", epochs=1))[0]
    workers = session.rows("select count(*)::int from cerebro.segments(%s::regclass)", begin.table.name)[0][0]
    budget = 300_000 / workers  # all segments are on one host here
    share = min(1, budget / (4 * (WIDTH + 3) * ROWS / workers))
    assert hits / rows == pytest.approx(share, abs=0.05)


def test_predictions_and_judgements_of_such_a_run_are_those_of_any(session, begin, whole):
    run = begin(memory="1kB")
    for options in ("{}", '{"memory": "1kB"}'):
        statement = "select metric, value from cerebro.evaluate(%s, %s::regclass, %s) order by metric"
        assert session.rows(statement, run, begin.table.name, options) == session.rows(statement, whole, begin.table.name, "{}")


def test_temporary_files_have_no_names_and_obey_the_servers_limit(session, cluster, begin):
    with cluster.node(1).connect(ADMIN) as admin:
        admin.execute('alter role "%s" set temp_file_limit = \'10kB\'' % ROLE)
    try:
        call = session.call(begin.table, begin.model, "y", ["x", "word"], memory="1kB", search=SEARCH)
        with cluster.connect() as connection:  # whose workers begin anew, under that setting
            error = refusal(cluster, connection, *call)
        assert error.sqlstate == "53400" and "temp_file_limit is 0.0 MB" in error.detail
    finally:
        with cluster.node(1).connect(ADMIN) as admin:
            admin.execute('alter role "%s" reset temp_file_limit' % ROLE)


def test_a_packed_shard_beyond_its_budget_trains_to_the_same_bits(session, cluster, begin, whole):
    packed = "%s.packed_beyond" % session.schema
    options = '{"validation": 0.2, "seed": 5, "sample_weight": "weight", "memory": "1kB"}'
    session.rows("select cerebro.pack(%s::text::regclass, %s, 'y', '{x, word}', %s::jsonb)", begin.table.name, packed, options)
    given = {"epochs": EPOCHS, "seed": 5, "batch_size": 32, "order": "fixed", "search": SEARCH}
    runs = [session.name(), session.name()]
    for run, more in zip(runs, ({}, {"memory": "300kB"})):
        values = [run, packed, begin.model, json.dumps({**given, **more})]
        session.rows("select * from cerebro.fit(%s, %s::text::regclass, %s, null, null, %s::jsonb)", *values)
    assert outcome.everything(cluster, runs[0]) == outcome.everything(cluster, runs[1])
    assert 0 < reads(session, runs[1])[0][1] < reads(session, runs[1])[0][0]
    assert reads(session, runs[0])[0][1] is None
