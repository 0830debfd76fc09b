"""Skip by feature: `@requires.segments(4)` over a test names what it needs, not which product has it."""

from __future__ import annotations

import os

import pytest

SEGMENTS_VARIABLE = "CEREBRO_TEST_SEGMENTS"
DEFAULT_SEGMENTS = 3


def wanted_segments() -> int:
    """How many segments the session's cluster gets."""
    return int(os.environ.get(SEGMENTS_VARIABLE, DEFAULT_SEGMENTS))


def segments(count: int):
    """The test needs a cluster of at least that many segments."""
    return pytest.mark.needs_segments(count)


def server(version: int):
    """The test needs a server of at least that major version."""
    return pytest.mark.needs_server(version)


def extension(name: str):
    """The test needs that extension to be installed beside the server."""
    return pytest.mark.needs_extension(name)


def unmet(item: pytest.Item, server_version, has_extension) -> str | None:
    """Why a test can't run here, and the variable that would make it run; None if it can.

    Args:
        item: The test.
        server_version: Called only if a test asks; returns the major version.
        has_extension: Likewise; whether the server finds an extension of that name.
    """
    for mark in item.iter_markers("needs_segments"):
        if mark.args[0] > wanted_segments():
            return "needs %d segments: set %s=%d" % (mark.args[0], SEGMENTS_VARIABLE, mark.args[0])
    for mark in item.iter_markers("needs_server"):
        if mark.args[0] > server_version():
            return "needs PostgreSQL %d: set PG_CONFIG to that server's pg_config" % mark.args[0]
    for mark in item.iter_markers("needs_extension"):
        if not has_extension(mark.args[0]):
            return "needs extension %s: install the package that has it, such as postgresql-contrib" % mark.args[0]
    return None
