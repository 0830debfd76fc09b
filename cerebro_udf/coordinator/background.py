"""Runs that nobody waits for: begun in a session of their own on the coordinator, waited for, cancelled.

The session is opened like every link, through ``cerebro_self`` as the caller. Once it drives the run its socket is
closed: a server notices that only when it next reads a command or sends something, which is when the run is over.
"""

from __future__ import annotations

import time
from typing import Any, Callable, List, Optional

from cerebro_udf.catalog import TRAINING, Ledger, raise_remote, refuse_read_only
from cerebro_udf.coordinator import fit as runs
from cerebro_udf.coordinator.links import Link, RemoteError, ask, configure, pump, stop
from cerebro_udf.engines import engine_for
from cerebro_udf.engines.base import SELF, Engine
from cerebro_udf.errors import CerebroError, ClientGone, InUse, NotFound, NotReady, RunNotDone
from cerebro_udf.interrupts import Pulse, go_unattended, has_procedures

POLL_SECONDS = 0.2
BEGIN_POLL_SECONDS = 0.02
STOP_SECONDS = 0.35  # to stop a session that has not begun its run
CANCEL_AGAIN_SECONDS = 2.0  # a cancel that came between two statements of a driver is lost
CANCEL_LONGEST_SECONDS = 30.0

# What would end a session to which nobody listens, and what would have it talk: a second NOTICE to a lost client is FATAL.
SETTINGS = {
    "client_min_messages": "error", "client_connection_check_interval": "0", "statement_timeout": "0", "transaction_timeout": "0",
    "idle_session_timeout": "0", "idle_in_transaction_session_timeout": "0", "default_transaction_read_only": "off",
    "default_transaction_isolation": "read committed",
}  # fmt: skip
# How the caller's session reads the dates and times that its options hold.
_READING = """
select s.name, s.setting from pg_catalog.pg_settings s where s.name in ('DateStyle', 'IntervalStyle', 'TimeZone', 'timezone_abbreviations')
"""


def submit(plpy, gd: dict, run: str, source: str, model: str, label: Optional[str], features: Optional[List[str]], options: dict) -> str:
    """Begin a run in a session of its own; arguments as for fit, and checked as there before anything starts.

    Returns:
        The run's name, once that session drives it.

    Raises:
        CerebroError: as fit; also what that session met before it had the run.
    """
    call = runs.check(plpy, gd, run, source, model, label, features, options)
    pulse = Pulse(plpy)
    ledger = Ledger(plpy, pulse, call.engine)
    try:
        runs.former_run(ledger, call)
        if not ledger.sees_model(model):
            raise NotReady(
                'model "%s" was created in the open transaction' % model,
                "The run is driven by a session of its own, which does not see it yet.",
                "COMMIT first, or call cerebro.fit.",
            )
        _detach(
            plpy, pulse, call.engine, ledger, run, "cerebro_internal.detached_fit($1, $2, $3, $4, $5, $6)",
            run, call.table.name, model, None if options.get("outputs") else call.table.label, call.table.features,
            {**options, "init_from": call.options.init_from},
        )  # fmt: skip
    finally:
        ledger.close()
    return run


def submit_again(plpy, run: str, options: dict) -> str:
    """Go on with a run in a session of its own, as resume does; one that is done stays so, but for options that ask for more."""
    refuse_read_only(plpy, *TRAINING)
    pulse, engine = Pulse(plpy), engine_for(plpy)
    ledger = Ledger(plpy, pulse, engine)
    try:
        runs.changed(ledger, ledger.find(run), options)
        _detach(plpy, pulse, engine, ledger, run, "cerebro_internal.detached_resume($1, $2)", run, options)
    finally:
        ledger.close()
    return run


def _detach(plpy, pulse: Pulse, engine: Engine, ledger: Ledger, run: str, command: str, *values: Any) -> None:
    """Have a new session run a command, and leave it once it drives a run (or has ended)."""
    link = Link(engine.address(SELF), "cerebro run " + run)
    link.open(pulse)
    try:
        configure(link, pulse, {**SETTINGS, **{row["name"]: row["setting"] for row in plpy.execute(_READING)}})
        pid = int(ask(link, pulse, "select pg_catalog.pg_backend_pid()::text")[0][0])
        link.post(("call " if has_procedures(plpy) else "select ") + command, *values)
        while not ledger.drives(pid):
            for reply in pump([link], pulse, BEGIN_POLL_SECONDS):
                if reply.error:
                    ledger.drop_begun(pid)  # whoever is told of the error needs no run that tells it again
                    raise_remote(reply.error)
                return
    except RemoteError as error:
        raise_remote(error)
    except BaseException as error:
        if isinstance(error, ClientGone) or not isinstance(error, CerebroError):  # cancelled: so is what it began
            stop([link], STOP_SECONDS)
        raise
    finally:
        link.close()


