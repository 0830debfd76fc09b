"""Every function of schema cerebro, each of its arguments in turn being what makes no sense, the others valid.

Either that is taken for what it says, or the error says which argument is wrong and what to do; nothing else is changed.
"""

from __future__ import annotations

import io
import json
import random
import re
import time
import zipfile
from pathlib import Path

import psycopg
import pytest

from cerebro_udf.errors import CerebroError
from tests import requirements as requires
from tests.cluster import ADMIN, poll_until
from tests.session import IDLE_SECONDS, LINE, LOGIT, POINTS, PREFIX, Session, points
from tests.tables import quoted
from tests.unit import test_fuzz as fuzz

WARM = True
pytestmark = requires.segments(3)

HERE = Path(__file__).parent
LISTED = (HERE / "sql" / "functions.out").read_text("utf-8")  # tests/test_texts.py holds it to pg_proc
FUNCTIONS = sorted(set(re.findall(r"^function    \| (\w+)\((?!\))", LISTED, re.M)))
ERRORS = re.findall(r"^\| (\w{5}(?:, \w{5})*) \|", (HERE.parent / "docs" / "errors.md").read_text("utf-8"), re.M)
DOCUMENTED = set(", ".join(ERRORS).split(", "))
SECONDS = 20.0  # of one call: a worker that has to begin anew imports TensorFlow
NOUNS = {"source": ["table"], "target": ["schema"], "key": ["column"], "row": ["feature"]}  # what an error calls what an argument names

DEEP = "[" * 10_000 + "]" * 10_000
NESTED = '{"a": ' * 10_000 + "1" + "}" * 10_000
LONG = "".join(chr(0x4E00 + 7919 * number % 20_000) for number in range(33_000))  # 99 kB that hardly compress
ODD = 'a "b" \'c\'; drop table canary; --\n$$%s'


