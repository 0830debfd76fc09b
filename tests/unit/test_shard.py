"""Reading shards, in a real backend."""

import datetime
import hashlib
import json

import numpy as np
import pytest

from cerebro_udf.segment import column, seeds
from tests.cluster import ADMIN

READ = """
create function pg_temp.read(spec text) returns text language plpython3u as $$
import json
from cerebro_udf.segment import shard
options = json.loads(spec)
read = shard.read(plpy, options)
def plain(column):
    if isinstance(column, tuple):
        return [column.values[i] for i in column.codes]
    return column.tolist()
parts = {}
for part in ("train", "validation"):
    columns, labels = read.columns(part)
    if getattr(read, part + "_rows"):
        parts[part] = {name: plain(column) for name, column in columns.items()}
        for label in labels:
            parts[part]["label"] = plain(label)
return json.dumps({"stats": read.stats(), **parts})
$$;
"""
KINDS = {
    "real[]": "array",
    "double precision[]": "array",
    "boolean[]": "array",
    "smallint[]": "array",
    "numeric[]": "array",
    "bigint[]": "array",
    "integer[]": "array",
    "text": "text",
    "character(4)": "text",
    "uuid": "text",
    "name": "text",
}
LONG = {"timestamp": "timestamp without time zone", "timestamptz": "timestamp with time zone", "time": "time without time zone"}


class Reader:
    def __init__(self, connection, schema):
        self.connection, self.schema = connection, schema

    def __call__(self, rows, label=None, relations=("t",), **options):
        """Read columns x0, x1, … of the types that `rows`, SQL text per relation, was made with."""
        self.types = {name: LONG.get(type_, type_) for name, type_ in self.types.items()}
        names = {name: type_ for name, type_ in self.types.items() if not label or name != label[0]}
        features = [
            {"name": name, "column": name, "type": type_, "kind": KINDS.get(type_, "number"), "encoder": None}
            for name, type_ in names.items()
        ]
        columns = {name: name for name in self.types}
        spec = {
            "reads": [
                {"relation": "%s.%s" % (self.schema, r), "where": None, "columns": columns} for r in relations
            ],
            "features": features,
            "nulls": "error",
            "seed": 7,
            "validation": 0.0,
            "memory_bytes": None,
            "labels": [{"name": label[0], "output": None, "type": self.types[label[0]], "task": label[1]}] if label else [],
            **options,
        }
        return json.loads(
            self.connection.execute("select pg_temp.read(%s)", [json.dumps(spec)]).fetchone()[0]
        )

    def table(self, types, query, name="t"):
        self.types = types
        definition = ", ".join('"%s" %s' % item for item in types.items())
        self.connection.execute("create table %s.%s (%s)" % (self.schema, name, definition))
        self.connection.execute("insert into %s.%s %s" % (self.schema, name, query))


@pytest.fixture
def read(cluster, schema):
    with cluster.connect(ADMIN) as connection:
        connection.execute(READ)
        yield Reader(connection, schema)


def test_every_type_arrives_as_it_is(read):
    read.table(
        {
            "si": "smallint",
            "i": "integer",
            "bi": "bigint",
            "r": "real",
            "d": "double precision",
            "n": "numeric",
            "b": "boolean",
            "t": "text",
            "c": "character(4)",
        },
        "values (-1, 2, 3000000000, 0.5, 1e300::float8 * 0 + 0.1, 1.25, true, 'é\"', 'ab'),"
        " (7, -2, -3, -0.5, 2, 'nan'::numeric * 0 + 0, false, '', 'abcd')".replace(
            "'nan'::numeric * 0 + 0", "3"
        ),
    )
    assert read(None)["train"] == {
        "si": [-1, 7],
        "i": [2, -2],
        "bi": [3000000000, -3],
        "r": [0.5, -0.5],
        "d": [0.1, 2],
        "n": [1.25, 3],
        "b": [1, 0],
        "t": ['é"', ""],
        "c": ["ab", "abcd"],
    }


