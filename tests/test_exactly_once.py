"""Per epoch every trial visits each shard once and trains every row once.

The model predicts 0 whatever it learns, so the accumulators of its metrics count the rows and sum up the magnitudes
of the labels (mae) and their squares (mse). Labels are whole numbers that differ: the sums are exact in float32, and
no other set of rows has the same three.
"""

from __future__ import annotations

import pytest

from tests import outcome

WARM = True

EPOCHS = 2
ZERO = {
    "layers": [
        {"Rescaling": {"scale": 0, "offset": 0}},
        {"Dense": {"units": 1, "kernel_initializer": "zeros", "use_bias": False}},
    ]
}
COLUMNS = {"id": "double precision", "x": "real[]"}


@pytest.fixture(scope="module")
def zero(session):
    return session.model(ZERO)


def numbered(rows: int) -> dict:
    """Rows with the ids 1 … rows, and features that say nothing."""
    return {"id": [float(i + 1) for i in range(rows)], "x": [[i * 0.1, -i * 0.2] for i in range(rows)]}


def fit(session, table, model: str, trials: int, **options) -> str:
    rates = [0.01 * (k + 1) for k in range(trials)]
    return session.fit(
        table, model, "id", ["x"], epochs=EPOCHS, batch_size=4, metrics=["mae", "mse"],
        search={"space": {"learning_rate": rates}}, **options,
    )  # fmt: skip


def sums(blob: bytes) -> tuple[float, float, float]:
    """(rows, sum of ids, sum of their squares) that a state's metrics have seen; metric/0 and /1 are the loss."""
    arrays = outcome.arrays(blob)
    assert arrays["metric/1"] == arrays["metric/3"] == arrays["metric/5"]
    return float(arrays["metric/3"]), float(arrays["metric/2"]), float(arrays["metric/4"])


def check_visits(session, run: str, trials: int, shards: list[int] | int) -> None:
    """Every (trial, epoch, shard) once, done at the first attempt, one after another."""
    count = shards if isinstance(shards, int) else len(shards)
    visits = outcome.visits(session.cluster, run)
    expected = [(t, e, k) for t in range(trials) for e in range(1, EPOCHS + 1) for k in range(count)]
    assert sorted((trial, epoch, shard) for trial, epoch, shard, *_ in visits) == expected
    assert [position for _, _, _, position, *_ in visits] == list(range(count)) * (trials * EPOCHS)
    assert {(state, attempt) for *_, state, attempt, _ in visits} == {("done", 1)}
    if not isinstance(shards, int):
        assert all(rows == shards[shard] for _, _, shard, _, _, _, rows in visits)
    overlapping = session.cluster.coordinator.execute(
        "select count(*) from cerebro.visit a join cerebro.visit b on a.run = b.run and a.phase = b.phase"
        " and (a.trial = b.trial or a.segment = b.segment) and (a.trial, a.epoch, a.shard) < (b.trial, b.epoch, b.shard)"
        # The visits of a group are one visit to the segment.
        " and (a.trial = b.trial or a.details->'together' is null or a.details->'together' is distinct from b.details->'together')"
        " and a.started_at < b.finished_at and b.started_at < a.finished_at where a.run = %s and a.phase = 'train'",
        [run],
    )
    assert overlapping == [(0,)]


def check_rows(session, run: str, trials: int, rows: int) -> None:
    """Every row once, by the metrics of each trial's state after each epoch."""
    ids = range(1, rows + 1)
    states = outcome.states(session.cluster, run)
    seqs = {seq for _, seq in states}
    # Nothing is learnt, so the first epoch stays the best; its state is kept besides the last one.
    assert len(states) == trials * EPOCHS and len(seqs) == EPOCHS
    for blob in states.values():
        assert sums(blob) == (rows, sum(ids), sum(i * i for i in ids))
    assert len(outcome.history(session.cluster, run)) == trials * EPOCHS


@pytest.mark.parametrize("order", ["fastest", "fixed"])
@pytest.mark.parametrize(
    "sizes, trials",
    [
        ([23], 1),
        ([23], 2),
        ([30, 7], 1),
        ([1, 36], 2),
        ([30, 0], 3),
        ([20, 0, 1], 1),
        ([5, 17, 2], 2),
        ([1, 30, 6], 3),
        ([13, 1, 0], 5),
    ],
)
def test_every_row_once_over_foreign_partitions(session, zero, sizes, trials, order):
    table = session.sharded(COLUMNS, numbered(sum(sizes)), sizes=sizes)
    run = fit(session, table, zero, trials, order=order)
    check_visits(session, run, trials, sizes)
    check_rows(session, run, trials, sum(sizes))


def test_every_row_once_when_a_segment_holds_several_partitions(session, zero):
    table = session.sharded(COLUMNS, numbered(33), sizes=[9, 4, 0, 20], segments=[1, 2, 2, 1])
    run = fit(session, table, zero, 3, order="random")
    check_visits(session, run, 3, [29, 4])
    check_rows(session, run, 3, 33)


@pytest.mark.parametrize("workers, trials", [(1, 2), (2, 1), (2, 3), (3, 3)])
def test_every_row_once_over_local_workers(session, zero, workers, trials):
    rows = numbered(40)
    rows["pad"] = ["." * 1500] * 40  # five rows a block, so that there are blocks to share out
    table = session.local({**COLUMNS, "pad": "text"}, rows)
    run = fit(session, table, zero, trials, segments=workers)
    check_visits(session, run, trials, workers)
    check_rows(session, run, trials, 40)


def test_every_row_either_trains_or_validates(session, zero):
    rows, sizes = 60, [25, 34, 1]
    table = session.sharded(COLUMNS, numbered(rows), sizes=sizes)
    run = fit(session, table, zero, 2, validation=0.3)
    check_visits(session, run, 2, len(sizes))
    held = [row for row in outcome.visits(session.cluster, run, "validate") if row[0] == 0 and row[1] == 1]
    validated = sum(row[-1] for row in held)
    assert 0 < validated < rows
    assert all(0 < row[-1] for row in held), "a shard without rows for validation is not visited for it"
    for blob in outcome.states(session.cluster, run).values():
        trained, ids, squares = sums(blob)
        assert trained == rows - validated
        for _, _, metrics, _ in outcome.history(session.cluster, run):
            assert round(metrics["val_mae"] * validated, 2) == sum(range(1, rows + 1)) - ids
            assert round(metrics["val_mse"] * validated, 1) == sum(i * i for i in range(1, rows + 1)) - squares
