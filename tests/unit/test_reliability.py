"""The fault table of docs/reliability.md is that of the catalogue, as a run of it has written it."""

from __future__ import annotations

from tests import fault_page
from tests.fault_bench import POINTS
from tests.fault_table import FAULTS, QUICK


def test_the_page_has_every_fault_of_the_catalogue_in_its_order():
    rows = fault_page.rows()
    assert list(rows) == [fault.name for fault in FAULTS]
    for fault in FAULTS:
        told, becomes, goes_on = rows[fault.name]
        assert (becomes, goes_on) == (fault.becomes, fault_page.GOES_ON[fault.then]), fault.name
        assert told == "nothing" or fault.sees in ("00000", "gone") or told.startswith(fault.sees), fault.name


def test_the_catalogue_names_each_fault_once_and_knows_its_points():
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) and set(QUICK) < set(names) and len(QUICK) == 12
    assert {point for fault in FAULTS for point in fault.points} <= set(POINTS)


def test_every_point_of_a_visit_has_a_fault():
    assert {point for fault in FAULTS for point in fault.points} == set(POINTS)
