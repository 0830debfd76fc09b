"""What strangers may write into states, options and JSON: refused as what it is, in bounded time and memory."""

from __future__ import annotations

import json
import struct
import time

import numpy as np
import pytest

from cerebro_udf import definition, entry, packs, serve
from cerebro_udf.architecture import Architecture
from cerebro_udf.coordinator import options, space
from cerebro_udf.errors import MOST_CHARACTERS, InvalidArgument, NotReady, StateMismatch
from cerebro_udf.segment import state
from tests.unit import test_fuzz as fuzz

MODEL = {"layers": [{"Dense": {"units": 1}}]}


def blob(header: str, body: bytes = b"") -> bytes:
    text = header.encode()
    return struct.pack("<Q", len(text)) + text + body


def of_arrays(metadata: dict, body: bytes = bytes(8), **arrays: dict) -> bytes:
    own = {"format": "1", "checksum": "crc32:00000000", "bfloat16": "[]", **metadata}
    return fuzz.sealed(json.dumps({"__metadata__": own, **arrays}).encode(), body)


WHOLE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize("given", [
    blob("[" * 10_000 + "]" * 10_000),
    blob('{"__metadata__": {"format": 1e999, "checksum": ""}}'),
    of_arrays({"bfloat16": "[" * 10_000 + "]" * 10_000}),
    of_arrays({"bfloat16": 1}),
    of_arrays({}, a={**WHOLE, "shape": [2**70]}),
    of_arrays({}, a={**WHOLE, "dtype": "O"}),
    of_arrays({}, a=WHOLE, b=WHOLE),
    of_arrays({}, **{"a%d" % n: WHOLE for n in range(1000)}),
], ids=["deep header", "infinite format", "deep metadata", "metadata of numbers", "huge shape", "objects", "one upon another",
    "a thousand"])  # fmt: skip
def test_a_state_of_a_stranger_is_damaged(given):
    with pytest.raises(StateMismatch, match="damaged") as caught:
        state.unpack(given)
    assert caught.value.hint


@pytest.mark.parametrize("averages", [1, "x", "[" * 10_000, '{"model/0": "model/9"}'])
def test_averages_of_a_stranger_are_damage(averages):
    with pytest.raises(StateMismatch, match="damaged"):
        state.serving(of_arrays({"averages": averages}, **{"model/0": WHOLE}))


def test_a_state_of_ours_is_read():
    array = np.arange(2, dtype=np.float32)
    assert np.array_equal(state.unpack(of_arrays({}, array.tobytes(), a=WHOLE))[0]["a"], array)


@pytest.mark.parametrize("given", [{"memory": "9" * 400 + "GB"}, {"time_limit": "1s " * 60 + "x"}, {"time_limit": "9" * 400 + "s"}])
def test_text_of_an_option_takes_no_time_and_no_more_than_numbers_hold(given):
    begun = time.monotonic()
    with pytest.raises(InvalidArgument, match="has a wrong value") as caught:
        options.parse(given, MODEL)
    assert caught.value.hint and time.monotonic() - begun < 1


@pytest.mark.parametrize("name", [1, None, [], {}])
def test_a_metric_whose_name_is_no_text_is_refused(name):
    with pytest.raises(InvalidArgument, match="must be text") as caught:
        options.parse({"metrics": [{"AUC": {"name": name}}], "rank_by": "auc"}, MODEL)
    assert caught.value.hint


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_of_json_is_refused_before_the_catalog_would(word):
    with pytest.raises(InvalidArgument, match="not JSON") as caught:
        entry._json("archive", '{"a": %s}' % word)
    assert word in caught.value.detail and caught.value.hint


@pytest.mark.parametrize("text", ['"\\ud800"', '"a\\udfff\\ud800"', '"\\u0000"'])
@pytest.mark.parametrize("place", ["[%s]", '{"a": {%s: 1}}', '{"a": [1, %s]}'])
def test_text_that_postgresql_does_not_hold_is_refused_where_json_brings_it(text, place):
    for read in (lambda given: entry._parsed("archive", given), serve._values):
        with pytest.raises(InvalidArgument, match="holds text that PostgreSQL does not") as caught:
            read(place % text)
        assert caught.value.hint and text.strip('"a') in caught.value.detail and caught.value.detail.encode()


@pytest.mark.parametrize("text", ['"\\\\ud800"', '"\\ud83d\\ude00"', '"\\\\u0000"'])
def test_text_that_only_looks_so_is_read(text):
    assert entry._parsed("archive", "[%s]" % text) == serve._values("[%s]" % text) == json.loads("[%s]" % text)


