"""How large arguments may be that say how often Keras does something, or over how much, whatever a row is. Pure.

Such a number is a loop of Python, which no cancel reaches, or memory that nobody has looked at when it is taken: a graph of a
million steps, a list of a billion numbers. What goes by variables and by outputs of layers is seen before it is made
(``segment/network.py``), and is not here.
"""

from __future__ import annotations

import math
import re
from typing import Any, Dict, Optional

_PLACES = 10_000
_SIGNAL = 2**16

# By kind and name of the argument, for any class of the kind; "Class.argument" for one.
_MOST: Dict[str, Dict[str, int]] = {
    "layer": {
        "power_iterations": 100, "num_ops": 20, "num_chains": 10, "chain_depth": 10, "ngrams": 20, "num_oov_indices": _PLACES,
        "bins": _SIGNAL, "num_mel_bins": 1000, "fft_length": _SIGNAL, "frame_length": _SIGNAL, "sequence_length": _SIGNAL,
    },
    "metric": {"num_thresholds": 100_000, "num_classes": 5000},
    "operation": {
        "indices_or_sections": _PLACES, "num": _PLACES, "Diff.n": 100, "Vander.N": _SIGNAL, "TopK.k": _SIGNAL, "InTopK.k": _SIGNAL,
        "fft_length": _SIGNAL, "sequence_length": _SIGNAL, "bins": _SIGNAL,
    },
}  # fmt: skip
# Of a window, over all of its axes: it may be larger than what it moves over.
_WINDOWS = {"kernel_size": 10**6, "pool_size": 10**6}


def excess(kind: str, name: str, key: str, value: Any) -> Optional[str]:
    """Say what is too large about an argument, None if nothing is.

    Args:
        kind: ``operation``, or the noun of a ``keras_objects.Kind``.
    """
    sizes = value if isinstance(value, list) else [value]
    if not sizes or not all(isinstance(size, (int, float)) for size in sizes):
        return None
    most = _WINDOWS.get(key) if kind in ("layer", "operation") else None
    if most is not None:
        axes = re.search(r"(\d)D", name)
        sizes = sizes if isinstance(value, list) else sizes * (int(axes.group(1)) if axes else 2)
        return "%s of %s covers more than %d places" % (key, name, most) if math.prod(sizes) > most else None
    of_kind = _MOST.get(kind, {})
    most = of_kind.get("%s.%s" % (name, key), of_kind.get(key))
    if most is None or max(sizes) <= most or (key == "indices_or_sections" and isinstance(value, list)):
        return None
    return "%s of %s is more than %d" % (key, name, most)
