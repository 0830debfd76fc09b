"""What may befall a run, one entry a fault: docs/reliability.md has the same table, made by running it."""

from __future__ import annotations

from tests.fault_bench import MIDDLE, Fault, Scene
from tests.fault_strikes import (
    both,
    bounce,
    connections_taken,
    corrupt,
    cut,
    disk_full,
    end_ledger,
    end_worker,
    freeze_worker,
    go,
    interrupt,
    kill_detached,
    kill_driver,
    kill_ledger_in_a_write,
    kill_psql,
    kill_worker,
    limit_role,
    no_cgroup,
    no_memory,
    no_mount,
    on_coordinator,
    on_segment,
    rebuild,
    refill,
    refuse,
    reset_timeouts,
    set_timeouts,
    stall,
    stall_for_a_while,
    struck,
    was_corrupted,
)

REPEATED = "the visit under way is made again, in a new session"
REREAD = "the rows are read again, and are the same"
WAITED = "the run waits for it"
UNTOUCHED = "nothing: rows are in memory once they are read"
INTERRUPTED = "the run stands as interrupted"
FAILED = "the run stands as failed, with all that was committed"
CANCELLED = "the run stands as cancelled, with all that was committed"
NONE = "no run is left"

AGAIN = "trying again"  # of the notice
VISIT = ("mid-visit", "trained")  # while the coordinator waits for a segment
OWN_TIMEOUTS = "set lock_timeout = 0; set idle_session_timeout = 0; set statement_timeout = 0"


def driver(point: str) -> Fault:
    name = "a process of the coordinator is killed: point %s" % point
    return Fault(name, (point,), struck(kill_driver), "gone", "", INTERRUPTED)


def worker(point: str) -> Fault:
    name = "a process of a segment is killed: point %s" % point
    return Fault(name, (point,), struck(kill_worker), "00000", AGAIN, REPEATED, "itself")


FAULTS = [
    # sessions and servers
    *map(driver, ("claimed", "ready", "order-sent", "state-returned", "committed", "epoch-end", "before-done")),
    Fault("a process of a segment is killed: point loading", ("loading",), struck(kill_worker), "08006", "broke", NONE, "fit"),
    *map(worker, ("order-received", "mid-visit", "trained", "validation")),
    Fault("the session of a segment is ended by an administrator", MIDDLE, struck(end_worker), "00000", AGAIN, REPEATED, "itself"),
    Fault("the ledger's process is killed while a state is written", ("state-returned",), struck(kill_ledger_in_a_write),
          "gone", "", INTERRUPTED),
    Fault("the ledger's session is ended by an administrator", MIDDLE, struck(end_ledger), "08006", "", INTERRUPTED),
    Fault("psql is killed", MIDDLE, struck(kill_psql), "gone", "", CANCELLED),
    Fault("the process of a submitted run is killed", MIDDLE, struck(kill_detached), "00000", "", INTERRUPTED, call="submit"),
    Fault("a segment's server is stopped at once, and comes back", MIDDLE, struck(bounce(2)), "00000", AGAIN, REPEATED, "itself"),
    Fault("the coordinator's server is stopped at once, and comes back", MIDDLE, struck(bounce(0)), "gone", "", INTERRUPTED),
    Fault("a segment's process is frozen for longer than every timeout", MIDDLE, struck(both(set_timeouts, freeze_worker), reset_timeouts),
          "00000", "", WAITED, "itself", setting=OWN_TIMEOUTS),
    Fault("statement_timeout of the caller's session", ("mid-visit",), struck(Scene.end), "57014", "statement timeout", CANCELLED,
          setting="set statement_timeout = '5s'"),
    # the line to a segment
    Fault("the line to a segment is cut", MIDDLE, struck(cut), "00000", AGAIN, REPEATED, "itself"),
    Fault("the line to a segment is cut, with max_retries 0", MIDDLE, struck(cut), "08006", "broke", FAILED, options={"max_retries": 0}),
    Fault("the line to a segment stalls for a while", VISIT, struck(stall_for_a_while), "00000", "", WAITED, "itself"),
    Fault("Ctrl-C while the line to a segment stalls", VISIT, struck(both(stall, interrupt), go), "57014", "canceling", CANCELLED),
    Fault("Ctrl-C while a segment takes no cancel request", VISIT, struck(both(refuse, interrupt), go), "57014", "canceling", CANCELLED),
    Fault("a bit of a state flips on its way back", VISIT, struck(corrupt("server"), was_corrupted), "00000", AGAIN, REPEATED, "itself"),
    Fault("a bit of a state flips on its way out", ("claimed", "ready"), struck(corrupt("client"), was_corrupted),
          "ML003", "damaged", FAILED),
    Fault("a bit of the protocol flips", VISIT, struck(corrupt("server", True), was_corrupted), "00000", AGAIN, REPEATED, "itself"),
    # room
    Fault("the disk is full when a state is written", MIDDLE[:2], disk_full, "53100", "No space left", FAILED, needs=no_mount),
    Fault("a segment's process meets a memory limit", ("mid-visit", "order-received"), no_memory, "00000", AGAIN, REPEATED, "itself",
          needs=no_cgroup),
    Fault("max_connections is reached on the coordinator", (), connections_taken, "53300", "no connection left", NONE, "fit"),
    Fault("a segment has no connection left for a lost session's successor", MIDDLE,
          struck(both(limit_role(0), end_worker), limit_role(-1)), "53300", "no connection left", FAILED),
    # the source
    Fault("the source is dropped", MIDDLE, struck(both(on_coordinator("drop table {0}"), on_segment("drop table {0}"))),
          "00000", "", UNTOUCHED, "itself", own_table=True),
    Fault("the source is altered", MIDDLE,
          struck(both(on_segment("alter table {0} add column more text"), on_coordinator("alter table {0} add column more text"))),
          "00000", "", UNTOUCHED, "itself", own_table=True),
    Fault("the source's rows are rewritten, and a session is lost", MIDDLE,
          struck(both(on_segment("update {0} set kind = kind"), on_segment("vacuum full {0}"), end_worker)),
          "00000", AGAIN, REREAD, "itself", own_table=True),
    Fault("the source is truncated, and a session is lost", MIDDLE, struck(both(on_segment("truncate {0}"), end_worker), refill),
          "ML002", "have changed since the run began", FAILED, own_table=True),
    Fault("the source is dropped, and a session is lost", MIDDLE, struck(both(on_segment("drop table {0}"), end_worker), rebuild),
          "42P01", "does not exist", FAILED, own_table=True),
]  # fmt: skip

# Those of `make test`: the most telling of those that take little time.
QUICK = (
    "the ledger's session is ended by an administrator",
    "a segment's process is frozen for longer than every timeout",
    "the line to a segment stalls for a while",
    "Ctrl-C while the line to a segment stalls",
    "the disk is full when a state is written",
    "max_connections is reached on the coordinator",
    "the source is dropped",
    "the source is altered",
    "a bit of a state flips on its way out",
    "a bit of a state flips on its way back",
    "a process of a segment is killed: point mid-visit",
    "a process of the coordinator is killed: point state-returned",
)
