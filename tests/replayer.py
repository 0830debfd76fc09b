"""A stranger's replay of a run, by plain Keras and the project's documentation (docs/replay.md) alone.

Imports nothing of the project. Reads a job as JSON from standard input::

    {"coordinator": URL, "servers": {foreign server's name: URL}, "runs": names, "threads": n, "variants": false or true,
     "out": path of an .npz}

and trains every trial of the runs minibatch by minibatch with ``train_on_batch`` in the order of the ledger. The file
holds the variables after the last visit as ``<run>/<variant>/<trial>/<group>/<number>``. The variant ``whole`` is the
replay; each other one (if wanted) leaves one part of the state behind at every hop, of trial 0 only.

It knows models in the short form, numeric features or one of sparse rows, integer labels, weights of rows and classes, mixed
precision, and a search over the batch size; and every form of the option `validation`.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys

import numpy as np
import psycopg

os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")


# -- docs/replay.md: randomness


def digest(*parts) -> bytes:
    return hashlib.sha256("/".join(str(part) for part in parts).encode("ascii")).digest()


def philox(n: int, *parts) -> np.ndarray:
    return np.random.Philox(key=int.from_bytes(digest(*parts)[:16], "little")).random_raw(n)


def permutation(seed: int, epoch: int, shard: int, rows: int) -> np.ndarray:
    return np.argsort(philox(rows, seed, epoch, shard), kind="stable")


def trial_seed(seed: int, trial: int) -> int:
    return int.from_bytes(digest(seed, trial)[:4], "big") >> 1


def generator_seed(seed: int, position: int) -> int:
    return int.from_bytes(digest(seed, "generator", position)[:4], "big") >> 1


def mixed(words: np.ndarray, seed: int) -> np.ndarray:
    """uint64 (rows,) of words, uint64 (rows, values per row)."""
    keys = philox(words.shape[1], seed, "validation") | np.uint64(1)
    z = (words * keys).sum(axis=1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def held_out(option, seed: int, words: np.ndarray, label: np.ndarray, given: np.ndarray | None) -> np.ndarray:
    """Which rows are for validation.

    Args:
        option: `validation`.
        words: Of features and label, uint64 (rows, values per row), all shards one after another.
        label: int64 (rows,).
        given: The column that the option names: its text's words uint64, or numbers float64; None if it names none.
    """
    option = option if isinstance(option, dict) else {"fraction": option}
    if "column" in option:
        return given == 1
    if "time" in option:
        if "from" in option:
            return given >= np.datetime64(option["from"]).astype("datetime64[s]").astype(float)
        count = int(option["fraction"] * len(given) + 0.5)
        return given >= np.sort(given)[len(given) - count] if count else np.zeros(len(given), bool)
    z = mixed(given.reshape(-1, 1) if "group" in option else words, seed)
    if "stratify" in option:
        held = np.zeros(len(z), bool)
        for number, value in enumerate(np.unique(label)):
            ranked = np.flatnonzero(label == value)
            ranked = ranked[np.argsort(z[ranked], kind="stable")]
            if "folds" in option:
                each, more = divmod(len(ranked), option["folds"])
                block = (option["fold"] - number) % option["folds"]
                start = block * each + min(block, more)
                held[ranked[start : start + each + (block < more)]] = True
            else:
                held[ranked[: min(int(option["fraction"] * len(ranked) + 0.5), len(ranked) - 1)]] = True
        return held
    u = (z >> np.uint64(11)) * 2.0**-53
    return np.floor(u * option["folds"]) == option["fold"] if "folds" in option else u < option["fraction"]


# -- the rows


def numbers(text: str) -> list[float]:
    return [float(value) for value in text.strip("{}").split(",") if value]


def read_shard(job: dict, shard: dict, run: dict) -> dict[str, np.ndarray]:
    """The rows of a shard in the order of its table: features float64 (rows, width), label int64 (rows,), maybe weights float32 (rows,)
    and what the option `validation` names."""
    # As double precision: the text of a real is shorter than its value.
    casts = ["float8" + "[]" * bool(feature["shape"]) for feature in run["encoders"]["features"]] + ["bigint"]
    sparse = run["encoders"]["features"][0].get("sparse")
    names = [*run["features"], run["label"]]
    if sparse:
        names, casts = [run["features"][0], sparse["values"], run["label"]], ["int[]", "float8[]", "bigint"]
    if run["options"]["sample_weight"]:
        names, casts = [*names, run["options"]["sample_weight"]], [*casts, "float8"]
    option, columns = run["options"]["validation"], ['"%s"::%s' % pair for pair in zip(names, casts)]
    for key, sql in (("column", '"%s"::int'), ("group", '"%s"::text'), ("time", 'extract(epoch from "%s")::float8')):
        if isinstance(option, dict) and key in option:
            columns.append(sql % option[key])
    kept = []
    for cut in shard["cuts"]:
        # A partition has one name on both sides here.
        query = "select %s from %s" % (", ".join(columns), cut["leaf"])
        query += " where ctid >= '(%d,0)'" % cut["low"] + (" and ctid < '(%d,0)'" % cut["high"] if cut["high"] else "")
        with psycopg.connect(job["servers"][shard["server"]]) as connection:
            connection.execute("set synchronize_seqscans = off")
            connection.execute("set extra_float_digits = 3")
            with connection.cursor().copy("copy (%s) to stdout" % query) as stream:
                kept.extend(stream.rows())
    width = sum(max(1, *(feature["shape"] or [1])) for feature in run["encoders"]["features"])
    count = len(run["features"]) + bool(sparse)
    if sparse:
        features = np.zeros((len(kept), width))
        for row, (indices, values, *_) in zip(features, kept):
            row[[int(i) for i in numbers(indices)]] = numbers(values)
    else:
        features = np.array([sum(map(numbers, row[:count]), []) for row in kept]).reshape(len(kept), width)
    rows = {"features": features, "label": np.array([int(row[count]) for row in kept], np.int64)}
    if run["options"]["sample_weight"]:
        rows["weight"] = np.array([float(row[count + 1]) for row in kept], np.float32)
    if len(columns) > len(names):
        given = [row[-1] for row in kept]
        rows["given"] = np.array([text_word(value) for value in given], np.uint64) if "group" in option else np.array(given, float)
    return rows


def entries_word(row: np.ndarray) -> int:
    """Of a sparse row that lies here in full."""
    entries = b"".join(struct.pack("<fi", row[i], i) for i in np.flatnonzero(row))
    return int.from_bytes(hashlib.blake2b(entries, digest_size=8).digest(), "little")


def text_word(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode(), digest_size=8).digest(), "little")


def training_rows(run: dict, shards: list[dict]) -> list[tuple[np.ndarray, ...]]:
    """Of each shard, encoded: float32 (rows, width), int32 (rows,), maybe weights float32 (rows,)."""
    whole = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
    sparse = run["encoders"]["features"][0].get("sparse")
    words = (whole["features"] + 0.0).view(np.uint64)
    if sparse:
        words = np.array([[entries_word(row)] for row in whole["features"]], np.uint64)
    words = np.hstack([words, whole["label"].reshape(-1, 1).view(np.uint64)])
    train = ~held_out(run["options"]["validation"], run["options"]["seed"], words, whole["label"], whole.get("given"))
    mean = np.concatenate([np.ravel(feature.get("mean", 0)) for feature in run["encoders"]["features"]])
    scale = np.concatenate([np.ravel(feature.get("scale", 1)) for feature in run["encoders"]["features"]])
    classes = run["encoders"]["label"]["classes"]
    encoded = np.array([classes.index(value) for value in whole["label"].tolist()], np.int32)
    weights = [whole["weight"]] if "weight" in whole else []
    if "weights" in run["encoders"]["label"]:
        of_class = np.array(run["encoders"]["label"]["weights"], np.float32)[encoded]
        weights = [weights[0] * of_class if weights else of_class]
    arrays = (((whole["features"] - mean) / scale).astype(np.float32), encoded, *weights)
    ends = np.cumsum([len(shard["label"]) for shard in shards])
    return [tuple(array[end - len(shard["label"]) : end][train[end - len(shard["label"]) : end]] for array in arrays)
            for end, shard in zip(ends, shards)]  # fmt: skip


# -- the model


def bound(value, values: dict):
    if isinstance(value, dict):
        return {key: bound(item, values) for key, item in value.items()}
    return values[value[1:]] if isinstance(value, str) and value.startswith("$") else value


def build(keras, run: dict, trial: int, width: int):
    """A freshly compiled model; random initial values come from the trial's seed."""
    values = {"classes": len(run["encoders"]["label"]["classes"])}
    precision = run["options"]["precision"]
    keras.config.set_dtype_policy(precision)
    keras.utils.set_random_seed(trial_seed(run["options"]["seed"], trial))
    model = keras.Sequential()
    model.add(keras.Input((width,), sparse="sparse" in run["encoders"]["features"][0]))
    last = run["definition"]["layers"][-1]
    for layer in run["definition"]["layers"]:
        ((name, arguments),) = layer.items()
        if precision != "float32" and layer is last:
            arguments = {**arguments, "dtype": "float32"}
        model.add(getattr(keras.layers, name)(**bound(arguments, values)))
    optimizer = run["options"]["optimizer"]
    rate = optimizer["config"]["learning_rate"]
    rate = getattr(keras.optimizers.schedules, rate["class_name"])(**rate["config"])
    optimizer = getattr(keras.optimizers, optimizer["class_name"])(**{**optimizer["config"], "learning_rate": rate})
    model.compile(
        optimizer=optimizer,
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        jit_compile=False,
    )
    keras.config.set_dtype_policy("float32")
    model.optimizer.build(model.trainable_variables)
    for i, state in enumerate(v for v in model.variables if v.name == "seed_generator_state"):
        state.assign([generator_seed(run["options"]["seed"], i), 0])
    return model


