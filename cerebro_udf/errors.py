"""One class per SQLSTATE, and two kinds of failure: of a trial, and of a run.

Raised inside a backend, an instance becomes an ordinary PostgreSQL error with SQLSTATE, DETAIL and HINT
(``plpy.Error`` is the base class there). Outside a backend it is a plain exception.
"""

from __future__ import annotations

import difflib
import re
from typing import Any, Iterable, Optional

try:
    from plpy import Error as _Base
except ImportError:  # not inside a backend
    _Base = Exception


MOST_CHARACTERS = 4000  # of a message, a DETAIL or a HINT: what they quote may be megabytes


_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def unstorable(value: Any) -> Optional[str]:
    """Return a text within a JSON value that PostgreSQL cannot hold, as JSON's escapes write it; None if there is none.

    That is NUL, and one half of a surrogate pair.
    """
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str) and _UNSTORABLE.search(item):
            return _escaped(item)
        if isinstance(item, dict):
            waiting += [*item, *item.values()]
        elif isinstance(item, list):
            waiting += item
    return None


def _escaped(text: str) -> str:
    return _UNSTORABLE.sub(lambda found: "\\u%04x" % ord(found.group()), text)


def _shown(text: Optional[str]) -> Optional[str]:
    return text if text is None else _escaped(text if len(text) <= MOST_CHARACTERS else text[:MOST_CHARACTERS] + "…")


class CerebroError(_Base):
    """An error the user can act on.

    Args:
        message: Lower-case, no full stop, no function name.
        detail: A sentence with the figures, or None.
        hint: A sentence that says what repairs it, or None.
    """

    sqlstate = "ML000"

    def __init__(self, message: str, detail: Optional[str] = None, hint: Optional[str] = None):
        self.message, self.detail, self.hint = _shown(message), _shown(detail), _shown(hint)
        super().__init__(self.message)


class InvalidArgument(CerebroError):
    """An option, a definition or an argument makes no sense."""

    sqlstate = "22023"


class NullArgument(CerebroError):
    """An argument that must be given is NULL or blank."""

    sqlstate = "22004"


class NotFound(CerebroError):
    """A run or a model of that name does not exist for this role."""

    sqlstate = "42704"


class TableNotFound(CerebroError):
    """The source table does not exist."""

    sqlstate = "42P01"


class ColumnNotFound(CerebroError):
    """A column does not exist."""

    sqlstate = "42703"


class WrongColumnType(CerebroError):
    """A column's type cannot be used so."""

    sqlstate = "42804"


class AlreadyExists(CerebroError):
    """A run or a model of that name exists."""

    sqlstate = "42710"


class NotSupported(CerebroError):
    """This engine, table or model cannot do that, and the message names what can't be done."""

    sqlstate = "0A000"


class InUse(CerebroError):
    """Another session drives this run, or this session lost it to another."""

    sqlstate = "55006"


class NotReady(CerebroError):
    """The object is not in the state that this call needs."""

    sqlstate = "55000"


class BadData(CerebroError):
    """The rows cannot be trained on: NULL, NaN, ragged arrays, labels; found while shards load."""

    sqlstate = "22000"


class OutOfRange(CerebroError):
    """Numbers of a column lose what tells them apart."""

    sqlstate = "22003"


class NullInData(CerebroError):
    """A feature or label column holds NULL, NaN or infinite values and ``nulls`` is ``error``."""

    sqlstate = "22004"


class DuplicateKey(CerebroError):
    """Two rows share what should tell them apart."""

    sqlstate = "23505"


class RaggedArrays(CerebroError):
    """The arrays of one column differ in shape."""

    sqlstate = "2202E"


class OutOfMemory(CerebroError):
    """A shard does not fit the memory that this run may use on its segment."""

    sqlstate = "53200"


class DiskFull(CerebroError):
    """A segment has no room for what its memory does not hold."""

    sqlstate = "53100"


