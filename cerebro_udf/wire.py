"""What coordinator and segments must agree on when they talk."""

from __future__ import annotations

import math
from typing import Any

MESSAGE_BYTES = 64 * 2**20  # a longer state goes in parts of this size, and is stored so
PROGRESS_PREFIX = "cerebro-progress "  # of a notice of JSON, sent in the middle of a visit


def finite(value: Any) -> Any:
    """The same JSON value with None for the numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