@pytest.mark.parametrize(
    "type_, values, expected",
    [
        ("real[]", "'{1,2}', '[0:1]={3,4.5}'", [[1, 2], [3, 4.5]]),
        (
            "double precision[]",
            "'{{1,2},{3,4}}', '[5:6][0:1]={{5,6},{7,8}}'",
            [[[1, 2], [3, 4]], [[5, 6], [7, 8]]],
        ),
        ("boolean[]", "'{t,f,t}', '{f,f,t}'", [[1, 0, 1], [0, 0, 1]]),
        ("smallint[]", "'{-1}', '{2}'", [[-1], [2]]),
        ("bigint[]", "'{4000000000}', '{-4}'", [[4000000000], [-4]]),
        ("numeric[]", "'{0.25,1}', '{2,3}'", [[0.25, 1], [2, 3]]),
    ],
)
def test_arrays_of_any_element_rank_and_lower_bound(read, type_, values, expected):
    read.table({"x": type_}, "values " + ", ".join("(%s::%s)" % (v, type_) for v in values.split(", ")))
    assert read(None)["train"]["x"] == expected


@pytest.mark.parametrize(
    "values, shapes",
    [
        ("'{1,2}', '{1}'", ("[1]", "[2]")),
        ("'{1,2}', '{{1,2}}'", ("[1, 2]", "[2]")),
        ("'{1,2}', '{}'", ("[0]", "[2]")),
    ],
)
def test_ragged_arrays_name_the_column_and_both_shapes(read, values, shapes):
    read.table({"x": "real[]"}, "values " + ", ".join("(%s::real[])" % v for v in values.split(", ")))
    with pytest.raises(Exception, match='"x" differ in shape') as caught:
        read(None)
    assert caught.value.sqlstate == "2202E"
    assert all(shape in caught.value.diag.message_detail for shape in shapes)


def test_a_shape_must_hold_over_fetches_and_relations(read):
    read.table({"x": "real[]"}, "select '{1,2}'::real[] from generate_series(1, 1000)")
    read.table({"x": "real[]"}, "select '{1,2,3}'::real[]", name="u")
    assert read(None)["stats"]["rows"] == 1000
    with pytest.raises(Exception, match="differ in shape"):
        read(None, relations=("t", "u"))


def test_null_nan_and_infinite_values_are_counted_or_skipped(read):
    read.table(
        {"a": "real", "x": "real[]", "t": "text", "y": "double precision"},
        "values (1, '{1,2}'::real[], 'p', 1.0::float8), (null, '{1,2}', 'q', 2), (2, null, null, 3),"
        " (3, '{null,2}', 'p', 'nan'), ('infinity', '{nan,2}', 'p', 5), (4, '{3,4}', 'z', 1e39)",
    )
    stats = read(None, label=("y", None))["stats"]
    counts = {
        name: [column[key] for key in ("nulls", "nans", "infinities")]
        for name, column in [*stats["columns"].items(), ("y", stats["labels"][0])]
    }
    assert counts == {"a": [1, 0, 1], "x": [2, 1, 0], "t": [1, 0, 0], "y": [0, 1, 0]}
    assert stats["labels"][0]["beyond"] == [1, 1e39], "finite, so not counted among the infinite"
    assert stats["rows"] == 1 and stats["skipped"] == 5
    skipped = read(None, label=("y", None), nulls="skip")
    assert skipped["train"] == {"a": [1], "x": [[1, 2]], "t": ["p"], "label": [1]}
    assert skipped["stats"]["columns"]["t"]["counts"] == {"p": 1}


def test_statistics_are_those_of_numpy_over_training_rows_only(read):
    read.table(
        {"a": "double precision", "x": "real[]", "t": "text", "y": "integer"},
        "select 1e6 + random(), array[random(), random() * 100]::real[], 'v' || (i % 5), i % 3"
        " from generate_series(1, 3000) i",
    )
    got = read(None, label=("y", None), validation=0.3)
    train, stats = got["train"], got["stats"]
    assert (
        0.25 < stats["validation_rows"] / 3000 < 0.35
        and stats["train_rows"] + stats["validation_rows"] == 3000
    )
    for name in ("a", "x"):
        values = np.array(train[name], float)
        column = stats["columns"][name]
        assert column["count"] == stats["train_rows"] == len(values)
        assert np.allclose(column["mean"], values.mean(axis=0), rtol=1e-13)
        assert np.allclose(column["m2"], values.var(axis=0) * len(values), rtol=1e-8)
    counts = stats["columns"]["t"]["counts"]
    assert counts == {value: train["t"].count(value) for value in set(train["t"])}
    assert stats["labels"][0]["classes"] == [0, 1, 2]
    assert stats["labels"][0]["counts"] == [train["label"].count(value) for value in (0, 1, 2)]


