"""Trials of one program are trained as one where that is faster, and nobody can tell but by the ledger and the clock."""

from __future__ import annotations

import numpy as np
import pytest

from tests import outcome

WARM = True
MODEL = {
    "layers": [
        {"Dense": {"units": 8, "activation": "relu"}},
        {"BatchNormalization": {}},
        {"Dropout": {"rate": "$dropout"}},
        {"Dense": {"units": "$classes", "activation": "softmax"}},
    ]
}
ROWS = 240
RATES = [0.001, 0.003, 0.01, 0.03]
TOLERANCE = 1e-4  # of weights after two epochs of 24 minibatches each: rounding of float32, in another order


@pytest.fixture(scope="module")
def lab(session):
    random = np.random.default_rng(3)
    x = random.normal(size=(ROWS, 4)).astype(np.float32)
    rows = {"x": x, "kind": (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)}
    table = session.sharded({"x": "real[]", "kind": "integer"}, rows, sizes=[ROWS // 2, ROWS // 2])
    model = session.model(MODEL)

    def fit(rates=RATES, **options) -> str:
        space = {"learning_rate": rates, "dropout": [0.2]}
        given = {"epochs": 2, "batch_size": 5, "validation": 0.2, "seed": 4, "search": {"space": space}, **options}
        return session.fit(table, model, "kind", ["x"], **given)

    return fit


def together(session, run: str) -> list[tuple]:
    """(trial, epoch, phase, shard, whether fused, with whom) of every visit."""
    return session.rows(
        "select trial, epoch, phase, shard, (details->>'fused')::boolean, details->'together' from cerebro.visit"
        " where run = %s order by trial, epoch, phase, shard",
        run,
    )


@pytest.mark.parametrize(
    "space",
    [{"learning_rate": RATES, "dropout": [0.2]}, {"learning_rate": RATES[:2], "dropout": [0.1, 0.6]}],
    ids=["rates", "dropout"],
)
def test_members_of_a_group_end_where_each_would_have_ended_alone(session, lab, space):
    fused, alone = lab(order="fixed", fuse=True, search={"space": space}), lab(order="fixed", search={"space": space})
    visits = together(session, fused)
    assert any(visit[4] for visit in visits), "a dense model gains from being trained as one"
    assert not any(visit[5] for visit in together(session, alone))
    # The group goes where its first member would have gone alone; the second one alone begins elsewhere.
    states, lone = outcome.states(session.cluster, fused), outcome.states(session.cluster, alone)
    pairs = [(key, outcome.arrays(states[key]), outcome.arrays(lone[key])) for key in sorted(set(states) & set(lone)) if key[0] % 2 == 0]
    assert pairs
    for key, one, other in pairs:
        for name in one:
            np.testing.assert_allclose(one[name], other[name], atol=TOLERANCE, rtol=TOLERANCE, err_msg="%s %s" % (key, name))


def test_each_member_makes_every_visit_once(session, lab):
    run = lab(order="fastest", fuse=True)
    visits = [visit[:4] for visit in together(session, run)]
    assert len(visits) == len(set(visits)) == len(RATES) * 2 * 2 * 2
    assert session.rows("select count(*) from cerebro.visit where run = %s and state <> 'done'", run) == [(0,)]


def test_a_member_that_diverges_leaves_and_the_rest_goes_on_undisturbed(session, lab):
    run = lab([0.001, 0.003, 1e18, 0.01], order="fixed", fuse=True, optimizer="sgd")
    states = dict(session.rows("select trial, state from cerebro.trial where run = %s", run))
    assert states == {0: "done", 1: "done", 2: "failed", 3: "done"}
    reference = lab([0.001, 0.003, 1e-3 + 1e-9, 0.01], order="fixed", fuse=True, optimizer="sgd")
    for trial in (0, 1, 3):
        (mine,), (other,) = (
            session.rows("select metric from cerebro.trial where run = %s and trial = %s", name, trial) for name in (run, reference)
        )
        assert mine == pytest.approx(other, abs=TOLERANCE)


def test_members_stop_early_each_by_itself(session, lab):
    run = lab([1e-7, 0.003, 0.01, 0.03], fuse=True, epochs=4, early_stopping={"patience": 1, "min_delta": 0.001})
    ended = session.rows(
        "select t.trial, t.stopped is not null, max(e.epoch) from cerebro.trial t join cerebro.epoch e using (run, trial)"
        " where run = %s group by 1, 2 order by 1",
        run,
    )
    assert ended[0] == (0, True, 2)
    assert len({epochs for _, _, epochs in ended}) > 1, "the others went on"


def test_nothing_is_fused_under_fixed_unless_asked_for(session, lab):
    assert not any(visit[5] for visit in together(session, lab(order="fixed", fuse=None)))