def variables(model) -> dict:
    groups = {"model": model.variables, "optimizer": model.optimizer.variables, "metric": model.metrics_variables}
    return {"%s/%d" % (group, i): v for group, found in groups.items() for i, v in enumerate(found)}


def values(model) -> dict[str, np.ndarray]:
    return {name: variable.value.numpy() for name, variable in variables(model).items()}


def parts(model) -> dict[str, list[str]]:
    """What a hop carries, by the names of the variables."""
    trainable = {id(v) for v in model.trainable_variables}
    generators = [name for name, v in variables(model).items() if v.name == "seed_generator_state"]
    own = [name for name in variables(model) if name.startswith("model/") and name not in generators]
    weights = [name for name in own if id(variables(model)[name]) in trainable]
    iterations = [name for name, v in variables(model).items() if v is model.optimizer.iterations]
    return {
        "weights": weights,
        "statistics": [name for name in own if name not in weights],
        "generators": generators,
        "iterations": iterations,
        "optimizer": [n for n in variables(model) if n.startswith("optimizer/") and n not in iterations],
        "metrics": [name for name in variables(model) if name.startswith("metric/")],
    }


def fed(model, x: np.ndarray, *others: np.ndarray) -> tuple:
    """Rows as the model takes them."""
    import tensorflow as tf

    return (tf.sparse.from_dense(x) if model.inputs[0].sparse else x, *others)


