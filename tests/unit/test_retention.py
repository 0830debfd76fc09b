"""Which runs go when there are many."""

import pytest

from cerebro_udf import errors
from cerebro_udf.coordinator import options, remarks, retention

DAY = 86400.0
# From the newest to the oldest, one a day, of 10, 20, 30, 40 bytes; the third is held.
RUNS = [{"id": i, "name": "r%d" % i, "seconds": i * DAY, "bytes": 10 * (i + 1), "held": i == 2} for i in range(4)]


@pytest.mark.parametrize(
    "given, gone",
    [
        ({"runs": 2}, [3]), ({"runs": 1}, [3, 1]), ({"runs": 0}, [3, 1, 0]), ({"runs": 4}, []), ({"age": "1 day"}, [3]),
        ({"age": "12 h"}, [3, 1]), ({"age": "3 days"}, []), ({"bytes": 30}, [3]), ({"bytes": "29B"}, [3, 1]), ({"bytes": 0}, [3, 1, 0]),
        ({"bytes": "1kB", "age": "2d", "runs": 3}, [3]),
    ],
)  # fmt: skip
def test_what_any_of_the_bounds_excludes_goes_oldest_first_but_for_what_is_held(given, gone):
    kept = options.parse_retention(given)
    assert [run["id"] for run in retention.beyond(RUNS, kept)] == gone


def test_a_run_that_is_too_large_makes_room_for_smaller_ones_that_are_older():
    runs = [{**RUNS[0], "bytes": 100}, {**RUNS[1], "bytes": 1}]
    assert [run["id"] for run in retention.beyond(runs, options.parse_retention({"bytes": 50}))] == [0]


@pytest.mark.parametrize(
    "given, message",
    [
        ({}, "the options do not say which runs stay"),
        ({"dry_run": True}, "the options do not say which runs stay"),
        ({"runs": -1}, 'option "runs"'), ({"runs": 1.5}, 'option "runs"'), ({"runs": True}, 'option "runs"'),
        ({"age": "old"}, 'option "age"'), ({"age": 0}, 'option "age"'), ({"bytes": "2 GiB"}, 'option "bytes"'),
        ({"bytes": -1}, 'option "bytes"'), ({"bytes": 1e300}, 'option "bytes"'),
        ({"bytes": "9e9TB"}, 'option "bytes"'), ({"bytes": "9" * 300 + "TB"}, 'option "bytes"'),
        ({"count": 1}, 'unknown option "count"'), ({"runs": 1, "dry_run": 1}, 'option "dry_run"'),
    ],
)  # fmt: skip
def test_bounds_that_make_no_sense_are_refused(given, message):
    with pytest.raises(errors.InvalidArgument, match=message) as caught:
        options.parse_retention(given)
    assert caught.value.hint


def test_the_log_tells_in_a_line_how_a_call_ended():
    class Trial:
        def __init__(self, number, status, metric, visits):
            self.number, self.status, self.metric, self.visits = number, status, metric, visits

    trials = [Trial(0, "done", 0.5, 4), Trial(1, "done", 0.25, 4), Trial(2, "failed", None, 1)]
    told = remarks.ended('a "run"', "done", 1.23, trials, ("val_loss", "min"), None)
    assert told == 'cerebro: run "a \\"run\\"": done after 1.2 s; 3 trials (2 done, 1 failed); 9 visits; best val_loss 0.25, of trial 1'
    told = remarks.ended("r", "failed", 0.04, [], None, "two\nlines (SQLSTATE 22000)")
    assert told == 'cerebro: run "r": failed after 0.0 s; two lines (SQLSTATE 22000)'


def test_other_versions_are_told_by_segment():
    one = {"keras": "3.11.0", "tensorflow": "2.19.0"}
    before = {"a": one, "b": one}
    assert remarks.other_versions(before, {"a": one, "b": {**one, "keras": "3.12.0"}, "c": one}) == [
        'segment "b" runs keras 3.12.0, and the run began with 3.11.0'
    ]
