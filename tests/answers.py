"""What a run answers about a table of labels ``down`` and ``up``, held against probabilities that something else worked out."""

from __future__ import annotations

import numpy as np
import pytest

PREDICT_TABLE = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}', %s::jsonb)"


def assert_predicted(session, fitted) -> None:
    """Hold ``predict_probabilities`` of each row against it; ``fitted`` has the run, its table, rows and probabilities."""
    query = "select row, cerebro.predict_probabilities(%s, r) from " + fitted.table.name + " r order by row"
    found = [[row["down"], row["up"]] for _, row in session.rows(query, fitted.run)]
    np.testing.assert_allclose(found, fitted.probabilities, rtol=2e-5, atol=1e-6)


def assert_table_predicted(session, fitted) -> None:
    """Hold ``predict_table`` against it."""
    target = session.schema + "." + session.name("scored")
    assert session.rows(PREDICT_TABLE, fitted.run, fitted.table.name, target, '{"probabilities": true}') == [(len(fitted.rows),)]
    found = session.rows("select (probabilities ->> 'down')::float8, (probabilities ->> 'up')::float8 from %s order by row" % target)
    np.testing.assert_allclose(found, fitted.probabilities, rtol=2e-5, atol=1e-6)


def assert_evaluated(session, fitted) -> None:
    """Hold ``evaluate`` against it."""
    labels = np.array([("down", "up").index(row["label"]) for row in fitted.rows])
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", fitted.run, fitted.table.name))
    assert found["loss"] == pytest.approx(-np.log(fitted.probabilities[np.arange(len(labels)), labels]).mean(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((fitted.probabilities.argmax(axis=1) == labels).mean())
