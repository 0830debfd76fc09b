"""Packed tables: blocks beside the rows, trained on bit for bit as the source is, and known to be out of date."""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import numpy as np
import psycopg
import pytest

from cerebro_udf.errors import other
from tests import requirements as requires
from tests.cluster import ROLE, poll_until
from tests.faults import armed, cancelled, kill_backend
from tests.outcome import everything
from tests.session import POINTS, Refusal, points
from tests.test_predict_table import made

WARM = True
pytestmark = requires.segments(3)

COLUMNS = {"id": "integer", **POINTS, "kind": "text", "w": "real"}
NOISY = {"layers": [{"Dense": {"units": 4, "activation": "relu"}}, {"Dropout": {"rate": 0.3}}, {"Dense": {"units": "$classes"}}]}
OPTIONS = {"validation": 0.25, "encoders": {"kind": "embedding"}, "sample_weight": "w", "nulls": {"a": {"value": 0.25}}}
CALL = "select cerebro.pack(%s::text::regclass, %s, %s, %s::text[], %s::jsonb)"
FIT = "select * from cerebro.fit(%s, %s::text::regclass, %s, %s, %s::text[], %s::jsonb)"
FEATURES = "{a,b,kind}"
DOCS = Path(__file__).resolve().parent.parent / "docs" / "pack.md"


def rows(count: int = 90) -> dict:
    data = points(count)
    a = [None if k % 11 == 0 else value for k, value in enumerate(data["a"].tolist())]
    kinds = ["kind %d" % (k % 7) for k in range(count)]
    return {"id": np.arange(count), **data, "a": a, "kind": kinds, "w": 1 + np.arange(count) % 3}


@pytest.fixture(scope="module")
def source(session):
    return session.sharded(COLUMNS, rows(), sizes=[40, 49, 1])


@pytest.fixture(scope="module")
def model(session):
    return session.model(NOISY)


def pack(session, table, seed: int = 7, **options) -> str:
    target = session.schema + "." + session.name("packed")
    values = (table.name, target, "label", FEATURES, json.dumps({**OPTIONS, "seed": seed, **options}))
    assert session.rows(CALL, *values) == [(90,)]
    return target


@pytest.fixture(scope="module")
def packed(session, source):
    return pack(session, source)


def fit(session, source, model, label=None, features=None, **options) -> str:
    run = session.name()
    given = {"epochs": 2, "batch_size": 8, "seed": 7, "order": "fixed", **options}
    session.rows(FIT, run, source, model, label, features, json.dumps(given))
    return run


def fresh(session, target: str) -> tuple:
    ((ok, value),) = [
        (ok, value) for _, item, ok, value, _ in session.rows("select * from cerebro.doctor()") if item == "packed table " + target
    ]
    return ok, value


# ---- what is trained


