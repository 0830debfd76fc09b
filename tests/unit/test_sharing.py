"""Figures of hosts and servers, and what a run makes of them."""

from __future__ import annotations

import dataclasses

import pytest

from cerebro_udf.coordinator import sharing
from cerebro_udf.coordinator.links import Address
from cerebro_udf.errors import TooManyConnections

ADDRESS = Address("cerebro_self", "127.0.0.1", "5432", "db", 'o"hara', None)
ROOM = {
    "most": 100, "reserved": 3, "used": 10, "role_most": -1, "role_used": 9, "database_most": -1, "database_used": 10,
}  # fmt: skip


@pytest.mark.parametrize(
    "cores, own, others, warm, steady, expected",
    [
        (8, 2, 0, None, False, 4), (8, 2, 2, None, False, 2), (8, 2, 2, None, True, 4), (2, 8, 0, None, False, 1),
        (8, 3, 0, None, False, 2),
        (8, 2, 2, 4, False, 2), (8, 2, 0, 3, False, 3), (8, 2, 0, 2, False, 4), (8, 2, 0, 3, True, 4), (8, 2, 0, 4, False, 4),
    ],
)  # fmt: skip
def test_cores_are_shared_out_and_a_warm_session_that_is_nearly_right_stays(cores, own, others, warm, steady, expected):
    assert sharing.threads(cores, own, others, warm, steady) == expected


def test_what_a_worker_may_keep_is_a_share_of_its_host():
    assert sharing.growth_bytes(2**36, 4) == 2**30
    assert sharing.growth_bytes(2**30, 4) == sharing.GROWTH_LEAST_BYTES


@pytest.mark.parametrize(
    "programs, visits, grown_bytes, expected",
    [(200, 400, 2**31, True), (3, 400, 2**31, False), (200, 15, 2**31, False), (200, 400, 2**29, False)],
)
def test_session_is_replaced_when_many_programs_keep_too_much(programs, visits, grown_bytes, expected):
    report = {"programs": programs, "visits": visits, "grown_bytes": grown_bytes}
    assert sharing.grown(report, sharing.growth_bytes(2**36, 4)) == expected


@pytest.mark.parametrize(
    "change, needed, detail, hint",
    [
        ({"used": 94}, 7, "7 more sessions there, 3 are left: 94 of max_connections = 100", "options.segments to 4"),
        ({"used": 99}, 1, "0 are left", "raise max_connections at 127.0.0.1:5432/db"),
        ({"role_most": 10}, 2, 'role "o"hara" has a limit of 10, and 9 are in use', 'ALTER ROLE "o""hara" CONNECTION LIMIT 11;'),
        ({"database_most": 12}, 7, 'database "db" has a limit of 12', 'ALTER DATABASE "db" CONNECTION LIMIT 17;'),
        ({"database_most": 12, "role_most": 10}, 7, "1 are left: role", "options.segments to 2"),
    ],
)  # fmt: skip
def test_too_few_connections_are_told_by_the_limit_that_is_nearest(change, needed, detail, hint):
    sharing.refuse_few_connections(ADDRESS, ROOM, 1, needed)
    with pytest.raises(TooManyConnections) as caught:
        sharing.refuse_few_connections(ADDRESS, {**ROOM, **change}, 1, needed)
    assert caught.value.sqlstate == "53300"
    assert detail in caught.value.detail and hint in caught.value.hint


def test_only_local_workers_are_said_to_be_fewer_by_an_option():
    with pytest.raises(TooManyConnections) as caught:
        sharing.refuse_few_connections(dataclasses.replace(ADDRESS, name="segment_1"), {**ROOM, "used": 97}, 1, 1)
    assert caught.value.hint == "Wait until other runs have ended, or raise max_connections at 127.0.0.1:5432/db"
