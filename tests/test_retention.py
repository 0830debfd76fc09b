"""Runs that are no longer wanted go, by number, age and size; what a run took is shown, and told in the log."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.cluster import poll_until
from tests.session import POINTS, points

WARM = True
SMALL = {"segments": 1, "epochs": 1}


@pytest.fixture(scope="module")
def table(session):
    return session.local(POINTS, points())


@pytest.fixture(scope="module")
def model(session):
    return session.model()


@pytest.fixture
def runs(session, table, model):
    """A common beginning of names, and four runs of such names, oldest first."""
    name = session.name()
    made = [session.fit(table, model, "label", run="%s_%d" % (name, number), **SMALL) for number in range(4)]
    yield name, made
    session.rows("select * from cerebro.drop_runs(%s, '{\"runs\": 0}')", name + "%")


def left(session, name: str) -> list[str]:
    return [run for (run,) in session.rows("select run from cerebro.run where run like %s order by started_at", name + "%")]


def dropped(session, name: str, options: str) -> list[str]:
    return [row[0] for row in session.rows("select * from cerebro.drop_runs(%s, %s)", name + "%", options)]


def test_the_newest_runs_stay_and_what_an_alias_needs(session, runs):
    name, made = runs
    session.rows("select cerebro.promote(%s, %s)", made[0], "alias_" + name)
    size = session.rows("select bytes from cerebro.run where run = %s", made[0])[0][0]
    stored = "select sum(octet_length(data)) from cerebro_internal.state s join cerebro_internal.run r on r.id = s.run where r.name = %s"
    assert size == session.cluster.coordinator.execute(stored, [made[0]])[0][0] > 0
    assert dropped(session, name, '{"runs": 2, "dry_run": true}') == [made[1]]
    assert left(session, name) == made
    assert dropped(session, name, '{"runs": 2}') == [made[1]]
    assert dropped(session, name, '{"bytes": %d}' % (2 * size)) == []  # the one behind the alias counts, and stays
    assert dropped(session, name, '{"bytes": %d}' % (2 * size - 1)) == [made[2]]
    assert dropped(session, name, '{"age": "1 h"}') == []
    older = "update cerebro_internal.run set finished_at = now() - interval '2 h' where name like %s"
    session.cluster.coordinator.execute(older, [name + "%"])
    assert session.rows("select age between interval '2 h' and interval '3 h' from cerebro.run where run = %s", made[3]) == [(True,)]
    assert dropped(session, name, '{"age": "1 h"}') == [made[3]]
    assert left(session, name) == [made[0]]
    session.rows("select cerebro.drop_alias(%s)", "alias_" + name)


def test_a_run_that_is_done_lets_older_ones_of_its_source_and_model_go(session, table, model, runs):
    name, made = runs
    other = session.fit(table, session.model(), "label", run=name + "_of_another_model", **SMALL)
    newest = session.fit(table, model, "label", run=name + "_newest", retention={"runs": 2}, **SMALL)
    assert left(session, name) == [made[3], other, newest]
    assert any(re.match(r'retention: dropped \d+ earlier runs \(\d+\.\d MB\): ', notice) for notice in session.notices)


def test_a_run_that_is_done_stays_so_when_letting_older_ones_go_is_cancelled(session, table, model, runs):
    name, made = runs
    call = session.call(table, model, "label", run=name + "_newest", retention={"runs": 4}, **SMALL)
    with session.cluster.connect(session.role, autocommit=False) as holding:
        holding.execute("select 1 from cerebro_internal.visible_run where name = %s for update", [made[0]])
        session.conn.execute("set statement_timeout = '3s'")
        try:
            with pytest.raises(psycopg.errors.QueryCanceled):
                session.conn.execute(*call)
        finally:
            session.conn.execute("reset statement_timeout")
    assert session.rows("select state, error from cerebro.run where run = %s", name + "_newest") == [("done", None)]


def test_a_pattern_that_like_does_not_take_is_refused(session):
    error = session.error("select * from cerebro.drop_runs(%s, '{\"runs\": 1}')", "a\\")
    assert (error.sqlstate, error.message) == ("22023", "argument pattern ends with half an escape") and error.hint


def test_a_run_that_is_driven_stays_and_another_roles_are_not_seen(session, table, model, runs, make_role):
    name, made = runs
    with session.cluster.connect(make_role()) as stranger, ThreadPoolExecutor(1) as pool, session.cluster.connect(session.role) as beside:
        assert stranger.execute("select * from cerebro.drop_runs('%%', '{\"runs\": 0}')").fetchall() == []
        statement, values = session.call(table, model, "label", run=name + "_driven", segments=1, epochs=100_000)
        driving = pool.submit(beside.execute, statement, values)
        poll_until(lambda: session.rows("select 1 from cerebro.visit where run = %s limit 1", values[0]))
        assert dropped(session, name, '{"runs": 0}') == made
        session.rows("select cerebro.cancel(%s)", values[0])
        assert driving.exception(30).sqlstate == "57014"
    assert dropped(session, name, '{"runs": 0}') == [values[0]]


def test_the_log_has_a_line_for_every_call_that_trains(session, table, model, cluster):
    before = cluster.coordinator.log_size()
    good = session.fit(table, model, "label", **SMALL)
    bad = session.call(table, session.model({"layers": [{"Conv2D": {"filters": 1, "kernel_size": 9}}]}), "label", **SMALL)
    session.error(*[bad[0], *bad[1]])
    lines = [line for line in cluster.coordinator.log_since(before).splitlines() if "LOG:  cerebro: run " in line]
    assert len(lines) == 2
    assert re.search(r'run "%s": done after \d+\.\d s; 1 trial \(1 done\); \d visits?; best loss 0?\.\d+, of trial 0$' % good, lines[0])
    assert '"%s": failed after' % bad[1][0] in lines[1] and "(SQLSTATE ML005)" in lines[1]


def test_a_run_keeps_the_versions_that_it_began_with_and_says_where_they_are_others(session, table, model):
    run = session.fit(table, model, "label", time_limit=1e-6, **SMALL)
    (found,) = session.rows("select shards -> 'versions' from cerebro.run where run = %s", run)[0]
    assert all(set(versions) == {"python", "tensorflow", "keras", "numpy"} for versions in found.values()) and found
    changed = (
        "update cerebro_internal.run set plan = jsonb_set(plan, array['versions', %s, 'keras'], '\"2.0\"')"
        ", options = options - 'time_limit' where name = %s"
    )
    session.cluster.coordinator.execute(changed, [next(iter(found)), run])
    session.conn.execute("select * from cerebro.resume(%s)", [run])
    assert any(re.search(r'runs keras \d.*, and the run began with 2\.0', notice) for notice in session.notices)


def test_a_run_of_a_newer_version_is_not_read(session, table, model):
    run = session.fit(table, model, "label", **SMALL)
    newer = "update cerebro_internal.run set encoders = jsonb_set(encoders, '{format}', '99'), details = '{}' where name = %s"
    session.cluster.coordinator.execute(newer, [run])
    for call in ("cerebro.predict(%s, array[1, 2])", "cerebro.export_model(%s)", "cerebro.resume(%s)"):
        error = session.error("select * from " + call, run)
        assert (error.sqlstate, error.message) == ("0A000", 'run "%s" was trained by a newer version of cerebro' % run)
        assert "format 99" in error.detail and error.hint