def archive(config: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("config.json", config)
        file.writestr("model.weights.h5", b"x")
    return data.getvalue()


TEXTS = ["", "   ", "\n\t", ODD, LONG, "x" * 100_000, DEEP, "null", "-1", "NaN", "\u202e\ufffe", "%s%n", "$x", "cerebro_internal.run"]
OBJECTS = ["null", "true", "-1", "1e308", '"x"', "[]", '{"": 1}', '{"a": 1e308}', '{"%s": 1}' % LONG, json.dumps(ODD), DEEP, NESTED]
VALUES = {
    "text": TEXTS,
    "jsonb": OBJECTS,
    "integer": [-1, 2**31 - 1, -(2**31)],
    "interval": ["-1 s", "0", "178000000 years", "-178000000 years"],
    "regclass": ["0", "4294967295", "pg_class", "cerebro_internal.run", "cerebro.run", "an_index", "a_sequence", "a_type", "empty", "bare"],
    "text[]": [
        "{}", "{NULL}", '{""}', '{"  "}', "{{a},{b}}", "{a,a}", "{a,NULL}", "[0:1]={a,b}", '{"a; drop table canary"}', '{"%s"}' % LONG,
        "{%s}" % ",".join("c%d" % number for number in range(5000)), '{"%sa%s"}' % ("(" * 10_000, ")" * 10_000),
    ],
    "bytea": [
        b"", bytes(100_000), b"PK\x05\x06" + bytes(18), b"\x89HDF\r\n\x1a\n" + bytes(100), archive("[]"), archive(DEEP),
        archive("\ufeff{}"), archive('{"class_name": "\\ud800"}'), archive('{"layers": [{"Dense": {"units": 1, "name": "\\u0000"}}]}'),
    ],
}  # fmt: skip
ROWS = [
    *TEXTS, *OBJECTS, "{}", "{1,2,3}", "{1", "{{1,2},{3,4}}", '{"a": [1], "b": {}}', '{"a": "x", "b": 1}', '{"a": null, "b": 1}',
    '{"a": NaN, "b": 1}', '{"a": 1e999, "b": 1}', '{"a": %s, "b": 1}' % ("9" * 5000), '{"\\ud800": 1}', '{"a": "\\u0000", "b": 1}',
]  # fmt: skip
TYPED = [
    *[("jsonb", text) for text in OBJECTS], ("json", DEEP), ("json", '{"a": "\\ud800"}'), ("integer", None), ("text[]", "{a,b}"),
    ("text[]", '{"%s"}' % LONG), ("float8[]", "{}"), ("float8[]", "{NULL,NULL}"), ("float8[]", "{{1,2},{3,4}}"), ("float8", "NaN"),
    ("float8[]", "{1,Infinity}"), ("numeric[]", "{1e1000,1}"), ("bytea", "\\x00"), ("int4range", "[1,2)"), ("timestamp", "infinity"),
]  # fmt: skip


def hostile(argument: str, type_: str) -> list[tuple[str, object]]:
    """The values of an argument, each with its type."""
    if type_ == "anyelement":
        return TYPED
    values = ROWS if argument == "row" else VALUES[type_]
    return [(type_, None), *[(type_, value) for value in values]]


class World:
    """A run of each task, an alias and a packed table in a session; what there is of all that; and the valid arguments."""

    def __init__(self, session: Session):
        self.session = session
        rows = points(80)
        table = session.local({**POINTS, "id": "integer"}, {**rows, "id": list(range(80))})
        for statement in (
            "create table canary (a int)", "create index an_index on canary (a)", "create sequence a_sequence", "create table bare ()",
            "create type a_type as (a int)", "create table empty (a real, b real, label bool, id int)",
        ):  # fmt: skip
            session.conn.execute(statement)
        small = {"epochs": 1, "segments": 1, "order": "fixed", "validation": 0}
        model = session.model()
        run, number = session.name(), session.name()
        for name, *arguments in ((run, model, "label", ["a", "b"]), (number, session.model(LINE), "b", ["a"])):
            session.fit(table, *arguments, run=name, order="fixed", segments=1)
        for name in (number, run):
            session.conn.execute("select cerebro.promote(%s, 'an alias')", [name])
        self.valid = {
            "run": run, "source": table.name, "model": model, "label": "label", "features": "{a,b}", "options": json.dumps(small),
            "name": "new", "definition": json.dumps(LOGIT), "alias": "an alias", "role": "public", "trial": None, "output": None,
            "row": '{"a": 1, "b": 2}', "target": "new", "key": "{id}", "timeout": "1 s", "pattern": "none",
            "archive": session.rows("select cerebro.export_model(%s)", run)[0][0],
        }  # fmt: skip
        self.of_function = {
            **dict.fromkeys(["fit", "submit"], {"run": "new"}), **dict.fromkeys(["predict_value", "residuals"], {"run": number}),
            **dict.fromkeys(["evaluate", "confusion_matrix", "class_report", "importance", "pack", "predict_table"], {"options": "{}"}),
        }  # fmt: skip
        self.of_function["residuals"]["options"] = "{}"
        session.model(fuzz.MODEL, "two layers")
        self.of_function["drop_runs"] = {"options": '{"runs": 1000}'}
        self.admin = session.cluster.connect(ADMIN)
        query = "select data from cerebro_internal.state where run = (select id from cerebro_internal.run where name = %s) order by seq"
        self.state = self.admin.execute(query, [run]).fetchall()[-1][0]
        self.kept = self.contents()

    def arguments(self, function: str, names: list[str]) -> dict:
        if function in ("resume", "submit") and "source" not in names:  # goes on with a run
            return {**self.valid, "options": "{}"}
        return {**self.valid, **self.of_function.get(function, {})}

    def contents(self) -> list:
        """What the catalog holds, states by their number, and the canary."""
        tables = "model run trial epoch visit run_weights model_weights promotion model_grant run_grant alias_grant".split()
        texts = ["select coalesce(md5(string_agg(t::text, '' order by t::text)), '') from cerebro_internal.%s t" % name for name in tables]
        texts += ["select count(*)::text from cerebro_internal.state", "select count(*)::text from %s.canary" % self.session.schema]
        return self.admin.execute(" union all ".join("select (%s)" % text for text in texts)).fetchall()

    def sessions(self) -> list[int]:
        """How many sessions there are on each node, warm workers apart."""
        query = "select count(*) from pg_stat_activity where usename = 'tester' and application_name <> 'cerebro worker'"
        return [node.execute(query)[0][0] for node in self.session.cluster.nodes]

    def forget(self) -> None:
        """Remove the runs that a call has begun: they outlive its transaction."""
        names = [self.valid["run"], self.of_function["predict_value"]["run"]]
        query = "select name from cerebro_internal.run where owner = 'tester' and name <> all(%s)"
        for (name,) in self.admin.execute(query, [names]).fetchall():
            self.session.conn.execute("select cerebro.cancel(%s)", [name])
            self.session.conn.execute("select cerebro.drop_run(%s)", [name])


@pytest.fixture(scope="module")
def world(session):
    made = World(session)
    yield made
    made.admin.close()


def signatures(conn, function: str) -> list[tuple[list, list, int]]:
    """Of each overload the arguments' names and types, and how many of the last have a default."""
    return conn.execute(
        """
        select p.proargnames[1:p.pronargs], array(select format_type(t, null) from unnest(p.proargtypes) t), p.pronargdefaults
        from pg_proc p where p.pronamespace = 'cerebro'::regnamespace and p.proname = %s order by p.oid
        """,
        [function],
    ).fetchall()


def brief(value: object) -> str:
    text = repr(value)
    return text if len(text) < 100 else "%s… of %d characters" % (text[:60], len(text))


def clear(error: psycopg.Error, argument: str, value: object) -> bool:
    """Whether an error is one of ours, documented, and says which argument is wrong and what to do."""
    diag = error.diag
    if (value is None or not str(value).strip()) and argument != "output":
        missing = re.fullmatch(PREFIX + "argument %s is null( or blank)?" % argument, diag.message_primary)
        return diag.sqlstate == "22004" and missing is not None and bool(diag.message_hint)
    said = "\n".join(filter(None, [diag.message_primary, diag.message_detail, diag.message_hint]))
    named = [argument, argument.rstrip("s"), *NOUNS.get(argument, []), str(value)[:12], *re.findall(r"\w+", str(value))[:1]]
    return (
        diag.sqlstate in DOCUMENTED and diag.message_primary.startswith(PREFIX) and bool(diag.message_hint) and len(said) < 13_000
        and any(word in said for word in named) and not re.search(r"Traceback|\b[A-Z]\w+(Error|Exception)\b", said)
    )  # fmt: skip


def test_every_function_is_listed(world):
    query = "select distinct proname from pg_proc where pronamespace = 'cerebro'::regnamespace and pronargs > 0 order by 1"
    assert [name for (name,) in world.session.rows(query)] == FUNCTIONS


@pytest.mark.parametrize("function", FUNCTIONS)
def test_arguments_that_make_no_sense_are_refused_and_change_nothing(world, function):
    conn, sessions, unclear = world.session.conn, world.sessions(), []
    for names, types, defaults in signatures(conn, function):
        for position, (argument, type_) in enumerate(zip(names, types)):
            taken = False
            for given, value in hostile(argument, type_):
                if taken and function == "submit":  # which begins a session each time
                    break
                place = "%s, %s => %s %s" % (function, argument, given, brief(value))
                valid = {**world.arguments(function, names), argument: value}
                kinds = ["jsonb" if kind == "anyelement" else kind for kind in types]
                kinds[position] = given
                call = ", ".join("%s => %%s::%s" % (quoted(name), kind) for name, kind in zip(names, kinds))
                conn.execute("set statement_timeout = '%ds'" % SECONDS)
                begun = time.monotonic()
                conn.execute("begin")
                try:
                    conn.execute("select * from cerebro.%s(%s)" % (quoted(function), call), [valid[name] for name in names])
                except psycopg.Error as error:
                    assert not conn.closed, place
                    if not clear(error, argument, value):
                        unclear.append("%s: %s %s" % (place, error.diag.sqlstate, str(error)[:400]))
                else:
                    taken = True
                    assert value is not None or position >= len(names) - defaults, place
                    assert given != "text" or value is None or value.strip(), place
                finally:
                    conn.execute("rollback")
                assert time.monotonic() - begun < SECONDS, place
                if taken:
                    world.forget()
                assert world.contents() == world.kept, place
    assert unclear == []
    poll_until(world.session.cluster.idle_backends, IDLE_SECONDS)
    poll_until(lambda: world.sessions() == sessions, IDLE_SECONDS)


# ---- damaged and made-up inputs

FUZZED = {"definition": 40, "placeholders": 20, "options": 30, "judging": 30, "space": 20, "archive": 30, "hdf5": 10, "state": 20}


def refused(check: str, given) -> bool:
    """Whether the check alone refuses an input, which so never gets to where data matters."""
    try:
        fuzz.CHECKS[check][0](given)
    except CerebroError:
        return True
    return False


def statement(world: World, check: str, seed: int) -> tuple[str, list]:
    """What brings an input of that seed to the server: trained on no rows where it may be trained at all."""
    given, source = fuzz.case(check, seed), world.valid["source"]
    given = given.replace("\0", "") if isinstance(given, str) else given  # of which no protocol brings any
    if check in ("definition", "placeholders"):
        return "select cerebro.create_model('fuzzed', %s::jsonb)", [given]
    if check in ("options", "space"):
        options = '{"search": {"trials": 2, "space": %s}}' % given if check == "space" else given
        source = source if refused(check, given) else quoted(world.session.schema, "empty")
        return "select * from cerebro.fit('fuzzed', %s, 'two layers', 'label', '{a,b}', %s::jsonb)", [source, options]
    if check == "judging":
        call = ("evaluate(%s, %s, options => %s::jsonb)", "predict_table(%s, %s, 'fuzzed', '{id}', %s::jsonb)")[seed % 2]
        return "select * from cerebro." + call, [world.valid["run"], source, given]
    if check == "state":
        given = fuzz.blob_of(random.Random(seed), world.state)
        run = "(select r.id from cerebro_internal.visible_run r where r.name = %s)"
        world.session.conn.execute("update cerebro_internal.visible_state set data = %s where run = " + run, [given, world.valid["run"]])
        return "select cerebro.export_model(%s)", [world.valid["run"]]
    with zipfile.ZipFile(io.BytesIO(world.valid["archive"])) as file:
        members = {name: file.read(name) for name in file.namelist()}
    if check == "archive":
        given = fuzz.archive_of(random.Random(seed), members)
    elif check == "hdf5":
        given = fuzz.zipped({**members, "model.weights.h5": fuzz.damaged(members["model.weights.h5"], random.Random(seed))})
    return "select cerebro.import_model('fuzzed', %s)", [given]


@pytest.mark.parametrize("check", FUZZED)
def test_whatever_comes_through_sql_ends_no_session_and_changes_nothing(world, check):
    conn, sessions = world.session.conn, world.sessions()
    conn.execute("set statement_timeout = '%ds'" % SECONDS)
    for seed in range(FUZZED[check]):
        conn.execute("begin")
        try:
            conn.execute(*statement(world, check, seed))
        except psycopg.Error as error:
            assert error.diag.sqlstate in {*DOCUMENTED, "22P02", "22P05", "54001"} - {"57014"}, "seed %d: %s" % (seed, error)
        finally:
            conn.execute("rollback")
        assert world.contents() == world.kept, "seed %d" % seed
    poll_until(world.session.cluster.idle_backends, IDLE_SECONDS)
    poll_until(lambda: world.sessions() == sessions, IDLE_SECONDS)