@pytest.mark.parametrize("place", ["pack", "shards"])
def test_the_header_of_a_packed_table_holds_text_that_postgresql_does_too(place):
    header = {**fuzz.HEADER, place: "\ud800" if place == "pack" else ["\0"]}
    with pytest.raises(NotReady, match="cannot be read") as caught:
        packs.parse(json.dumps(header), "t")
    assert "holds the text \\u" in caught.value.detail and caught.value.hint


def test_an_error_is_text_that_a_client_can_be_sent():
    error = InvalidArgument("a\ud800", "b\0c", "\udfff")
    assert (error.message, error.detail, error.hint) == ("a\\ud800", "b\\u0000c", "\\udfff")


def test_a_name_longer_than_an_index_holds_is_refused():
    with pytest.raises(InvalidArgument, match="argument run is too long") as caught:
        entry._name("run", "é" * (entry.NAME_CHARACTERS + 1))
    assert caught.value.hint and "501" in caught.value.detail
    assert entry._name("run", "x" * entry.NAME_CHARACTERS)


def test_an_error_quotes_no_more_than_can_be_read():
    with pytest.raises(InvalidArgument) as caught:
        options.parse({"a" * 10**6: 1}, MODEL)
    assert len(caught.value.message) == MOST_CHARACTERS + 1 and caught.value.hint


def test_a_million_layers_are_not_gone_over():
    begun = time.monotonic()
    with pytest.raises(InvalidArgument, match="more than 10000 layers") as caught:
        definition.check({"layers": ["Flatten"] * 10**6})
    assert caught.value.detail == "At definition.layers[10000]." and caught.value.hint and time.monotonic() - begun < 2


BILLION = 10**9


@pytest.mark.parametrize("layer", [
    {"SpectralNormalization": {"layer": {"Dense": {"units": 4}}, "power_iterations": BILLION}},
    {"RandAugment": {"value_range": [0, 1], "num_ops": BILLION}}, {"AugMix": {"value_range": [0, 1], "chain_depth": BILLION}},
    {"TextVectorization": {"vocabulary": ["a"], "ngrams": BILLION}}, {"TextVectorization": {"vocabulary": ["a"], "ngrams": [1, BILLION]}},
    {"IntegerLookup": {"vocabulary": [1], "num_oov_indices": BILLION}}, {"MelSpectrogram": {"fft_length": BILLION}},
    {"AveragePooling2D": {"pool_size": BILLION, "padding": "same"}}, {"Conv2D": {"filters": 1, "kernel_size": [1, BILLION]}},
    {"DepthwiseConv2D": {"kernel_size": 3000}},
], ids=lambda layer: next(iter(layer)))  # fmt: skip
def test_what_a_layer_would_do_a_billion_times_is_refused(layer):
    with pytest.raises(InvalidArgument, match=" is more than | covers more than ") as caught:
        definition.check({"layers": [layer]})
    assert caught.value.hint and "definition.layers[0]." in caught.value.detail


@pytest.mark.parametrize("name, key, value", [
    ("ArraySplit", "indices_or_sections", BILLION), ("Diff", "n", BILLION), ("Vander", "N", BILLION), ("AveragePool", "pool_size", 1001),
    ("MaxPool", "pool_size", [BILLION, 1]),
])  # fmt: skip
def test_what_an_operation_would_do_a_billion_times_is_refused(name, key, value):
    module = "keras.src.ops.%s" % ("nn" if name.endswith("Pool") else "numpy")
    operation = {"module": module, "class_name": name, "config": {key: value}, "registered_name": name}
    with pytest.raises(InvalidArgument, match="%s of %s " % (key, name)) as caught:
        Architecture().operation(operation, "definition")
    assert caught.value.hint
    assert Architecture().operation({**operation, "config": {key: 2}}, "definition")["config"] == {key: 2}


@pytest.mark.parametrize("metric", [{"AUC": {"num_thresholds": BILLION}}, {"MeanIoU": {"num_classes": BILLION}}])
def test_a_metric_of_a_billion_numbers_is_refused(metric):
    with pytest.raises(InvalidArgument, match="is more than") as caught:
        options.parse({"metrics": [metric]}, MODEL)
    assert caught.value.hint


def test_more_axes_than_a_walk_can_go_over_are_refused():
    with pytest.raises(InvalidArgument, match="more than 200 axes") as caught:
        space.parse({"a%d" % number: [1, 2] for number in range(2000)})
    assert caught.value.hint
    found = space.parse({"a%d" % number: [1, 2] for number in range(200)})
    assert found.size(3) == 3 and len(next(found.grid())) == 200
