"""Named points at which a superuser may stop or kill a backend, to test what a crash leaves behind.

A fault is a row of ``cerebro_internal.fault`` on the server where the point is reached; nobody but a superuser can
write that table, and a setting is never consulted (any role may SET one).

A row without a trial is for one occurrence of its point; with one, for whatever that trial does there.

Points on the coordinator, in the order in which a run comes to them: ``claimed``, ``ready``, ``order-sent``, ``state-returned``,
``committed``, ``epoch-end``, ``before-done``; and ``before-swap``, of tables that are predicted or packed.
Points on a segment: ``loading``, ``order-received``, ``mid-visit`` or ``validation``, ``trained``; and ``judging``, ``mid-table``,
``mid-pack``.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Dict, Sequence, Tuple

from cerebro_udf.interrupts import Pulse

_reached: Dict[Tuple[str, str], int] = {}


def reset(run: str) -> None:
    """Count the points of this run from the beginning again."""
    for key in [key for key in _reached if key[0] == run]:
        del _reached[key]


def reach(plpy, point: str, run: str, trials: Sequence[int] = ()) -> None:
    """Do what is armed for this run at this point, on the occurrence that was asked for, or for one of these trials.

    Actions: ``kill`` sends SIGKILL to this backend; ``wait`` stays here, interruptible, until the row is deleted,
    and says so in ``application_name``.
    """
    occurrence = _reached[run, point] = _reached.get((run, point), 0) + 1
    plan = plpy.prepare("select cerebro_internal.fault_armed($1, $2, $3, $4) as action", ["text", "text", "int4", "int4[]"])
    at = [point, run, occurrence, list(trials)]
    action = plpy.execute(plan, at)[0]["action"]
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "wait":
        before = plpy.execute("select pg_catalog.current_setting('application_name') as name")[0]["name"]
        rename = plpy.prepare("select pg_catalog.set_config('application_name', $1, false)", ["text"])
        plpy.execute(rename, ["cerebro waits at " + point])
        pulse = Pulse(plpy)
        while plpy.execute(plan, at)[0]["action"] == "wait":
            pulse.check()
            time.sleep(0.02)
        plpy.execute(rename, [before])