@pytest.mark.parametrize(
    "type_, task, query, expected",
    [
        (
            "bigint",
            None,
            "select 1, 4611686018427387905 union all select 1, 4611686018427387904",
            {"classes": [4611686018427387904, 4611686018427387905], "counts": [1, 1]},
        ),
        ("boolean", None, "values (1, true), (1, false), (1, true)", {"classes": [False, True], "counts": [1, 2]}),
        ("text", None, "values (1, 'b'), (1, 'a')", {"classes": ["b", "a"], "counts": [1, 1]}),
        ("integer", "regression", "values (1, 5), (1, 3)", {"min": 3.0, "max": 5.0}),
        ("integer", None, "select 1, i from generate_series(1, 1001) i", {"classes": None}),
        ("text", None, "select 1, i::text from generate_series(1, 1001) i", {"classes": None}),
    ],
)
def test_label_statistics(read, type_, task, query, expected):
    read.table({"x": "integer", "y": type_}, query)
    stats = read(None, label=("y", task))["stats"]["labels"][0]
    assert {key: stats[key] for key in expected} == expected


def test_dates_and_times_are_seconds_and_categories_are_texts_that_keep_every_digit(read):
    read.table(
        {"d": "date", "ts": "timestamp", "tz": "timestamptz", "tm": "time", "iv": "interval", "u": "uuid", "n": "name", "i": "bigint"},
        "values ('1969-12-31'::date, '2024-01-01 00:00:00.25'::timestamp, '2024-01-01 00:00+02'::timestamptz, '23:59:59.5'::time,"
        " '1 day -00:00:01'::interval, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 'n'::name, 9007199254740993)",
    )
    assert read(None)["train"] == {
        "d": [-86400], "ts": [1704067200.25], "tz": [1704060000], "tm": [86399.5], "iv": [86399],
        "u": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], "n": ["n"], "i": [float(2**53)],
    }  # fmt: skip
    features = [
        {"name": name, "type": read.types[name], "kind": "text", "encoder": "one_hot"} for name in ("i", "d")
    ]
    read.connection.execute("set datestyle = 'German'")
    assert read(None, features=features)["train"] == {"i": ["9007199254740993"], "d": ["1969-12-31"]}


def test_a_column_that_is_a_feature_and_a_label_is_reported_as_each(read):
    read.table({"x": "double precision[]"}, "values ('{16777217, 16777216, 5}'::float8[]), ('{1, 2, 3}')")
    feature = {"name": "x", "type": "double precision[]"}
    steps = {**feature, "kind": "sequence", "encoder": "none", "sequence": {"length": 2, "pad": "post", "truncate": "post"}}
    stats = read(None, label=("x", None), features=[steps])["stats"]
    assert (stats["columns"]["x"]["shape"], stats["columns"]["x"]["merged"], stats["columns"]["x"]["count"]) == ([2, 1], 1, 4)
    assert (stats["labels"][0]["shape"], stats["labels"][0]["count"], stats["labels"][0]["max"]) == ([3], 2, 16777217.0)


def test_infinite_dates_are_counted_as_infinite_values(read):
    read.table({"d": "date", "tz": "timestamptz"}, "values ('infinity'::date, now()), ('2024-01-01', '-infinity'), ('2024-01-01', now())")
    stats = read(None)["stats"]
    assert [stats["columns"][name]["infinities"] for name in ("d", "tz")] == [1, 1] and stats["skipped"] == 2


def test_numbers_that_single_precision_merges_are_counted(read):
    types = {"at": "double precision", "i": "integer", "r": "real", "far": "double precision"}
    read.table(types, "values (1.7e9::float8, 16777217, 1e20::real, 0.1e30::float8), (1.7e9 + 1, 16777216, 2, 0.2e30)")
    features = [{"name": name, "type": type_, "kind": "number", "encoder": "none"} for name, type_ in types.items()]
    stats = read(None, features=features)["stats"]["columns"]
    assert {name: stats[name]["merged"] for name in stats} == {"at": 1, "i": 1, "r": 0, "far": 0}


def plain_validation(rows, seed, fraction):
    """The split of docs/replay.md, row by row in Python integers."""
    key = int.from_bytes(hashlib.sha256(b"%d/validation" % seed).digest()[:16], "little")
    result = []
    for row in rows:
        words = []
        for value in row:
            if isinstance(value, str):
                words.append(
                    int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")
                )
            elif isinstance(value, int):
                words.append(value % 2**64)
            else:
                words.append(int(np.float64(value + 0.0).view(np.uint64)))
        keys = [int(k) | 1 for k in np.random.Philox(key=key).random_raw(len(words))]
        z = sum(word * k for word, k in zip(words, keys)) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        z ^= z >> 31
        result.append((z >> 11) * 2.0**-53 < fraction)
    return result


