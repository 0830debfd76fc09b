"""Import TensorFlow without its greetings, which would land in the server's log at every new session."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import Iterator


@contextmanager
def quiet() -> Iterator[None]:
    """Send the process's standard error to nowhere; TensorFlow's C++ writes there before it reads its log level."""
    saved, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(nowhere)
