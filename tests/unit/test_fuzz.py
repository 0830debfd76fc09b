"""Damaged and made-up inputs, seeded: each check gives a right value or an error that a user can act on, and soon.

``CEREBRO_FUZZ_INPUTS`` says how many there are in all. A failure names check and seed; ``case(check, seed)`` makes that input again.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import re
import signal
import struct
import zipfile
import zlib

import h5py
import ml_dtypes
import numpy as np
import pytest

from cerebro_udf import archive, definition, entry, hdf5, packs, placeholders
from cerebro_udf.architecture import objects
from cerebro_udf.coordinator import options, space
from cerebro_udf.errors import CerebroError, unstorable
from cerebro_udf.segment import state
from tests.unit.test_definition import EVERYTHING

INPUTS = int(os.environ.get("CEREBRO_FUZZ_INPUTS", 10_000))
CHUNK = 100  # inputs a test
SECONDS = 2.0  # of one input, on a busy machine; most take less than a millisecond

# ---- valid inputs

SHORT = {"layers": [
    {"Input": {"shape": "$input_shape"}}, {"Rescaling": {"scale": 0.5}}, {"repeat": "$depth", "layers": [{"Dense": {"units": "$units"}}]},
    {"Dropout": {"rate": "$rate", "name": "out"}}, {"Sequential": {"layers": ["Flatten", {"Dense": {"units": 3, "activation": "relu"}}]}},
    {"TextVectorization": {"vocabulary": ["a", "b/c"]}}, {"TimeDistributed": {"layer": {"Dense": {"units": 2}}}},
    {"Dense": {"units": "$classes", "activation": "softmax", "kernel_regularizer": {"L2": {"l2": 0.01}}}},
]}  # fmt: skip
MODEL = {"layers": [{"Dense": {"units": "$units"}}, {"Dense": {"units": "$classes"}}]}
SPACE = {
    "units": [16, 64, 256], "learning_rate": {"low": 1e-4, "high": 0.1, "log": True}, "batch_size": {"low": 16, "high": 256, "log": True,
        "step": 2},
    "optimizer.beta_1": {"low": 0.5, "high": 0.9, "step": 0.1, "when": {"units": [16]}, "else": 0.9},
}  # fmt: skip
OPTIONS = [
    {"epochs": 3, "batch_size": 64, "optimizer": {"Adam": {"learning_rate": 0.01, "beta_1": 0.9}}, "metrics": ["accuracy",
        {"AUC": {"curve": "PR"}}],
     "search": {"method": "random", "trials": 8, "pruner": "asha", "space": SPACE}, "rank_by": {"metric": "val_auc", "direction": "max"},
     "validation": {"fraction": 0.2, "stratify": True}, "seed": 7, "order": "fixed", "memory": "1.5GB", "time_limit": "1 h 30 min",
     "early_stopping": {"patience": 2, "monitor": "val_loss"}},
    {"search": {"method": "grid", "space": {"units": [1, 2]}}, "encoders": {"a": {"embedding": {"dim": 8}}, "b": "one_hot"},
        "nulls": {"a": "skip"},
     "class_weight": "balanced", "validation": {"column": "held"}, "precision": "mixed_bfloat16", "segments": 2, "task": "classification",
     "loss": {"SparseCategoricalCrossentropy": {"from_logits": True}}, "inputs": {"in": ["a", "b"]}, "sample": 0.5, "filter": "a > 1",
     "augment": {"x": ["RandomFlip"]}, "reduce_on_plateau": {"factor": 0.5}, "init_from": {"run": "r", "trial": 1}, "max_retries": 1},
]  # fmt: skip
HEADER = {
    "format": 3, "pack": "p", "source": {"name": "s.t", "tables": {"s.t": [["segment_1", "s.t_1"]]}, "looked": {"segment_1": {
        "since": "2026-01-01 00:00:00+00", "relations": {"s.t_1": [{"oid": 7, "file": 7, "bytes": 8192, "counts": [3, 0, 0]}]}}}},
    "features": [{"name": "a", "type": "real", "kind": "number", "encoder": None}, {"name": "c", "type": "text", "kind": "text",
        "encoder": None}],
    "labels": [{"name": "y", "type": "integer", "task": None, "output": None}], "options": {"seed": 7, "validation": 0},
    "types": {"a": "real", "c": "text", "y": "integer"}, "shards": ["segment_1"],
    "encoders": {
        "rows": {"train": 3, "validation": 0}, "format": 3, "inputs": [{"name": None, "stack": None, "features": ["a", "c"]}],
        "model": {"inputs": [{"name": None, "codes": [{"name": "c", "size": 3, "encoder": "one_hot"}], "numbers": [1]}],
                  "outputs": [{"name": None, "task": "classification", "classes": 2}]},
        "labels": [{"name": "y", "task": "classification", "type": "integer", "counts": [1, 2], "output": None, "classes": [0, 1]}],
        "features": [{"kind": "number", "mean": [1.5], "name": "a", "type": "real", "scale": [0.8], "shape": [], "encoder": "standardize"},
                     {"kind": "text", "name": "c", "type": "text", "encoder": "one_hot", "vocabulary": ["x", "y"]}],
    },
    "shard": {"number": 0, "rows": 3, "train_rows": 3, "validation_rows": 0, "skipped": 0, "checksum": "0", "bytes": 10,
              "blocks": {"train": 1, "validation": 1}, "entries": {"train": {}, "validation": {}}},
}  # fmt: skip


def weights() -> bytes:
    data = io.BytesIO()
    with h5py.File(data, "w") as file:
        for layer in range(12):
            file["layers/dense_%d/vars/0" % layer] = np.arange(6, dtype="f4").reshape(2, 3)
        file["layers/empty"], file["layers/step"] = np.zeros((0, 3), "f2"), np.int64(7)
    return data.getvalue()


def zipped(members: dict, method: int = zipfile.ZIP_STORED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return data.getvalue()


BLOB = state.pack(
    {"model/0": np.arange(6, dtype=np.float32).reshape(2, 3), "model/1": np.ones(2, ml_dtypes.bfloat16), "metric/0": np.float64(3)},
    {"program": "p", "averages": "{}"},
)
MEMBERS = {"metadata.json": b'{"keras_version": "3.10.0"}', "config.json": json.dumps(EVERYTHING).encode(), "model.weights.h5": weights()}
ARCHIVES = [zipped(MEMBERS, method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]

# ---- what becomes of them

NUMBERS = [0, -1, 1, 2, 3.5, -0.0, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**18, 1e-320, 1e300, 1.7e308, float("nan"),
    float("inf")]
TEXTS = ["", " ", "x", "$x", "$units", "$$", "$classes", "\x00", "a\nb", "'; drop table canary; --", '"', "é\u202e\U0001f600", "\ud800",
    "/etc/passwd",
         "..\\x", "http://x/y", "relu", "Lambda", "Dense", "__lambda__", "9" * 400 + "GB", "1s " * 40 + "x", "A" * 100_000]  # fmt: skip
KEYS = ["class_name", "config", "module", "registered_name", "layers", "name", "low", "high", "step", "when", "else", "values", "repeat",
    "units",
        "vocabulary", "keras_history", "__metadata__"]  # fmt: skip
ODD = [None, True, False, [], {}, [[]], [None], {"": None}, {"class_name": "function", "config": "f", "module": "os"},
    {"Lambda": {"function": "x"}},
       {"class_name": "__lambda__", "config": {"value": "x"}}, {"low": 1, "high": 2}]  # fmt: skip
WORDS = [struct.pack(kind, n) for kind in ("<H", "<I", "<Q") for n in (0, 1, 2, 8, 255, 2**15, 2**16 - 1)]
WORDS += [struct.pack("<I", n) for n in (2**31 - 1, 2**31, 2**32 - 1)]
WORDS += [struct.pack("<Q", n) for n in (2**31, 2**40, 2**63 - 1, 2**63, 2**64 - 1)]


def nested(value, rng):
    for _ in range(rng.choice([3, 40, 80, 200])):
        value = [value] if rng.random() < 0.5 else {rng.choice(KEYS): value}
    return value


def odd(rng):
    value = rng.choice(rng.choice([NUMBERS, TEXTS, ODD]))
    return nested(value, rng) if rng.random() < 0.05 else copy.deepcopy(value)


def holders(value, found):
    """The lists and objects within a value."""
    if isinstance(value, (dict, list)) and value:
        found.append(value)
        for item in value.values() if isinstance(value, dict) else value:
            holders(item, found)
    return found


def changed(value, rng):
    """A JSON value of which one or more places are others."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        found = holders(value, [])
        if not found:
            return odd(rng)
        holder = rng.choice(found)
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key, how = rng.choice(keys), rng.randrange(7)
        if how == 0:
            del holder[key]
        elif how == 1 and isinstance(holder, dict):
            holder[rng.choice(KEYS + TEXTS)] = holder.pop(key)
        elif how == 2 and isinstance(holder, dict):
            holder[rng.choice(KEYS + TEXTS)] = odd(rng)
        elif how == 3:
            other = rng.choice(keys)
            holder[key], holder[other] = holder[other], holder[key]
        elif how == 4:
            holder[key] = copy.deepcopy(rng.choice(found))
            if len(json.dumps(value)) > 10**6:
                return value
        elif how == 5 and isinstance(holder, list):
            holder += copy.deepcopy(holder) * rng.choice([1, 20])
        else:
            holder[key] = odd(rng)
    return value