def test_the_validation_split_is_that_of_the_documentation_however_rows_are_sharded(read):
    rows = "select (i - 50)::real / 7, array[i, -0.0]::real[], 'w' || i %% 3, i %% 4 from generate_series(%d, %d) i"
    types = {"a": "real", "x": "real[]", "t": "text", "y": "integer"}
    read.table(types, rows % (1, 400))
    read.table(types, rows % (201, 400) + " order by i desc", name="u")
    read.table(types, rows % (1, 200), name="v")
    whole = read(None, label=("y", None), validation=0.25)
    split = read(None, label=("y", None), validation=0.25, relations=("u", "v"))

    def listed(part):
        return list(zip(part["a"], map(tuple, part["x"]), part["t"], part["label"]))

    for part in ("train", "validation"):
        assert sorted(listed(whole[part])) == sorted(listed(split[part]))
    flat = [[a, *x, t, int(y)] for a, x, t, y in listed(whole["train"]) + listed(whole["validation"])]
    assert plain_validation(flat, 7, 0.25) == [False] * len(listed(whole["train"])) + [True] * len(
        listed(whole["validation"])
    )
    assert whole["stats"]["checksum"] != split["stats"]["checksum"]


def test_the_encoder_has_no_say_in_which_rows_are_for_validation(read):
    read.table(
        {"i": "bigint", "d": "date", "b": "boolean", "y": "date"},
        "select 2 ^ 40 + i, date '2024-01-01' + i, i % 3 = 0, date '1900-01-01' + i % 5 from generate_series(1, 300) i",
    )
    as_texts = [{"name": name, "type": read.types[name], "kind": "text", "encoder": "embedding"} for name in ("i", "d", "b")]
    plain = read(None, label=("y", None), validation=0.25)
    coded = read(None, label=("y", None), validation=0.25, features=as_texts)
    for part in ("train", "validation"):
        assert list(map(int, coded[part]["i"])) == plain[part]["i"]
    rows = [
        [value, day, float(flag), (datetime.date.fromisoformat(label) - datetime.date(1970, 1, 1)).days * 86400.0]
        for part in ("train", "validation")
        for value, day, flag, label in zip(*(plain[part][name] for name in ("i", "d", "b", "label")))
    ]
    count = len(plain["train"]["i"])
    assert plain_validation(rows, 7, 0.25) == [False] * count + [True] * (len(rows) - count)


def test_the_checksum_tells_content_and_order_apart(read):
    read.table({"x": "integer", "t": "text"}, "values (1, 'a'), (2, 'b')")
    for name, values in (
        ("same", "(1, 'a'), (2, 'b')"),
        ("turned", "(2, 'b'), (1, 'a')"),
        ("other", "(1, 'a'), (2, 'c')"),
        ("shorter", "(1, 'a')"),
    ):
        read.table({"x": "integer", "t": "text"}, "values " + values, name=name)
    sums = {
        name: read(None, relations=(name,))["stats"]["checksum"]
        for name in ("t", "same", "turned", "other", "shorter")
    }
    assert sums["t"] == sums["same"] and len(set(sums.values())) == 4


def test_a_shard_that_does_not_fit_is_refused_with_figures(read):
    read.table({"x": "real[]"}, "select array_fill(1.0::real, array[100]) from generate_series(1, 5000)")
    with pytest.raises(Exception, match="does not fit the memory") as caught:
        read(None, memory_bytes=1_000_000)
    assert caught.value.sqlstate == "53200" and "1.0 MB are allowed" in caught.value.diag.message_detail
    assert read(None, memory_bytes=5_000_000)["stats"]["rows"] == 5000


def test_a_table_without_rows_is_an_empty_shard(read):
    read.table(
        {"a": "real", "x": "real[]", "t": "text", "y": "integer"}, "select 1, '{1}', 'a', 1 where false"
    )
    stats = read(None, label=("y", None), validation=0.2)["stats"]
    assert stats["rows"] == stats["train_rows"] == stats["validation_rows"] == stats["skipped"] == 0
    assert stats["columns"]["x"]["shape"] is None


