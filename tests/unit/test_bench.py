"""What benchmarks compare gives the same numbers; they call the code of segments, so they break with it."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from bench import preparing


@pytest.mark.parametrize("kind", preparing.COUNTS)
def test_rows_prepared_are_those_of_tf_data(kind, monkeypatch):
    monkeypatch.setitem(preparing.COUNTS, kind, 40)
    sides = preparing.compared(tf, kind)
    np.testing.assert_array_equal(sides["tf.data"](), sides["prepared"]())