def damaged(data: bytes, rng) -> bytes:
    """Bytes of which some are others, missing or too many."""
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8, 64])):
        if not data:
            break
        at, how = rng.randrange(len(data)), rng.randrange(8)
        if how < 3:
            data[at] ^= 1 << rng.randrange(8)
        elif how < 5:
            word = rng.choice(WORDS)
            data[at : at + len(word)] = word
        elif how == 5:
            del data[at : at + rng.choice([1, 8, 1000])]
        elif how == 6:
            data[at:at] = data[rng.randrange(len(data)) :][: rng.choice([1, 8, 500])]
        else:
            del data[at:]
    return bytes(data)


def text_of(values):
    def make(rng) -> str:
        data = json.dumps(changed(rng.choice(values), rng), ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
        return (damaged(data, rng) if rng.random() < 0.2 else data).decode("utf-8", "replace")

    return make


def bytes_of(*values):
    return lambda rng: damaged(rng.choice(values), rng)


def archive_of(rng, members: dict = MEMBERS) -> bytes:
    """An archive that is damaged anywhere, or whose check sums are right and a member's content or name is another."""
    members = {**({"cerebro.json": b'{"model": ["model"]}'} if rng.random() < 0.3 else {}), **members}
    if rng.random() < 0.3:
        return damaged(zipped(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])), rng)
    name = rng.choice(list(members))
    if rng.random() < 0.2:
        members["x" + rng.choice(TEXTS[:-1]).encode("utf-8", "replace").decode()] = members.pop(name)
    elif name.endswith(".json") and rng.random() < 0.8:
        members[name] = text_of([json.loads(members[name])])(rng).encode()
    else:
        members[name] = damaged(members[name], rng)
    data = zipped(members, rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    odd_name = rng.choice([b"config\0json", b"\xff\xfe\xed\xa0\x80..json", b"/etc/passwd"])
    return data.replace(b"config.json", odd_name) if rng.random() < 0.1 else data


def sealed(header: bytes, body: bytes) -> bytes:
    """A state of that header, whose check sum is made right."""
    header = re.sub(rb"crc32:[0-9a-f]{8}", state._UNSET, header, count=1)
    header = header.replace(state._UNSET, state._checksum(header, zlib.crc32(body)), 1)
    return struct.pack("<Q", len(header)) + header + body


def blob_of(rng, blob: bytes = BLOB) -> bytes:
    """A state that is damaged anywhere, or whose check sum is right and the header, or what follows it, is another."""
    if rng.random() < 0.2:
        return damaged(blob, rng)
    (length,) = struct.unpack_from("<Q", blob)
    header, body = blob[8 : 8 + length], blob[8 + length :]
    if rng.random() < 0.7:
        return sealed(json.dumps(changed(json.loads(header), rng)).encode(), body)
    return sealed(damaged(header, rng), body) if rng.random() < 0.5 else sealed(header, damaged(body, rng))


# ---- what must come of them


def check_definition(text: str) -> None:
    given = entry._json("definition", text)
    before = copy.deepcopy(given)
    checked = definition.check(given)
    assert given == before or "nan" in repr(given)
    full = definition.full(checked)
    assert not {found["class_name"] for found in objects(full)} & {"Lambda", "__lambda__", "function"}
    assert definition.difference(definition.check(checked), checked) is None or "nan" in repr(given)
    for look in (definition.placeholders, definition.inputs, definition.outputs, definition.shaping):
        look(checked)
    for name in definition.inputs(checked):
        definition.first_layers(checked, name)
    definition.with_trainable(full, False)
    with contextlib.suppress(CerebroError):  # no layer of that name
        definition.until(full, "out")
    definition.bind(checked, {**dict.fromkeys(definition.placeholders(checked), 2), "classes": 3, "input_shape": [4], "rate": 0.5})


def check_options(text: str) -> None:
    parsed = options.parse(entry._json("options", text), MODEL)
    stored = json.loads(json.dumps(parsed.to_json()))
    assert options.Options.from_json(stored).to_json() == stored


def check_judging(text: str) -> None:
    given = entry._json("options", text)
    for parse in (options.parse_evaluate, options.parse_predict_table, options.parse_pack, options.shaping, options.parse_init_from):
        with contextlib.suppress(CerebroError):
            parse(given)


def check_space(text: str) -> None:
    found = space.parse(entry._parsed("space", text))
    for point in (0.0, 0.5, 1 - 2.0**-53):
        for name, value in found.at(dict.fromkeys(found.axes, point)).items():
            axis = found.axes[name]
            assert not isinstance(axis, space.Range) or value == axis.otherwise or axis.low <= value <= axis.high
    found.size(100)
    with contextlib.suppress(CerebroError):  # a range that a grid cannot walk
        for _ in zip(range(100), found.grid()):
            pass


def check_archive(data: bytes) -> None:
    parts = archive.read(data, lambda: None)
    assert isinstance(parts.config, str) and len(parts.weights) <= archive.LONGEST[archive.WEIGHTS]
    entry._json("archive", parts.config)


def check_hdf5(data: bytes) -> None:
    try:
        arrays = hdf5.read(data)
    except hdf5.Unreadable as error:
        assert str(error)
    else:
        assert sum(array.nbytes for array in arrays.values()) <= len(data)


def check_header(text: str) -> None:
    header = packs.parse(text, "t")
    packs.relations(header["source"]["tables"])
    packs.compare(header["source"]["tables"], header["source"]["looked"], header["source"]["looked"])


def check_placeholders(text: str) -> None:
    value = entry._parsed("definition", text)
    names = list(placeholders.names_in(value))
    bound = placeholders.substitute(value, {**dict.fromkeys(names, 1), **{name: "Dense" for name in names if "$%s" % name in KEYS}},
        "definition")
    assert not set(names) & set(placeholders.names_in(bound)) - {"units"}
    assert placeholders.substitute(placeholders.literal(value), {}, "definition") == value or "nan" in repr(value)
    placeholders.filled(value, dict.fromkeys(names, 1))


def check_json(text: str) -> None:
    value = entry._parsed("options", text)
    assert "\0" not in json.dumps(value, allow_nan=False, ensure_ascii=False).encode().decode() and unstorable(value) is None


def check_state(blob: bytes) -> None:
    arrays, _ = state.unpack(blob)
    assert blob == BLOB or arrays.keys() and sum(array.nbytes for array in arrays.values()) <= len(blob)
    state.serving(blob)
    state.add([blob, blob])


CHECKS = {
    "definition": (check_definition, text_of([SHORT, EVERYTHING])),
    "options": (check_options, text_of(OPTIONS)),
    "judging": (check_judging, text_of([*OPTIONS, {"trial": 1, "filter": "a", "metrics": ["auc"], "columns": ["a"],
        "if_exists": "replace"}])),
    "space": (check_space, text_of([SPACE])),
    "archive": (check_archive, archive_of),
    "hdf5": (check_hdf5, bytes_of(weights())),
    "header": (check_header, text_of([HEADER])),
    "placeholders": (check_placeholders, text_of([SHORT, EVERYTHING])),
    "json": (check_json, text_of([SHORT, *OPTIONS])),
    "state": (check_state, blob_of),
}


def case(check: str, seed: int):
    """The input of that seed."""
    return CHECKS[check][1](random.Random("%s %d" % (check, seed)))


@contextlib.contextmanager
def within(seconds: float):
    def late(*_):
        raise TimeoutError("not done within %g s" % seconds)

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


VALID = {
    "definition": [SHORT, EVERYTHING], "options": OPTIONS, "judging": OPTIONS, "space": [SPACE], "archive": ARCHIVES, "hdf5": [weights()],
    "header": [HEADER], "placeholders": [SHORT, EVERYTHING], "json": [SHORT, *OPTIONS], "state": [BLOB],
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_what_is_damaged_was_valid(check):
    for given in VALID[check]:
        CHECKS[check][0](given if isinstance(given, bytes) else json.dumps(given))


PER_CHECK = -(-INPUTS // len(CHECKS))


@pytest.mark.parametrize("begin", range(0, PER_CHECK, CHUNK))
@pytest.mark.parametrize("check", CHECKS)
def test_whatever_comes_gives_a_right_value_or_an_error_to_act_on(check, begin):
    for seed in range(begin, min(begin + CHUNK, PER_CHECK)):
        given = case(check, seed)
        try:
            with within(SECONDS):
                CHECKS[check][0](given)
        except CerebroError as error:
            assert error.sqlstate and error.hint, "%s, seed %d: %r" % (check, seed, error)
            assert len(error.message) + len(error.detail or "") + len(error.hint) < 20_000, "%s, seed %d" % (check, seed)
        except BaseException as error:
            raise AssertionError("%s, seed %d: %r of %r" % (check, seed, error, given[:2000])) from error