def detached(plpy, gd: dict, call: Callable, *arguments: Any) -> None:
    """What the session of ``submit`` does: ``fit.fit`` or ``fit.resume``."""
    hang_up = go_unattended(plpy)
    try:
        call(plpy, gd, *arguments)
    finally:
        hang_up()


def wait(plpy, run: str, seconds: Optional[float]) -> List[runs.Row]:
    """Wait until a run is done; gives its trials, best first, as fit does. A run that is being replaced: the one to come.

    Args:
        run: Its name.
        seconds: The longest to wait; None for as long as it takes.

    Raises:
        CerebroError: what the run failed with.
        RunNotDone: it was cancelled, nobody drives it, or the time is up.
    """
    pulse = Pulse(plpy)
    ledger = Ledger(plpy, pulse, engine_for(plpy))
    end = None if seconds is None else time.monotonic() + seconds
    try:
        number = ledger.latest(run)["id"]
        while True:
            state = ledger.standing(number)
            if state not in ("loading", "running"):
                break
            if end is not None and time.monotonic() >= end:
                raise RunNotDone(
                    'run "%s" is not done yet' % run,
                    "It is %s; %g s have passed." % (state, seconds),
                    "Wait longer, or look at cerebro.progress.",
                )
            pulse.pause(POLL_SECONDS if end is None else min(POLL_SECONDS, max(0.0, end - time.monotonic())))
        trials = ledger.trials(number) if state == "done" else []
        record = ledger.record(number)  # after the trials: it goes with them
        if record is None:
            raise NotFound('run "%s" does not exist any more' % run, "It was dropped meanwhile.", "Call cerebro.fit or cerebro.submit.")
        if state == "done":
            return runs.ranked(trials, record["rank_direction"])
        _raise_end(plpy, record, state)
    finally:
        ledger.close()


def _raise_end(plpy, record: dict, state: str) -> None:
    go_on = "select * from cerebro.resume(%s); goes on with it." % plpy.quote_literal(record["name"])
    if state == "failed":
        told = record["details"] or {}
        error = CerebroError('run "%s" failed: %s' % (record["name"], record["error"]), told.get("detail"), told.get("hint") or go_on)
        error.sqlstate = told.get("sqlstate") or error.sqlstate
        raise error
    if state == "cancelled":
        raise RunNotDone('run "%s" was cancelled' % record["name"], record["error"], go_on)
    raise RunNotDone('run "%s" was interrupted' % record["name"], "The session that drove it is gone.", go_on)


def cancel(plpy, run: str) -> bool:
    """Stop a run, whoever drives it, and wait until it stands as cancelled (or is gone, where it had not begun to train).

    Returns:
        Whether it was stopped; false when nobody drives it.

    Raises:
        CerebroError: the caller may not stop that session (42501).
        InUse: it does not stop.
    """
    pulse = Pulse(plpy)
    ledger = Ledger(plpy, pulse, engine_for(plpy))
    try:
        record = ledger.latest(run)
        ledger.refuse_others(record)
        number = record["id"]
        state = ledger.standing(number)
        if state not in ("loading", "running"):
            plpy.notice('nothing to cancel: run "%s" is %s' % (run, state))
            return False
        told, end = 0.0, time.monotonic() + CANCEL_LONGEST_SECONDS
        while state in ("loading", "running"):
            now = time.monotonic()
            if now >= end:
                raise InUse(
                    'run "%s" does not stop' % run,
                    "Its driver was told to %d s ago." % CANCEL_LONGEST_SECONDS,
                    "select pg_terminate_backend(pid) from cerebro.run where run = %s;" % plpy.quote_literal(run),
                )
            if now - told >= CANCEL_AGAIN_SECONDS:
                told = now
                ledger.cancel_driver(number)
            pulse.pause(BEGIN_POLL_SECONDS)
            state = ledger.standing(number)
        if state == "done":
            plpy.notice('run "%s" was done before it could be cancelled' % run)
        return state != "done"
    finally:
        ledger.close()
