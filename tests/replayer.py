"""A stranger's replay of a run, by plain Keras and the project's documentation (docs/replay.md) alone.

Imports nothing of the project. Reads jobs from standard input, each one line of JSON, and answers each by a line once its file is written::

    {"coordinator": URL, "servers": {foreign server's name: URL}, "runs": names, "variants": false or true,
     "out": path of an .npz}

and trains every trial of the runs minibatch by minibatch with ``train_on_batch`` in the order of the ledger. The file
holds the variables after the last visit as ``<run>/<variant>/<trial>/<group>/<number>``. The variant ``whole`` is the
replay; each other one (if wanted) leaves one part of the state behind at every hop, of trial 0 only.

It knows models in the short form, where a layer may learn by `adapt` beforehand, and those of several outputs, numeric features
or one of sparse rows, labels that are integers or quantities, losses of one column per class, weights of rows and classes, mixed
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
    """The rows of a shard in the order of its table: features float64 (rows, width), labels int64 or float64 (rows,), maybe weights
    float32 (rows,) and what the option `validation` names."""
    # As double precision: the text of a real is shorter than its value.
    casts = ["float8" + "[]" * bool(feature["shape"]) for feature in run["encoders"]["features"]]
    labels = run["encoders"]["labels"]
    sparse, names = run["encoders"]["features"][0].get("sparse"), list(run["features"])
    if sparse:
        names, casts = [run["features"][0], sparse["values"]], ["int[]", "float8[]"]
    casts += ["bigint" if "classes" in label else "float8" for label in labels]
    names = [*names, *(label["name"] for label in labels)]
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
    rows = {"features": features}
    for number, label in enumerate(labels):
        kind, dtype = (int, np.int64) if "classes" in label else (float, np.float64)
        rows["label %d" % number] = np.array([kind(row[count + number]) for row in kept], dtype)
    if run["options"]["sample_weight"]:
        rows["weight"] = np.array([float(row[count + len(labels)]) for row in kept], np.float32)
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


def training_rows(run: dict, shards: list[dict], outputs: list) -> list[tuple]:
    """Of each shard, encoded: float32 (rows, width), int32 or float32 (rows,), maybe weights float32 (rows,).

    The training rows of all shards before they are rounded become `rows` of the run.

    Where there are several outputs, labels are in a list in their order, and so are weights if classes are weighted.
    """
    whole = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
    labels = run["encoders"]["labels"]
    found = [whole["label %d" % number] for number in range(len(labels))]
    sparse, features = run["encoders"]["features"][0].get("sparse"), (whole["features"] + 0.0).view(np.uint64)
    if sparse:
        features = np.array([[entries_word(row)] for row in whole["features"]], np.uint64)
    words = [(label if label.dtype == np.int64 else label + 0.0).reshape(-1, 1).view(np.uint64) for label in found]
    words = np.hstack([features, *words])
    train = ~held_out(run["options"]["validation"], run["options"]["seed"], words, found[0], whole.get("given"))
    mean, scale = (
        np.concatenate([feature.get(key) or [otherwise] * max(1, *(feature["shape"] or [1])) for feature in run["encoders"]["features"]])
        for key, otherwise in (("mean", 0.0), ("scale", 1.0))
    )
    encoded = [
        np.array([label["classes"].index(value) for value in values.tolist()], np.int32)
        if "classes" in label
        else values.astype(np.float32)
        for label, values in zip(labels, found)
    ]
    weights, ones = [whole["weight"]] if "weight" in whole else [], np.ones(len(train), np.float32)
    if any("weights" in label for label in labels):
        rows = weights[0] if weights else ones
        weights = [
            rows * (np.array(label["weights"], np.float32)[codes] if "weights" in label else ones) for label, codes in zip(labels, encoded)
        ]
    for place, label in enumerate(labels):
        if asked_loss(run, label) is not None:
            encoded[place] = np.eye(len(label["classes"]), dtype=np.float32)[encoded[place]]
    places = [[label["output"] for label in labels].index(name) for name in outputs]
    run["rows"] = ((whole["features"] - mean) / scale)[train]  # before they are rounded
    arrays = [((whole["features"] - mean) / scale).astype(np.float32), encoded[0] if len(labels) == 1 else [encoded[n] for n in places]]
    if weights:
        arrays.append(weights[0] if len(weights) == 1 else [weights[n] for n in places])
    ends = np.cumsum([len(shard["features"]) for shard in shards])
    return [
        tuple(taken(array, np.flatnonzero(train[end - len(shard["features"]) : end]) + end - len(shard["features"])) for array in arrays)
        for end, shard in zip(ends, shards)
    ]


def asked_loss(run: dict, label: dict) -> dict | None:
    """The loss that an output was asked for, which is one of those that want a column per class."""
    asked = run["options"]["loss"]
    return asked if label["output"] is None else (asked or {}).get(label["output"])


def taken(array, picks):
    """Rows of an array, or of each of a list."""
    return [one[picks] for one in array] if isinstance(array, list) else array[picks]


# -- the model


def bound(value, values: dict):
    if isinstance(value, dict):
        return {key: bound(item, values) for key, item in value.items()}
    return values[value[1:]] if isinstance(value, str) and value.startswith("$") else value


def build(keras, run: dict, trial: int, width: int):
    """A freshly compiled model; random initial values come from the trial's seed."""
    labels = run["encoders"]["labels"]
    values = {"classes": len(labels[0].get("classes", ()))}
    precision = run["options"]["precision"]
    keras.config.set_dtype_policy(precision)
    keras.utils.set_random_seed(trial_seed(run["options"]["seed"], trial))
    if len(labels) > 1:
        model = keras.models.model_from_json(json.dumps(run["definition"]))
    else:
        model = keras.Sequential()
        model.add(keras.Input((width,), sparse="sparse" in run["encoders"]["features"][0]))
        last = run["definition"]["layers"][-1]
        for layer in run["definition"]["layers"]:
            ((name, arguments),) = layer.items()
            if precision != "float32" and layer is last:
                arguments = {**arguments, "dtype": "float32"}
            model.add(getattr(keras.layers, name)(**bound(arguments, values)))
            if name == "Normalization":
                model.layers[-1].adapt(run["rows"])
    optimizer = run["options"]["optimizer"]
    rate = optimizer["config"]["learning_rate"]
    rate = getattr(keras.optimizers.schedules, rate["class_name"])(**rate["config"])
    optimizer = getattr(keras.optimizers, optimizer["class_name"])(**{**optimizer["config"], "learning_rate": rate})
    losses, metrics = [], []
    for label in labels:
        asked = asked_loss(run, label)
        if asked is not None:
            losses.append(getattr(keras.losses, asked["class_name"])(**asked["config"]))
            metrics.append([keras.metrics.CategoricalAccuracy(name="accuracy")])
        elif "classes" in label:
            losses.append(keras.losses.SparseCategoricalCrossentropy())
            metrics.append([keras.metrics.SparseCategoricalAccuracy(name="accuracy")])
        else:
            losses.append(keras.losses.MeanSquaredError())
            metrics.append([keras.metrics.MeanAbsoluteError(name="mae")])
    if len(labels) == 1:
        (losses,), (metrics,), importance = losses, metrics, None
    else:
        places = [[label["output"] for label in labels].index(name) for name in model.output_names]
        losses, metrics = [losses[n] for n in places], [metrics[n] for n in places]
        importance = [run["options"]["loss_weights"].get(name, 1.0) for name in model.output_names]
    model.compile(optimizer=optimizer, loss=losses, loss_weights=importance, metrics=metrics, jit_compile=False)
    keras.config.set_dtype_policy("float32")
    model.optimizer.build(model.trainable_variables)
    for i, state in enumerate(v for v in model.variables if v.name == "seed_generator_state"):
        state.assign([generator_seed(run["options"]["seed"], i), 0])
    return model


