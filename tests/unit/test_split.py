"""Which rows are held out: each form of the option against plain Python, on any number of shards; in a real backend."""

import hashlib
import json
import random
from datetime import date, timedelta

import numpy as np
import pytest

from tests.cluster import ADMIN

SEED, ROWS = 7, 230
SPLIT = """
create function pg_temp.split(specs text) returns text language plpython3u as $$
import json
from cerebro_udf import columns
from cerebro_udf.coordinator import ranks
from cerebro_udf.segment import shard
given = json.loads(specs)
read = [shard.read(plpy, spec) for spec in given]
if isinstance(read[0], shard.Reader):
    option, (label,) = given[0]["validation"], given[0]["labels"]
    classes = [dict(map(tuple, reader.ranking.classes())) for reader in read]
    sizes = {key: [counts.get(key, 0) for counts in classes] for key in set().union(*classes)}
    ordered = list(sizes) if "time" in option else columns.in_order(label, list(sizes))
    wanted = ranks.held_out(option, {key: sum(counts) for key, counts in sizes.items()}, ordered)
    ask = lambda questions: [[reader.ranking.below(question) for question in questions] for reader in read]
    held = ranks.find(sizes, wanted, len(read), ask, "time" in option)
    again = [shard.read(plpy, {**spec, "held": part}) for spec, part in zip(given, held)]
    read = [reader.shard(part) for reader, part in zip(read, held)]
    assert [one.stats()["checksum"] for one in again] == [one.stats()["checksum"] for one in read]
parts = {part: sorted(int(id) for one in read for id in one.columns(part)[0].get("id", ())) for part in ("train", "validation")}
return json.dumps({**parts, "stats": [one.stats() for one in read]})
$$;
"""
COLUMNS = {
    "id": "integer", "a": "double precision", "flag": "boolean", "who": "text", "code": "bigint", "day": "date", "at": "timestamptz",
    "y": "text",
}  # fmt: skip
TYPES = {**COLUMNS, "at": "timestamp with time zone"}
NUMBER = {name: {"name": name, "type": type_, "kind": "number", "encoder": None} for name, type_ in TYPES.items()}
START = date(2025, 12, 1)