class OutOfTemporaryFiles(CerebroError):
    """More temporary files would be needed than ``temp_file_limit`` allows."""

    sqlstate = "53400"


class NoPrivilege(CerebroError):
    """The caller may not do that."""

    sqlstate = "42501"


class NotAuthenticated(CerebroError):
    """A link to a segment would not authenticate as the caller, with the caller's own password."""

    sqlstate = "28000"


class SegmentUnreachable(CerebroError):
    """A segment cannot be reached, or the link to it broke."""

    sqlstate = "08006"


class TooManyConnections(SegmentUnreachable):
    """A server has too few connections left for the sessions of a run."""

    sqlstate = "53300"


class SegmentNotReady(CerebroError):
    """A segment lacks the extension, or has another version of it."""

    sqlstate = "ML001"


class ReadOnly(CerebroError):
    """The server is a standby or the transaction is read-only."""

    sqlstate = "25006"


class DataChanged(CerebroError):
    """A shard read again is not the shard that the run began with."""

    sqlstate = "ML002"


class StateMismatch(CerebroError):
    """A state is damaged, or belongs to another program."""

    sqlstate = "ML003"


class RunNotDone(CerebroError):
    """The run that was waited for is not done: cancelled, interrupted, or still under way when the time was up."""

    sqlstate = "ML004"


class AllTrialsFailed(CerebroError):
    """No trial of a run is left; each has its own reason."""

    sqlstate = "ML005"


class SessionOutdated(CerebroError):
    """The extension or the package was replaced since this session loaded it."""

    sqlstate = "ML006"


class ClientGone(CerebroError):
    """The client that asked for this statement has closed its connection."""

    sqlstate = "08003"


class TrialFailed(Exception):
    """This trial failed (recorded with the reason); the others go on. Never reaches a client."""


class cerebro(_Base):
    """What leaves a function: PL/Python puts the class's name before the message, so this one's is fit to be read."""


cerebro.__module__ = "builtins"  # or the module's name would be put before it as well


def shown(error: Exception) -> cerebro:
    """The same error (ours, or one of SPI's) as the client is to see it: message, SQLSTATE, DETAIL, HINT."""
    if isinstance(error, CerebroError):
        message, sqlstate, detail, hint = error.message, error.sqlstate, error.detail, error.hint
    else:
        spidata = getattr(error, "spidata", None) or (None, None, None)
        message, sqlstate, detail, hint = str(error), getattr(error, "sqlstate", None), spidata[1], spidata[2]
    result = cerebro(message)
    result.sqlstate, result.detail, result.hint = sqlstate, detail, hint
    # PostgreSQL 9.4 (Greenplum 6) reads this tuple instead of the attributes.
    result.spidata = (sqlstate, detail, hint, None, 0)
    return result


def not_owner(kind: str, name: str, owner: str) -> NoPrivilege:
    """The error of who may use a run, an alias or a model of another role, and no more."""
    detail = 'It belongs to role "%s"; you were granted its use.' % owner
    return NoPrivilege('must be owner of %s "%s"' % (kind, name), detail, "Ask its owner.")


def counted(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return "%d %s%s" % (count, noun, "" if count == 1 else "s")


def with_article(noun: str) -> str:
    """``a layer``, ``an optimizer``."""
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def other(option: str) -> str:
    """``another loss``, ``other features``."""
    return ("other " if option.endswith("s") and option != "loss" else "another ") + option


def nearest(word: str, known: Iterable[str]) -> str:
    """Say which known word was probably meant.

    Returns:
        A HINT sentence: the nearest match, or the list of all known words.
    """
    known = sorted(known)
    lower = {one.lower(): one for one in known}
    match = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    if word.lower() in lower:
        match = [lower[word.lower()]]
    if match:
        return 'Did you mean "%s"?' % match[0]
    return "Known are: %s." % (", ".join(known) or "none")