def replay(model, first: dict, visits: list, shards: list, seed: int, batch_size: int, left_behind: list[str]) -> dict:
    """Train from the first state through the visits [(epoch, shard)]; gives all variables.

    Args:
        left_behind: Names of variables that are as in the first state again at the beginning of every visit.
    """
    named = variables(model)
    for name, variable in named.items():
        variable.value.assign(first[name])
    # train_on_batch begins its metrics anew, so they are added up here, from the first visit of an epoch on.
    metrics = [name for name in named if name.startswith("metric/")]
    before, sums = None, {}
    for epoch, shard in visits:
        for name in left_behind:
            named[name].value.assign(first[name])
        if epoch != before or set(metrics) <= set(left_behind):
            sums = {name: first[name] for name in metrics}
        before = epoch
        order = permutation(seed, epoch, shard, len(shards[shard][0]))
        for start in range(0, len(order), batch_size):
            picks = order[start : start + batch_size]
            model.train_on_batch(*fed(model, *(array[picks] for array in shards[shard])))
            for name in metrics:
                sums[name] = sums[name] + named[name].value.numpy()
    return {**values(model), **sums}


def main() -> None:
    job = json.load(sys.stdin)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    import keras

    out = {}
    for name in job["runs"]:
        out.update(("%s/%s" % (name, key), array) for key, array in replay_run(keras, job, name).items())
    np.savez(job["out"], **out)


def replay_run(keras, job: dict, name: str) -> dict[str, np.ndarray]:
    with psycopg.connect(job["coordinator"]) as connection:
        keys = ("options", "encoders", "plan", "label", "features", "definition")
        query = (
            "select r.options, r.encoders, r.shards, r.label, r.features, m.definition"
            " from cerebro.run r join cerebro.model m using (model, owner) where r.run = %s"
        )
        run = dict(zip(keys, connection.execute(query, [name]).fetchone()))
        trials = connection.execute(
            "select trial, params from cerebro.trial where run = %s order by trial", [name]
        ).fetchall()
        ledger = connection.execute(
            "select trial, epoch, shard from cerebro.visit where run = %s and phase = 'train' and state = 'done'"
            ' order by trial, epoch, "position"',
            [name],
        ).fetchall()
    shards = training_rows(run, [read_shard(job, shard, run) for shard in run["plan"]["shards"]])
    out = {}
    for trial, params in trials:
        model = build(keras, run, trial, shards[0][0].shape[1])
        model.test_on_batch(*fed(model, *(part[:1] for part in shards[0])))  # makes the metrics' variables and nothing else
        model.reset_metrics()
        first = values(model)
        # train_on_batch builds the size of its first minibatch into its graph, and TensorFlow then multiplies by 1 / 7
        # where it would divide by 7. From the second size on the graph is open, as that of fit always is.
        for rows in (1, 2):
            model.train_on_batch(*fed(model, *(part[:rows] for part in shards[0])))
        visits = [(epoch, shard) for number, epoch, shard in ledger if number == trial]
        variants = {"whole": []}
        if trial == 0 and job["variants"]:
            variants.update(parts(model))
            assert sorted(sum(variants.values(), [])) == sorted(variables(model))  # each variable is in one part
        for variant, left_behind in variants.items():
            result = replay(model, first, visits, shards, run["options"]["seed"], params["batch_size"], left_behind)
            out.update(("%s/%d/%s" % (variant, trial, place), array) for place, array in result.items())
    return out


if __name__ == "__main__":
    main()