def test_odd_names_and_a_condition(read):
    odd = {'a"b': "integer", "Select": "integer", "É.t": "real"}
    read.types = odd
    table = '%s."08e5-a b"' % read.schema
    read.connection.execute('create table %s ("a""b" integer, "Select" integer, "É.t" real)' % table)
    read.connection.execute("insert into %s values (1, 2, 3), (4, 5, 6)" % table)
    reads = [{"relation": table, "where": '"Select" > 2', "columns": {name: name for name in odd}}]
    assert read(None, reads=reads)["train"] == {'a"b': [4], "Select": [5], "É.t": [6]}


def test_mixed_words_are_even():
    numbers = seeds.unit(np.arange(100_000, dtype=np.uint64))
    assert numbers.min() >= 0 and numbers.max() < 1 and abs(numbers.mean() - 0.5) < 0.005


@pytest.mark.parametrize(
    "declared, held, values, expected",
    [
        ("double precision[]", "real[]", "'{1,2.5}'", [[1, 2.5]]),
        ("real[]", "double precision[]", "'{1,2.5}'", [[1, 2.5]]),
        ("bigint[]", "smallint[]", "'{1,2}'", [[1, 2]]),
        ("integer[]", "text[]", "'{1,2}'", [[1, 2]]),
        ("numeric[]", "integer[]", "'{{1},{2}}'", [[[1], [2]]]),
        ("real", "numeric", "'1.5'", [1.5]),
        ("integer", "text", "'7'", [7]),
        ("text", "integer", "7", ["7"]),
    ],
)
def test_a_column_declared_with_another_type_than_the_segment_has_is_read_as_declared(
    read, declared, held, values, expected
):
    read.table({"x": held}, "values (%s::%s)" % (values, held))
    read.types = {"x": declared}
    assert read(None)["train"]["x"] == expected


def test_a_text_column_with_too_many_values_is_refused_by_name(read):
    read.table({"x": "integer", "t": "text"}, "select i, 'v' || i % 100000 from generate_series(1, 100001) i")
    assert len(read(None)["stats"]["columns"]["t"]["counts"]) == 100_000
    read.connection.execute("insert into %s.t values (0, 'w')" % read.schema)
    with pytest.raises(Exception, match='column "t" has too many different values') as caught:
        read(None)
    assert caught.value.sqlstate == "42804" and "100000" in caught.value.diag.message_detail
    read.connection.execute("truncate %s.t" % read.schema)
    read.connection.execute(
        "insert into %s.t select i, repeat(i::text, 1000000) from generate_series(10, 80) i" % read.schema
    )
    with pytest.raises(Exception, match="too many different values"):
        read(None)


def test_blocks_are_put_together_with_a_look_at_interrupts_after_each():
    buffer, calls = column.Buffer(), []
    for start in range(0, 50, 10):
        buffer.append(np.arange(start, start + 10))
    assert buffer.whole(lambda: calls.append(1)).tolist() == list(range(50)) and len(calls) == 5


def test_weights_are_read_counted_and_have_no_say_in_validation(read):
    read.table({"x": "real", "y": "integer", "w": "numeric"}, "select random(), i % 2, i % 4 - 1 from generate_series(1, 400) i")
    features = [{"name": "x", "column": "x", "type": "real", "kind": "number", "encoder": None}]
    given = {"features": features, "validation": 0.3}
    plain = read(None, label=("y", None), **given)
    weighted = read(None, label=("y", None), weight={"name": "w", "type": "numeric"}, **given)
    assert weighted["train"] == plain["train"] and weighted["validation"] == plain["validation"]
    stats = weighted["stats"]["columns"]["w"]
    assert stats["negatives"] == 100 and (stats["nulls"], stats["nans"]) == (0, 0)
    assert weighted["stats"]["checksum"] != plain["stats"]["checksum"]


def test_array_that_had_a_null_once_is_whole(read):
    """PostgreSQL keeps the bitmap of NULLs that such an array has."""
    read.table({"x": "real[]", "y": "double precision[]"}, "values ('{1,NULL,3}', '{{1,NULL},{3,4}}'), ('{4,5,6}', '{{5,6},{7,8}}')")
    read.connection.execute("update %s.t set x[2] = 2, y[1][2] = 2 where x[2] is null" % read.schema)
    assert read.connection.execute("select get_byte(cerebro_internal.array_bytes(x), 4) > 0 from %s.t" % read.schema).fetchall() == [
        (False,), (True,),
    ]  # fmt: skip
    assert read(None)["train"] == {"x": [[4, 5, 6], [1, 2, 3]], "y": [[[5, 6], [7, 8]], [[1, 2], [3, 4]]]}
