"""How TensorFlow has to be imported in a backend: apart from the server's LLVM, and without greetings."""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from typing import Iterator

_SHOW_TO_ALL = "tensorflow.python.pywrap_dlopen_global_flags"


@contextmanager
def apart() -> Iterator[None]:
    """Import within; TensorFlow's libraries then look for symbols in each other before they look in the server.

    PostgreSQL's JIT loads its LLVM for all to see, and TensorFlow carries another one under the same names: whichever
    came second in a session crashed it, as soon as one query was costly enough to be compiled. So TensorFlow binds
    to itself first (RTLD_DEEPBIND), and is kept from showing its symbols to all (RTLD_GLOBAL), which it only needs
    where its libraries are not linked to each other.
    Standard error goes nowhere meanwhile: TensorFlow's C++ writes there before it reads its log level. What was imported
    stays for ever, so that Python's collector of garbage neither runs meanwhile nor looks at it again (a tenth of the time
    of an import and of a trace).
    """
    os.environ.update(KERAS_BACKEND="tensorflow", TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    flags = sys.getdlopenflags()
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_DEEPBIND)
    sys.modules.setdefault(_SHOW_TO_ALL, None)  # an import of it fails, which TensorFlow expects
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        if collecting:
            gc.enable()
        sys.setdlopenflags(flags)
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)


def start(threads: int) -> bool:
    """Import TensorFlow, and fix how many threads it has; must come before Keras is imported, which starts its runtime.

    Returns:
        Whether it has so many threads: false where it already runs with another number.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with apart():
        import tensorflow as tf
    try:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError:
        return False
    tf.get_logger().setLevel("ERROR")
    return True
