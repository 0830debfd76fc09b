"""What the catalog holds of a run, read in the caller's own snapshot and under the caller's own rights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from cerebro_udf.encoders import refuse_newer
from cerebro_udf.errors import NotFound, NotReady
from cerebro_udf.wire import parsed

_TRIAL = """
select r.id as run, r.state, r.encoders is not null as ready, t.trial, t.best_seq, t.error
from %s
left join cerebro_internal.usable_trial t on t.run = r.id and (%s is null or t.trial = %s)
order by r.owner = current_user desc, r.id, t.best_seq is null, t.state = 'failed'
       , case r.rank_direction when 'max' then -t.metric else t.metric end nulls last, t.trial
limit 1
"""
# The run of that name that this role owns, or else may see; of its trials the one asked for, or the best.
_CHOSEN = _TRIAL % ("(select * from cerebro_internal.usable_run v where v.name = $1) r", "$2", "$2")
# What an alias of that name stands for; of its trials the one asked for, or the alias's.
_ALIAS = _TRIAL % (
    "(select p.run, coalesce($2, p.trial) as wanted from cerebro_internal.usable_promotion p"
    " where p.alias = $1 and p.rolled_back_at is null and p.run is not null"
    ' order by p.owner = current_user desc, p.owner, p."position" desc limit 1) a'
    " join cerebro_internal.usable_run r on r.id = a.run",
    "a.wanted", "a.wanted",
)  # fmt: skip

_RUN = """
select r.name, r.owner, r.definition, r.label, r.features, r.options, r.encoders, r.rank_metric, r.rank_direction, t.params
from cerebro_internal.usable_run r join cerebro_internal.usable_trial t on t.run = r.id
where r.id = $1 and t.trial = $2
"""

_STATE = """
select s.data from cerebro_internal.usable_state s where s.run = $1 and s.trial = $2 and s.seq = $3 order by s.chunk
"""

READS = 3  # a state may be replaced by a better one between two reads


@dataclass(frozen=True)
class Chosen:
    """A trial with a finished epoch; changes when the run is replaced, or a better epoch comes."""

    run: int
    trial: int
    seq: int


def choose(plpy, gd: dict, run: str, trial: Optional[int]) -> Chosen:
    """Find a trial of a run (or of what an alias stands for), the best by default. Cheap: called for every predicted row.

    Raises:
        NotFound: no such run or trial.
        NotReady: no epoch of it is finished.
    """
    found = plpy.execute(plan(plpy, gd, _CHOSEN, ["text", "int4"]), [run, trial])
    if not len(found):
        found = plpy.execute(plan(plpy, gd, _ALIAS, ["text", "int4"]), [run, trial])
    if not len(found):
        hint = "select run, state from cerebro.run; shows all runs."
        level = plpy.execute("select pg_catalog.current_setting('transaction_isolation') as level")[0]["level"]
        if level != "read committed":
            hint = "This transaction sees what was there when it began (%s): COMMIT first, if the run is newer." % level
        raise NotFound('run "%s" does not exist' % run, None, hint)
    row = found[0]
    if row["trial"] is None and trial is not None and row["ready"]:
        raise NotFound('run "%s" has no trial %d' % (run, trial), None, "select trial, state from cerebro.trial; shows all trials.")
    if row["best_seq"] is None and (row["state"] == "done" or row["error"] is not None):  # one that failed comes after all others
        raise NotReady(
            'no trial of run "%s" came to the end of an epoch' % run,
            "The first one failed: %s" % row["error"],
            "select trial, error from cerebro.trial where run = '%s'; then begin another run." % run.replace("'", "''"),
        )
    if row["best_seq"] is None:
        raise NotReady(
            'run "%s" has no finished epoch yet' % run, "Its state is %s." % row["state"], "Wait for its first epoch, or resume it."
        )
    return Chosen(row["run"], row["trial"], row["best_seq"])


def read(plpy, gd: dict, run: str, trial: Optional[int]) -> Tuple[Chosen, dict, List[bytes]]:
    """A run's record with its chosen trial's params, and the chunks of that trial's best state.

    Raises:
        NotFound, NotReady.
        NotSupported: a newer version has stored it.
    """
    for _ in range(READS):
        chosen = choose(plpy, gd, run, trial)
        rows = plpy.execute(plan(plpy, gd, _RUN, ["int4", "int4"]), [chosen.run, chosen.trial])
        chunks = plpy.execute(plan(plpy, gd, _STATE, ["int4", "int4", "int4"]), [chosen.run, chosen.trial, chosen.seq])
        if len(rows) and len(chunks):
            record = dict(rows[0])
            for key in ("definition", "options", "encoders", "params"):
                record[key] = parsed(record[key])
            refuse_newer(record["encoders"], record["name"])
            return chosen, record, [row["data"] for row in chunks]
    raise NotReady('run "%s" is being replaced' % run, None, "Try again.")


def plan(plpy, gd: dict, query: str, types: List[str]):
    plans: Dict[str, object] = gd.setdefault("cerebro_plans", {})
    if query not in plans:
        plans[query] = plpy.prepare(query, types)
    return plans[query]