def variables(model) -> dict:
    learnt = [id(v) for layer in model.layers if type(layer).__name__ == "Normalization" for v in layer.variables]
    own = [v for v in model.variables if id(v) not in learnt]
    groups = {"model": own, "optimizer": model.optimizer.variables, "metric": model.metrics_variables}
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


def fed(model, x: np.ndarray, *others) -> tuple:
    """Rows as the model takes them."""
    import tensorflow as tf

    return (tf.sparse.from_dense(x) if model.inputs[0].sparse else x, *others)


def replay(model, first: dict, visits: list, shards: list, seed: int, batch_size: int, left_behind: list[str], outputs: list) -> dict:
    """Train from the first state through the visits [(epoch, shard)]; gives all variables.

    Args:
        left_behind: Names of variables that are as in the first state again at the beginning of every visit.
        outputs: Names of several, none of a single one.
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
            model.train_on_batch(*fed(model, *(taken(array, picks) for array in shards[shard])))
            for name in metrics:
                # The loss of one of several outputs counts each minibatch alike in plain Keras: here by its rows.
                alike = any("%s_loss/" % output in named[name].path for output in outputs)
                value = named[name].value.numpy()
                sums[name] = sums[name] + (value * np.float32(len(picks)) if alike else value)
    return {**values(model), **sums}


def main(threads: int) -> None:
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    import keras

    for line in sys.stdin:
        job, out = json.loads(line), {}
        for name in job["runs"]:
            out.update(("%s/%s" % (name, key), array) for key, array in replay_run(keras, job, name).items())
        np.savez(job["out"], **out)
        print(job["out"], flush=True)


def replay_run(keras, job: dict, name: str) -> dict[str, np.ndarray]:
    with psycopg.connect(job["coordinator"]) as connection:
        keys = ("options", "encoders", "plan", "features", "definition")
        query = (
            "select r.options, r.encoders, r.shards, r.features, m.definition"
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
    names = [label["output"] for label in run["encoders"]["labels"]]
    outputs = [] if names == [None] else [layer[0] for layer in run["definition"]["config"]["output_layers"]]
    shards = training_rows(run, [read_shard(job, shard, run) for shard in run["plan"]["shards"]], outputs)
    out = {}
    for trial, params in trials:
        model = build(keras, run, trial, shards[0][0].shape[1])
        model.test_on_batch(*fed(model, *(taken(part, slice(1)) for part in shards[0])))  # makes the metrics' variables and nothing else
        model.reset_metrics()
        first = values(model)
        # train_on_batch builds the size of its first minibatch into its graph, and TensorFlow then multiplies by 1 / 7
        # where it would divide by 7. From the second size on the graph is open, as that of fit always is.
        for rows in (1, 2):
            model.train_on_batch(*fed(model, *(taken(part, slice(rows)) for part in shards[0])))
        visits = [(epoch, shard) for number, epoch, shard in ledger if number == trial]
        variants = {"whole": []}
        if trial == 0 and job["variants"]:
            variants.update(parts(model))
            assert sorted(sum(variants.values(), [])) == sorted(variables(model))  # each variable is in one part
        for variant, left_behind in variants.items():
            result = replay(model, first, visits, shards, run["options"]["seed"], params["batch_size"], left_behind, outputs)
            out.update(("%s/%d/%s" % (variant, trial, place), array) for place, array in result.items())
    return out


if __name__ == "__main__":
    main(int(sys.argv[1]))
