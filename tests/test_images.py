"""Handwritten digits as arrays, as raw bytes and as PNG files: the same pixels make the same model. And pictures that cannot be read."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import io
import json
import os
from pathlib import Path

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests import outcome
from tests import requirements as requires
from tests.session import LOGIT

WARM = True
pytestmark = requires.segments(3)

SIZES = [700, 500, 597]
FORMS = {
    "pixels": "none",
    "raw": {"tensor": {"shape": [8, 8, 1], "as": "none"}},
    "png": {"image": {"height": 8, "width": 8, "channels": 1, "as": "none"}},
}  # fmt: skip
CONVOLUTION = {
    "layers": [
        {"Rescaling": {"scale": 0.0625}}, {"Conv2D": {"filters": 16, "kernel_size": 3, "activation": "relu"}}, "Flatten",
        {"Dense": {"units": "$classes"}},
    ]
}  # fmt: skip


def digits() -> tuple[np.ndarray, np.ndarray]:
    """scikit-learn's digits, read from the file in the package, never imported: (pixels uint8 (1797, 8, 8, 1), labels)."""
    (folder,) = importlib.util.find_spec("sklearn").submodule_search_locations
    table = np.loadtxt(io.BytesIO(gzip.decompress((Path(folder) / "datasets/data/digits.csv.gz").read_bytes())), delimiter=",")
    return table[:, :64].reshape(-1, 8, 8, 1).astype(np.uint8), table[:, 64].astype(int)


class Digits:
    def __init__(self, session):
        self.pixels, self.labels = digits()
        rows = []
        for number, (pixels, label) in enumerate(zip(self.pixels, self.labels)):
            png = tf.io.encode_png(pixels).numpy()
            rows.append([pixels.tolist(), "\\x" + pixels.tobytes().hex(), "\\x" + png.hex(), "_%d" % label, number])
        columns = {"pixels": "smallint[]", "raw": "bytea", "png": "bytea", "label": "text", "row": "integer"}
        self.rows, self.table = rows, session.sharded(columns, rows, SIZES)
        self.model, self.options = session.model(CONVOLUTION), {"epochs": 6, "validation": 0.25, "order": "fixed", "learning_rate": 0.01}
        self.runs = {
            name: session.fit(self.table, self.model, "label", [name], encoders={name: encoder}, **self.options)
            for name, encoder in FORMS.items()
        }


@pytest.fixture(scope="module")
def trained(session):
    return Digits(session)


def test_digits_as_arrays_bytes_and_png_files_make_the_same_model(session, trained):
    found = [outcome.everything(session.cluster, run) for run in trained.runs.values()]
    weights = [outcome.weights(outcome.best(session.cluster, run, shards=3)) for run in trained.runs.values()]
    for other in weights[1:]:
        for ours, theirs in zip(weights[0], other):
            np.testing.assert_array_equal(ours, theirs)
    assert found[0][0] == found[1][0] == found[2][0], "and the same history"
    assert found[0][0][-1][2]["val_accuracy"] > 0.93


def test_digits_are_predicted_from_bytes_files_and_arrays_alike(session, trained):
    rows = session.rows("select row, pixels, raw, png, label from %s where row in (3, 9, 1700) order by row" % trained.table.name)
    of_row = "select cerebro.predict_class(%s, r) from " + trained.table.name + " r where row = %s"
    for number, pixels, raw, png, label in rows:
        answers = [
            session.rows("select cerebro.predict_class(%s, %s::bytea)", trained.runs["raw"], raw)[0][0],
            session.rows("select cerebro.predict_class(%s, %s::bytea)", trained.runs["png"], png)[0][0],
            session.rows("select cerebro.predict_class(%s, %s::smallint[])", trained.runs["pixels"], pixels)[0][0],
            *(
                session.rows("select cerebro.predict_class(%s, %s::jsonb)", trained.runs["png"], json.dumps({"png": value}))[0][0]
                for value in (base64.b64encode(png).decode(), pixels)
            ),
            session.rows(of_row, trained.runs["png"], number)[0][0],
        ]  # fmt: skip
        assert set(answers) == {answers[0]} and (number == 1700 or answers[0] == label)


def test_digits_of_a_table_are_predicted_evaluated_and_exported(session, trained, tmp_path):
    target = session.schema + "." + session.name("scored")
    query = "select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')"
    assert session.rows(query, trained.runs["png"], trained.table.name, target) == [(len(trained.labels),)]
    scored = session.rows("select row, prediction from %s order by row" % target)
    found = dict(session.rows("select * from cerebro.evaluate(%s, %s::text::regclass)", trained.runs["raw"], trained.table.name))
    right = np.mean([label == "_%d" % trained.labels[row] for row, label in scored])
    assert found["accuracy"] == pytest.approx(right)
    path = tmp_path / "digits.keras"
    path.write_bytes(session.rows("select cerebro.export_model(%s)", trained.runs["png"])[0][0])
    archive = keras.models.load_model(path, safe_mode=True)
    assert archive.inputs[0].dtype == "uint8"
    assert ["_%d" % k for k in np.asarray(archive({"png": trained.pixels})).argmax(axis=1)] == [label for _, label in scored]


