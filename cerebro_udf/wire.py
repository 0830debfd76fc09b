"""What coordinator and segments must agree on when they talk."""

from __future__ import annotations

import json
import math
from typing import Any, List, Optional, Sequence, Union

MESSAGE_BYTES = 64 * 2**20  # a longer state goes in parts of this size, and is stored so
PROGRESS_PREFIX = "cerebro-progress "  # of a notice of JSON, sent in the middle of a visit

# Of the option ``validation``, where it is an object: the keys that go together, and those that name a column.
VALIDATION_FORMS = [
    set(keys.split())
    for keys in (
        "fraction", "fraction stratify", "column", "group fraction", "time fraction", "time from",
        "folds fold", "folds fold group", "folds fold stratify", "table",
    )
]  # fmt: skip
VALIDATION_COLUMNS = ("column", "group", "time")


def stratified(validation: Any, labels: Sequence[dict]) -> Optional[int]:
    """The number of the label of whose classes the option ``validation`` holds equal shares out, None where it does not."""
    output = validation.get("stratify") if isinstance(validation, dict) else None
    return None if output is None else 0 if output is True else [label["output"] for label in labels].index(output)


def parts(blob: bytes) -> List[bytes]:
    """Cut a state as it is sent and stored: into one message or more, none longer than ``MESSAGE_BYTES``."""
    return [blob[at : at + MESSAGE_BYTES] for at in range(0, max(1, len(blob)), MESSAGE_BYTES)]


def finite(value: Any) -> Any:
    """The same JSON value with None for the numbers that JSON does not have: NaN and infinities."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parsed(text: str) -> Any:
    """Read JSON of jsonb, which writes 1e+30 in digits: what no int64 holds is a float, or numpy would make an object of it."""
    return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> Union[int, float]:
    value = int(digits) if len(digits) <= 20 else float(digits)
    return value if -(2**63) <= value < 2**63 else float(value)