def made():
    draw = random.Random(3)
    rows = []
    for n in range(ROWS):
        day = START + timedelta(days=draw.randrange(60))
        at = "%s %02d:00:00+00" % (START + timedelta(days=n // 24), n % 24)
        label = "rare" if n in (4, 200) else "once" if n == 77 else draw.choice("xyyyyy")
        rows.append([n, draw.random() - 0.5, n % 7 == 0, "customer %d" % draw.randrange(40), 2**40 + n % 19, str(day), at, label])
    return sorted(rows, key=lambda row: row[-1])  # as nobody should load them


ALL = made()


# ---- docs/replay.md in plain Python


def mixed(words: list[int]) -> int:
    key = int.from_bytes(hashlib.sha256(b"%d/validation" % SEED).digest()[:16], "little")
    keys = [int(k) | 1 for k in np.random.Philox(key=key).random_raw(len(words))]
    z = sum(word * k for word, k in zip(words, keys)) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def unit(z: int) -> float:
    return (z >> 11) * 2.0**-53


def text(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")


def double(value: float) -> int:
    return int(np.float64(value + 0.0).view(np.uint64))


def of_row(row: list) -> int:
    return mixed([double(row[0]), double(row[1]), text(row[-1])])


def stratified(taken) -> set:
    held = set()
    for number, label in enumerate(sorted({row[-1] for row in ALL})):
        ids = [row[0] for row in sorted((row for row in ALL if row[-1] == label), key=of_row)]
        held.update(ids[slice(*taken(number, len(ids)))])
    return held


def block(number: int, count: int, fold: int) -> tuple[int, int]:
    each, more = divmod(count, 5)
    i = (fold - number) % 5
    start = i * each + min(i, more)
    return start, start + each + (i < more)


DAYS = sorted(row[5] for row in ALL)
EXPECTED = [
    (0.2, {row[0] for row in ALL if unit(of_row(row)) < 0.2}),
    ({"column": "flag"}, {row[0] for row in ALL if row[2]}),
    ({"group": "who", "fraction": 0.3}, {row[0] for row in ALL if unit(mixed([text(row[3])])) < 0.3}),
    ({"group": "code", "fraction": 0.3}, {row[0] for row in ALL if unit(mixed([double(float(row[4]))])) < 0.3}),
    ({"time": "at", "fraction": 0.2}, set(range(ROWS - 46, ROWS))),
    ({"time": "day", "fraction": 0.2}, {row[0] for row in ALL if row[5] >= DAYS[ROWS - 46]}),
    ({"time": "day", "from": "2026-01-01"}, {row[0] for row in ALL if row[5] >= "2026-01-01"}),
    ({"time": "a", "fraction": 0.2}, {row[0] for row in sorted(ALL, key=lambda row: row[1])[ROWS - 46 :]}),
    ({"time": "a", "from": 0.25}, {row[0] for row in ALL if row[1] >= 0.25}),
    ({"fraction": 0.2, "stratify": True}, stratified(lambda _, count: (0, min(int(0.2 * count + 0.5), count - 1)))),
    *(({"folds": 5, "fold": k}, {row[0] for row in ALL if int(unit(of_row(row)) * 5) == k}) for k in range(5)),
    *(({"folds": 5, "fold": k, "group": "who"}, {row[0] for row in ALL if int(unit(mixed([text(row[3])])) * 5) == k}) for k in range(5)),
    *(({"folds": 5, "fold": k, "stratify": True}, stratified(lambda number, count, k=k: block(number, count, k))) for k in range(5)),
]  # fmt: skip


@pytest.fixture(scope="module")
def backend(cluster):
    name = "split_" + hashlib.sha256(SPLIT.encode()).hexdigest()[:8]
    with cluster.connect(ADMIN) as connection:
        connection.execute("drop schema if exists %s cascade; create schema %s" % (name, name))
        connection.execute(SPLIT)
        columns = ", ".join("%s %s" % item for item in COLUMNS.items())
        connection.execute("create table %s.t (place serial, %s)" % (name, columns))
        with connection.cursor() as cursor, cursor.copy("copy %s.t (%s) from stdin" % (name, ", ".join(COLUMNS))) as stream:
            for row in ALL:
                stream.write_row(row)
        yield connection, name
        connection.execute("drop schema %s cascade" % name)


def split(backend, validation, shards, where="true", features=None, **more):
    connection, schema = backend
    spec = {
        "features": features or [NUMBER["id"], NUMBER["a"]], "labels": [{"name": "y", "output": None, "type": "text", "task": None}],
        "seed": SEED, "validation": validation, "memory_bytes": None, **more,
    }  # fmt: skip
    for key in ("column", "group", "time"):
        if isinstance(validation, dict) and key in validation:
            spec["criterion"] = {"name": validation[key], "type": TYPES[validation[key]]}
    # Shards of very different sizes, the last one without a row where there are five.
    cuts = {1: [0, 300], 2: [0, 50, 300], 3: [0, 3, 140, 300], 4: [0, 10, 20, 30, 300], 5: [0, 1, 100, 200, 300, 400]}[shards]
    specs = []
    for low, high in zip(cuts, cuts[1:]):
        within = "(%s) and place > %d and place <= %d" % (where, low, high)
        specs.append({**spec, "reads": [{"relation": schema + ".t", "where": within, "columns": {name: name for name in COLUMNS}}]})
    return json.loads(connection.execute("select pg_temp.split(%s)", [json.dumps(specs)]).fetchone()[0])


@pytest.mark.parametrize("validation, expected", EXPECTED, ids=lambda value: json.dumps(value) if not isinstance(value, set) else "")
def test_the_rows_held_out_are_those_of_the_documentation_however_many_shards_there_are(backend, validation, expected):
    for shards in (1, 2, 3, 4, 5):
        got = split(backend, validation, shards)
        assert set(got["validation"]) == expected
        assert sorted(got["train"] + got["validation"]) == list(range(ROWS))
        for part in ("train", "validation"):
            assert sum(stats[part + "_rows"] for stats in got["stats"]) == len(got[part])


def test_folds_partition_the_rows():
    by_option = {json.dumps(option): expected for option, expected in EXPECTED}
    for more in ({}, {"group": "who"}, {"stratify": True}):
        parts = [by_option[json.dumps({"folds": 5, "fold": k, **more})] for k in range(5)]
        assert sorted(row for part in parts for row in part) == list(range(ROWS))


def test_statistics_are_those_of_training_rows_where_rows_are_ranked(backend):
    got = split(backend, {"fraction": 0.2, "stratify": True}, 1)
    stats, label = got["stats"][0]["columns"], got["stats"][0]["labels"][0]
    train = [row for row in ALL if row[0] in got["train"]]
    assert stats["a"]["count"] == len(train) and np.isclose(stats["a"]["mean"], np.mean([row[1] for row in train]), rtol=1e-12)
    labels = [row[-1] for row in train]
    assert dict(zip(label["classes"], label["counts"])) == {value: labels.count(value) for value in {row[-1] for row in ALL}}


@pytest.mark.parametrize("count, held", [(0, 0), (1, 0), (2, 0), (3, 1), (5, 1)])
def test_small_tables_hold_out_a_share_that_is_rounded(backend, count, held):
    for validation in ({"fraction": 0.2, "stratify": True}, {"time": "at", "fraction": 0.2}):
        got = split(backend, validation, 5, "id in (select id from %s.t where y = 'y' order by id limit %d)" % (backend[1], count))
        assert (len(got["validation"]), len(got["train"])) == (held, count - held)


def test_of_equal_rows_as_many_are_held_out_as_were_asked_for(backend):
    got = split(backend, {"fraction": 0.2, "stratify": True}, 3, features=[NUMBER["flag"]])
    labels = [row[-1] for row in ALL]
    counts = {value: 0 for value in labels}
    for stats in got["stats"]:
        for value, count in zip(stats["labels"][0]["classes"], stats["labels"][0]["counts"]):
            counts[value] += count
    assert counts == {value: max(1, labels.count(value) - int(0.2 * labels.count(value) + 0.5)) for value in labels}


def test_the_column_by_which_rows_are_held_out_is_watched_and_its_nulls_are_counted(backend):
    connection, schema = backend
    option = {"group": "who", "fraction": 0.3}
    before = split(backend, option, 1)["stats"][0]
    kept = {"name": "who", "type": "text", "kind": "text", "encoder": None, "nulls": {"indicator": True}}
    with connection.transaction(force_rollback=True):
        connection.execute("update %s.t set who = 'somebody else' where id = 3" % schema)
        assert split(backend, option, 1)["stats"][0]["checksum"] != before["checksum"]
        connection.execute("update %s.t set who = null where id < 3" % schema)
        for features in ([NUMBER["id"]], [NUMBER["id"], kept]):  # that it is a feature too, whose NULLs stay, makes no difference
            stats = split(backend, option, 1, features=features)["stats"][0]
            assert stats["columns"]["who"]["nulls"] == stats["skipped"] == 3 and stats["rows"] == ROWS - 3


def test_rows_that_wait_count_as_memory(backend):
    with pytest.raises(Exception, match="does not fit the memory"):
        split(backend, {"fraction": 0.2, "stratify": True}, 1, memory_bytes=2_000)