def test_varied_pictures_train_alike_twice_and_are_predicted_as_they_are(session, trained):
    varied = {"png": [{"RandomRotation": {"factor": 0.05}}, {"RandomCrop": {"height": 7, "width": 6}}]}
    options = {**trained.options, "epochs": 2, "encoders": {"png": FORMS["png"]}}
    few = session.sharded({"png": "bytea", "label": "text", "row": "integer"}, [[row[2], *row[3:]] for row in trained.rows[:160]], [90, 70])
    runs = [session.fit(few, trained.model, "label", ["png"], augment=varied, **options) for _ in range(2)]
    plain = session.fit(few, trained.model, "label", ["png"], **options)
    histories = [outcome.history(session.cluster, run) for run in (*runs, plain)]
    assert histories[0] == histories[1] != histories[2]
    states = [outcome.states(session.cluster, run) for run in runs]
    assert states[0] == states[1]
    packed = "%s.%s" % (session.schema, session.name("packed"))
    stored = json.dumps({"validation": 0.25, "seed": 7, "encoders": options["encoders"]})
    session.rows("select cerebro.pack(%s::text::regclass, %s, 'label', '{png}', %s)", few.name, packed, stored)
    of_pack = session.fit(packed, trained.model, "label", ["png"], augment=varied, **options)
    assert outcome.states(session.cluster, of_pack) == states[0], "pictures that are packed are varied as they are read"
    cropped = {"png": varied["png"][1:]}  # one random generator fewer, the same weights
    again = {**options, "augment": cropped, "epochs": 1}
    later = session.fit(packed, trained.model, "label", ["png"], init_from=of_pack, **again)
    png = session.rows("select png from %s where row = 5" % few.name)[0][0]
    query = "select cerebro.predict(%s, %s::bytea)"
    assert session.rows(query, runs[0], png) == session.rows(query, runs[0], png)
    further = session.fit(few, trained.model, "label", ["png"], init_from=runs[0], **again)
    (feature,) = session.rows("select encoders -> 'features' from cerebro.run where run = %s", further)[0][0]
    assert [layer["class_name"] for layer in feature["augment"]] == ["RandomCrop"]
    assert outcome.states(session.cluster, later) == outcome.states(session.cluster, further)
    turned = session.fit(few, trained.model, "label", ["png"], init_from=plain, augment={"png": varied["png"][:1]}, **options)
    unturned = session.fit(few, trained.model, "label", ["png"], init_from=turned, **{**options, "learning_rate": 1e-30})
    assert session.rows("select encoders::text like '%%augment%%' from cerebro.run where run = %s", unturned) == [(False,)]
    assert session.rows(query, unturned, png) == session.rows(query, turned, png)
    error = session.refused(packed, trained.model, "label", ["png"], augment={"pgn": varied["png"]}, **options)
    assert (error.sqlstate, error.message) == ("22023", 'option augment names "pgn", which is not a feature')


def test_pictures_that_cannot_be_read_are_refused_and_found_or_skipped(session, trained):
    png = session.rows("select png from %s where row < 6 order by row" % trained.table.name)
    rows = [["\\x" + blob.hex(), bool(number % 2), number] for number, (blob,) in enumerate(png)]
    rows += [["\\x" + png[0][0][:50].hex(), True, 6], ["\\x00", True, 7]]
    table = session.sharded({"x": "bytea", "label": "boolean", "row": "integer"}, rows, [4, 4, 0])
    flat = session.model({"layers": ["Flatten", *LOGIT["layers"]]})
    encoders = {"x": {"image": {"height": 8, "width": 8, "channels": 1}}}
    error = session.refused(table, flat, "label", ["x"], encoders=encoders)
    assert (error.sqlstate, error.message) == ("22000", 'column "x" holds values that are not what its encoder says')
    assert error.detail == "2 of 8 rows; of the first one: the image is damaged."
    where = error.hint.split("Find it by ")[1].split(", or set")[0]
    assert session.rows("select row from %s %s" % (table.name, where)) == [(6,)]
    run = session.fit(table, flat, "label", ["x"], encoders=encoders, nulls="skip")
    target = session.schema + "." + session.name("scored")
    session.rows("select cerebro.predict_table(%s, %s::text::regclass, %s, '{row}')", run, table.name, target)
    assert session.rows("select row from %s where prediction is null order by row" % target) == [(6,), (7,)]
    short = {"x": {"tensor": {"shape": [8, 8, 1]}}}
    error = session.refused(table, flat, "label", ["x"], encoders=short)
    assert error.detail.startswith("8 of 8 rows; of the first one: there are ") and error.detail.endswith("[8, 8, 1] takes 64.")
    error = session.refused(table, flat, "label", ["x"])
    assert (error.sqlstate, error.message) == ("22023", 'column "x" needs an encoder')