@pytest.mark.parametrize("weights", [{}, {"class_weight": "balanced"}])
def test_a_packed_table_trains_as_its_source_bit_for_bit(session, source, packed, model, weights):
    plain = everything(session.cluster, fit(session, source.name, model, "label", FEATURES, **OPTIONS, **weights))
    session.notices.clear()
    run = fit(session, packed, model, **weights)
    assert plain[2] and everything(session.cluster, run) == plain
    assert not any("changed" in notice for notice in session.notices)
    row = json.dumps({"a": 0.5, "b": -1.5, "kind": "kind 3"})
    assert session.rows("select cerebro.predict_class(%s, %s::text)", run, row)[0][0] in ("true", "false")
    assert {name for name, _ in session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", run, source.name)} >= {"loss"}


def test_local_workers_train_on_their_own_blocks(session, model):
    table = session.local(COLUMNS, rows())
    target = pack(session, table, segments=1)
    assert session.rows("select segment, rows_estimate > 0 from cerebro.segments(%s::text::regclass)", target)
    plain = everything(session.cluster, fit(session, table.name, model, "label", FEATURES, segments=1, **OPTIONS))
    assert everything(session.cluster, fit(session, target, model)) == plain


def test_expressions_a_filter_and_a_sample_are_packed(session, source, model):
    features, label, target = ["b * b", "upper(kind)"], "not label", session.schema + "." + session.name("packed")
    options = {"sample_weight": "w + 1", "filter": "kind <> 'kind 3'", "sample": 0.5, "seed": 7}
    ((count,),) = session.rows(CALL, source.name, target, label, features, json.dumps(options))
    assert 0 < count < 70
    plain = everything(session.cluster, fit(session, source.name, model, label, features, **options))
    named = {key: options[key] for key in ("sample_weight", "filter")}
    assert plain[2] and everything(session.cluster, fit(session, target, model, label, features, **named)) == plain
    for label_now, features_now, now in (
        (None, features, named), (label, None, named), (label, features, {**named, "filter": None}),
        (label, features, {**named, "sample_weight": None}),
    ):  # fmt: skip
        assert refused(session, target, model, label_now, features_now, **now).sqlstate == "42501"


def test_a_label_of_several_numbers_and_rows_of_another_table_for_validation_are_packed(session):
    columns = {"a": "real", "b": "real", "y": "real[]"}
    one, other = ([(a, b, [a + b, a - b]) for a, b in np.random.default_rng(k).normal(size=(40, 2)).round(3).tolist()] for k in (1, 2))
    table, held = session.local(columns, one), session.local(columns, other)
    target, line = session.schema + "." + session.name("packed"), session.model({"layers": [{"Dense": {"units": 2}}]})
    options = {"validation": {"table": held.name}, "segments": 1}
    assert session.rows(CALL, table.name, target, "y", "{a,b}", json.dumps(options)) == [(80,)]
    plain = everything(session.cluster, fit(session, table.name, line, "y", "{a,b}", **options))
    assert everything(session.cluster, fit(session, target, line)) == plain
    session.conn.execute("drop table %s" % held.name)
    assert fresh(session, target)[0] is False


def test_dates_in_options_are_read_once_for_packed_submitted_and_later_runs(session):
    """What they mean is settled as the caller's session reads them, whoever goes on with it; 1 March 2024 is 1709251200."""
    days = ["2024-%02d-%02d" % (1 + n % 4, 1 + n % 28) for n in range(60)]
    lines = [[None if n % 9 == 0 else day, None if n % 7 == 0 else days[n % 4], day, n % 2 == 0] for n, day in enumerate(days)]
    table = session.local({"day": "date", "kind": "date", "at": "timestamptz", "label": "boolean"}, lines)
    model, features = session.model({"layers": [{"Dense": {"units": "$classes"}}]}), "{day,kind}"
    target = session.schema + "." + session.name("packed")

    def dated(*months: str) -> dict:
        return {
            "encoders": {"day": {"bucketize": {"boundaries": list(months)}}, "kind": "one_hot"},
            "nulls": {"day": {"value": months[1]}, "kind": {"value": months[1]}}, "validation": {"time": "at", "from": months[1]},
        }  # fmt: skip

    def settled(run: str) -> tuple:
        asked = ", ".join("options -> '%s'" % key for key in dated("", ""))
        return session.rows("select %s from cerebro.run where run = %%s" % asked, run)[0]

    given = {"epochs": 1, "batch_size": 8, "seed": 7, "order": "fixed", "segments": 1}
    session.conn.execute("set datestyle = 'ISO, DMY'; set timezone = 'Asia/Tokyo'")
    try:
        first, submitted, written = session.name(), session.name(), dated("01/02/2024", "01/03/2024")
        for call, run in (("fit", first), ("submit", submitted)):
            session.rows(FIT.replace("fit", call), run, table.name, model, "label", features, json.dumps({**given, **written}))
        session.rows(CALL, table.name, target, "label", features, json.dumps({"seed": 7, "segments": 1, **written}))
        assert settled(first) == (
            {"day": {"bucketize": {"boundaries": [1706745600, 1709251200]}}, "kind": "one_hot"},
            {"day": {"value": 1709251200}, "kind": {"value": "2024-03-01"}}, {"time": "at", "from": "2024-03-01T00:00:00+09:00"},
        )  # fmt: skip
        session.conn.execute("set datestyle = 'ISO, MDY'")
        other = dated("02/01/2024", "03/01/2024")
        runs = [fit(session, target, model, **{**given, **options}) for options in ({}, other)]
        runs.append(fit(session, table.name, model, "label", features, **given, **{**other, "init_from": {"run": first}}))
        session.rows("select * from cerebro.wait(%s)", submitted)
        for run in (submitted, *runs):
            assert settled(run) == settled(first)
        plain = everything(session.cluster, first)
        assert plain[2] and all(everything(session.cluster, run) == plain for run in (submitted, *runs[:2]))
        assert refused(session, target, model, **written).sqlstate == "22023"
        for key in ("encoders", "nulls"):
            assert "other %s" % key in refused(session, target, model, **{key: written[key]}).message
            error = refused(session, table.name, model, "label", features, init_from=first, **{key: written[key]})
            assert error.sqlstate == "22023" and "other %s" % key in error.message
    finally:
        session.conn.execute("reset datestyle; reset timezone")


def test_a_single_output_that_is_named_is_packed_and_trained_by_its_label(session):
    table, model = session.local(COLUMNS, rows(30)), session.model({"layers": [{"Dense": {"units": 1}}]})
    target, given = session.schema + "." + session.name("packed"), {"segments": 1, "seed": 7, "order": "fixed"}
    outputs = {"outputs": {"y": {"label": "w", "task": "regression"}}}
    session.rows(CALL, table.name, target, None, "{b}", json.dumps({"segments": 1, "seed": 7, **outputs}))
    plain = everything(session.cluster, fit(session, table.name, model, None, "{b}", **given, **outputs))
    for options in (outputs, {}, {"outputs": {"z": "w"}}):
        run = fit(session, target, model, **given, **options)
        assert plain[2] and everything(session.cluster, run) == plain
        assert session.rows("select label, options -> 'outputs' from cerebro.run where run = %s", run) == [("w", None)]
    assert "another label" in refused(session, target, model, **{"outputs": {"y": "a"}}).message
    assert "exclude each other" in refused(session, target, model, "w", **outputs).message


def test_another_seed_and_more_runs_go_with_one_packed_table(session, source, packed, model):
    one, other = (everything(session.cluster, fit(session, packed, model, seed=seed)) for seed in (7, 8))
    assert one != other


def test_a_reader_of_its_own_decodes_a_block_as_the_docs_say(session, source, packed):
    recipe = re.search(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL).group(1)
    with session.cluster.connect(ROLE) as connection:
        names = {"connection": connection, "table": packed}
        exec(recipe, names)  # noqa: S102  the page's own words
    found, header = names["found"], names["headers"][0]
    assert sum(len(part["label"]) for part in found.values()) == 90
    held = np.concatenate([found[shard, "validation"]["label"] for shard in range(3)])
    train = np.concatenate([found[shard, "train"]["label"] for shard in range(3)])
    assert header["encoders"]["rows"] == {"train": len(train), "validation": len(held)}
    assert np.concatenate([train, held]).sum() == sum(points(90)["label"])
    assert found[0, "train"]["codes"].dtype == np.int32 and found[0, "train"]["numbers"].dtype == np.float32
    kept = np.float32([np.nan if value is None else value for value in rows()["a"]])
    mean, scale = header["encoders"]["features"][0]["mean"][0], header["encoders"]["features"][0]["scale"][0]
    numbers = np.sort(np.concatenate([found[k, part]["numbers"][:, 0] for k in range(3) for part in ("train", "validation")]))
    expected = np.sort((np.where(np.isnan(kept), header["encoders"]["features"][0]["nulls"]["value"], kept) - mean) / scale)
    assert np.allclose(numbers, expected, atol=1e-5)


# ---- what is known of the source


def test_a_change_of_the_source_is_told(session, model):
    table = session.sharded(COLUMNS, rows(), sizes=[40, 49, 1])
    target = pack(session, table)
    assert fresh(session, target) == (True, "fresh")
    with session.cluster.connect(ROLE, node=2) as segment:
        segment.execute("update %s.%s set b = b + 1 where id < 50" % (table.schema, table.parts[1]))
    poll_until(lambda: fresh(session, target)[0] is False, 30)
    assert "10 updated" in fresh(session, target)[1]
    session.notices.clear()
    fit(session, target, model, epochs=1)
    assert [notice for notice in session.notices if "has changed since it was packed into " + target in notice]
    with session.cluster.connect(ROLE, node=3) as segment:
        segment.execute("truncate %s.%s" % (table.schema, table.parts[2]))
    session.conn.execute("drop table %s" % table.name)
    assert fresh(session, target) == (False, "changed: table %s does not exist any more" % table.name.replace('"', ""))


def test_counters_that_were_reset_prove_nothing(session, admin):
    table = session.local(COLUMNS, rows())
    target = pack(session, table)
    assert fresh(session, target) == (True, "fresh")
    admin.execute("select pg_stat_reset()")
    assert fresh(session, target)[0] is None


# ---- what is refused


def refused(session, packed, model, label=None, features=None, **options) -> Refusal:
    return session.error(FIT, session.name(), packed, model, label, features, json.dumps({"epochs": 1, **options}))


def test_a_packed_table_is_not_predicted_but_its_source_is_named(session, packed, model):
    run = fit(session, packed, model, epochs=1)
    for call, values in (
        ("select * from cerebro.evaluate(%s, %s::text::regclass)", (run, packed)),
        ("select cerebro.predict_table(%s, %s::text::regclass, 'scored', '{number}')", (run, packed)),
    ):
        error = session.error(call, *values)
        assert (error.sqlstate, error.hint) == ("42703", "It is a packed table: name the one that it was packed from.")


def test_what_contradicts_the_packed_table_is_refused(session, packed, model):
    others = {
        "validation": 0.5, "nulls": "skip", "task": "regression", "sample_weight": "b", "encoders": {"kind": "one_hot"}, "filter": "a > 0",
        "sample": 0.5,
    }  # fmt: skip
    for key, given in others.items():
        error = refused(session, packed, model, **{key: given})
        assert (error.sqlstate, error.message) == ("22023", "table %s was packed with %s" % (packed, other(key)))
        assert "Leave it out" in error.hint
    assert "another label" in refused(session, packed, model, "a").message
    assert "other features" in refused(session, packed, model, None, "{b,a}").message
    fit(session, packed, model, "label", FEATURES, epochs=1, validation=0.25)


def test_pack_checks_its_arguments(session, source, packed):
    def error(target="t", label="label", features=FEATURES, **options):
        return session.error(CALL, source.name, target, label, features, json.dumps(options))

    assert error(packed).sqlstate == "42710"
    assert 'Did you mean "encoders"' in error(encoder={}).hint
    assert error(epochs=3).sqlstate == "22023"
    assert error(label=None).sqlstate == "22004"
    assert error(source.name, if_exists="replace").sqlstate == "22023"
    assert session.error(CALL, packed, "t", "label", FEATURES, "{}").message.endswith("is packed already")


def test_a_table_that_is_not_whole_is_refused(session, source, model):
    target = pack(session, source)
    (name,) = [name for number, name in made(session) if number == 1 and name.startswith(target)]
    with session.cluster.connect(ROLE, node=1) as segment:
        segment.execute("update %s set data = set_byte(data, octet_length(data) - 1, 1) where part = 'train'" % name)
        assert refused(session, target, model).sqlstate == "ML003"
        segment.execute("delete from %s where part = 'train'" % name)
        assert "not whole" in refused(session, target, model).message
        segment.execute("delete from %s" % name)
        assert "not whole" in refused(session, target, model).message


def test_a_header_that_contradicts_itself_is_refused_and_none_gives_what_is_evaluated_later(session, admin):
    """What a call names are labels and features; SQL elsewhere in the header would run as whoever reads with the run."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    import keras

    table, line = session.local(COLUMNS, rows(30)), session.model(NOISY)
    target = session.schema + "." + session.name("packed")
    several = {"c": "label", "size": {"label": "w", "task": "regression"}}
    x = keras.Input((2,))
    ends = [keras.layers.Dense(units, activation, name=name)(x) for name, units, activation in (("c", 2, "softmax"), ("size", 1, None))]
    two = session.model(json.loads(keras.Model(x, ends).to_json()))
    sql = "1/0 = 1"
    for label, options, model, changes in (
        ("label", {}, line, {
            "encoders,labels,0,name": sql, "encoders,labels,0,type": "text", "encoders,labels,0,task": "regression",
            "encoders,labels,0,output": "c", "encoders,features,0,name": sql, "encoders,features,0,type": "text", "labels,0,output": "c",
            "options,outputs": {"c": sql}, "options,task": "regression", "types,label": "text",
        }),
        (None, {"outputs": several}, two, {
            "options,outputs,c": sql, "options,outputs,size,label": sql, "options,outputs,size,task": "classification",
            "encoders,labels,1,output": "c", "options,outputs": None,
        }),
    ):  # fmt: skip
        given = {"segments": 1, "if_exists": "replace", **options}
        session.conn.execute(CALL, [table.name, target, label, "{a,b}", json.dumps({**given, "nulls": {"a": "skip"}})])
        for path, value in changes.items():
            change = "update %s set header = %%s::json where part = 'header'" % target
            ((header,),) = session.rows("select header from %s where part = 'header'" % target)
            session.conn.execute(change, [json.dumps(changed(header, path.split(","), value))])
            error = refused(session, target, model, label, "{a,b}", **options)
            assert error.sqlstate == "55000" and error.message.startswith("the header of packed table"), path
            session.conn.execute(change, [json.dumps(header)])
        run = fit(session, target, model, label, "{a,b}", epochs=1, **options)
    admin.execute("update cerebro_internal.run set encoders = jsonb_set(encoders, '{labels,0,name}', '\"1/0 = 1\"') where name = %s", [run])
    assert session.rows("select * from cerebro.evaluate(%s, %s::text::regclass, '{\"nulls\": \"skip\"}')", run, table.name)


def changed(tree, path: list, value):
    """A copy of a JSON value with another one in this place."""
    if not path:
        return value
    copied, key = (dict(tree), path[0]) if isinstance(tree, dict) else (list(tree), int(path[0]))
    copied[key] = changed(copied.get(key) if isinstance(copied, dict) else copied[key], path[1:], value)
    return copied


# ---- replacing, and what is left


def test_replace_and_cancel_leave_one_whole_table(session, source, packed, model):
    target = pack(session, source)
    before = session.rows("select shard, part, number, header::text from %s order by 1, 2, 3" % target)
    values = (source.name, target, "label", FEATURES, json.dumps({**OPTIONS, "if_exists": "replace"}))
    pid, failure, held = session.conn.info.backend_pid, [], made(session)
    with armed(session.cluster.nodes[2], target, "mid-pack", 1) as reached:

        def call():
            try:
                session.conn.execute(CALL, values)
            except psycopg.Error as error:
                failure.append(error.sqlstate)

        thread = threading.Thread(target=call)
        thread.start()
        reached()
        session.cluster.coordinator.execute("select pg_cancel_backend(%s)", [pid])
        thread.join()
        assert failure == ["57014"]
    poll_until(lambda: made(session) == held, 10)
    assert session.rows("select shard, part, number, header::text from %s order by 1, 2, 3" % target) == before
    session.rows(CALL, *values)
    assert session.rows("select shard, part, number, header::text from %s order by 1, 2, 3" % target) != before
    fit(session, target, model, epochs=1)


def test_a_reader_needs_select_on_the_blocks(session, packed, make_role, cluster):
    role = make_role()
    other = cluster.connect(role)
    try:
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.execute("select * from cerebro.fit('r', %s::text::regclass, 'm')", [packed])
    finally:
        other.close()


# ---- in the other calls


def test_a_run_on_a_packed_table_is_explained_submitted_cancelled_and_resumed(session, model):
    packed = pack(session, session.sharded(COLUMNS, rows(), sizes=[90]))
    plain = everything(session.cluster, fit(session, packed, model))
    found = dict(session.rows("select property, value from cerebro.explain_fit(%s::text::regclass, %s)", packed, model))
    assert found["training rows"] + found["validation rows"] == 90
    run = session.name()
    options = json.dumps({"epochs": 2, "batch_size": 8, "seed": 7, "order": "fixed"})
    with armed(session.cluster.coordinator, run, "committed", 2) as reached:
        session.rows("select cerebro.submit(%s, %s::text::regclass, %s, options => %s::jsonb)", run, packed, model, options)
        reached()
        assert session.rows("select cerebro.cancel(%s)", run) == [(True,)]
    session.rows("select * from cerebro.resume(%s)", run)
    assert everything(session.cluster, run) == plain


def test_a_run_is_not_resumed_on_blocks_that_were_packed_anew(session, source, model):
    target = pack(session, source)
    run = session.name()
    options = json.dumps({"epochs": 2, "batch_size": 8, "order": "fixed"})
    cancelled(session, session.cluster.coordinator, run, "committed", 2, FIT, [run, target, model, None, None, options])
    session.rows(CALL, source.name, target, "label", FEATURES, json.dumps({**OPTIONS, "seed": 7, "if_exists": "replace"}))
    assert session.error("select * from cerebro.resume(%s)", run).sqlstate == "ML002"


def test_after_a_crash_nothing_is_called_fresh(session, source, packed):
    assert fresh(session, packed) == (True, "fresh")
    node = session.cluster.nodes[3]
    kill_backend(node, node.execute("select pid from pg_stat_activity where backend_type = 'checkpointer'")[0][0])
    ok, value = fresh(session, packed)
    assert ok is None and value.startswith("cannot tell: the counters of segment_3 have been reset")


def test_doctor_reads_no_table_of_another_role_though_it_looks_packed(session, superuser):
    """Here its only partition leads to a view, whose function would act as whoever calls doctor."""
    columns = "shard integer, part text, number integer, rows bigint, header json, data bytea, segment text"
    with session.cluster.connect(ROLE, node=1) as there:
        there.execute(
            "create table {0}.diary (who text); create function {0}.note() returns json language sql"
            " as 'insert into {0}.diary values (current_user) returning null::json';"
            "create view {0}.bait_1 as select 0 as shard, 'header' as part, 0 as number, 0::bigint as rows, {0}.note() as header"
            ", null::bytea as data".format(session.schema)
        )
    session.conn.execute(
        "create table bait (%s) partition by list (segment); create foreign table bait_1 partition of bait"
        " for values in ('segment_1') server segment_1; grant usage on schema %s to public; grant select on bait to public"
        % (columns, session.schema)
    )
    superuser.execute("select * from cerebro.doctor()")
    assert session.cluster.node(1).execute("select * from %s.diary" % session.schema) == []
    error = session.error(FIT, "r", session.schema + ".bait", "m", None, None, "{}")  # but by whoever names it
    assert (error.sqlstate, error.message) == ("25006", 'segment "segment_1": cannot execute INSERT in a read-only transaction')
