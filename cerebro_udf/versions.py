"""Is this session of the version that is installed, and is the extension? Asked at each call, since both may change meanwhile."""

from __future__ import annotations

import os
import re
from typing import Any, List, Optional, Tuple

import cerebro_udf
from cerebro_udf.errors import SegmentNotReady, SessionOutdated

NEW_SESSION = "Start a new session."
_EXTENSION = "select e.oid::int8 as oid, e.extversion as version from pg_catalog.pg_extension e where e.extname = 'cerebro'"
_VERSION = re.compile(r'^__version__ = "([^"]+)"$', re.MULTILINE)


def _mark() -> Optional[Tuple[int, int]]:
    """What changes when the package's files are replaced; None while they are not there."""
    try:
        found = os.stat(cerebro_udf.__file__)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


_seen = _mark()


def installed() -> Optional[str]:
    """The version of the package in the place from which this session has loaded it; None if it is gone."""
    try:
        with open(cerebro_udf.__file__, encoding="utf-8") as file:
            found = _VERSION.search(file.read())
    except OSError:
        return None
    return found.group(1) if found else None


def refuse_outdated(plpy: Any, gd: dict) -> str:
    """See that nothing was put in the place of what this session has loaded and remembers.

    What it loads later would be of the other version; what it remembers of runs may be of others that have their numbers.

    Returns:
        The extension's version.

    Raises:
        SessionOutdated.
    """
    global _seen
    mark = _mark()
    if mark is None or mark != _seen:
        found = installed()
        if found != cerebro_udf.__version__:
            there = "%s is installed by now" % found if found else "it is no longer installed"
            raise SessionOutdated(
                "cerebro was upgraded since this session began",
                "The session has loaded version %s; %s." % (cerebro_udf.__version__, there),
                NEW_SESSION,
            )
        _seen = mark
    if "cerebro_extension_plan" not in gd:
        gd["cerebro_extension_plan"] = plpy.prepare(_EXTENSION)
    row = plpy.execute(gd["cerebro_extension_plan"])[0]
    if gd.setdefault("cerebro_extension", row["oid"]) != row["oid"]:
        raise SessionOutdated(
            "extension cerebro was created anew since this session began",
            "The session remembers runs and models of the one that was dropped.",
            NEW_SESSION,
        )
    return row["version"]


def refuse_mixed(extension: str) -> None:
    """The extension's SQL and this package must be of one version.

    Raises:
        SegmentNotReady.
    """
    if extension != cerebro_udf.__version__:
        raise SegmentNotReady(
            "extension and Python package of cerebro differ in version",
            "The extension is %s, the package %s." % (extension, cerebro_udf.__version__),
            "As superuser: ALTER EXTENSION cerebro UPDATE;"
            if _older(extension, cerebro_udf.__version__)
            else "Install version %s of the package (make install PG_CONFIG=…) on that host." % extension,
        )


def other_node(segment: str, there: str) -> SegmentNotReady:
    """What to say of a segment that has loaded another version than this session."""
    here = cerebro_udf.__version__
    behind = 'of segment "%s"' % segment if _older(there, here) else "of the coordinator"
    return SegmentNotReady(
        'segment "%s" runs another version of cerebro' % segment,
        "It runs %s, the coordinator %s." % (there, here),
        "Install version %s on the host %s, and update the extension there: ALTER EXTENSION cerebro UPDATE; then start a new session."
        % (max(there, here, key=_numbers), behind),
    )


def _older(one: str, other: str) -> bool:
    return _numbers(one) < _numbers(other)


def _numbers(version: str) -> List[int]:
    return [int(part) for part in re.findall(r"\d+", version)]
