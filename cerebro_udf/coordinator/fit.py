"""What one call does, from arguments to ranked trials: fit, resume, drop_run."""

from __future__ import annotations

import json
import random
import time
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Tuple

from cerebro_udf import columns, faults, loss_forms, refusals
from cerebro_udf import encoders as encoding
from cerebro_udf.catalog import STOP_SECONDS, TRAINING, Ledger, refuse_read_only
from cerebro_udf.coordinator import (
    adapting,
    augment,
    ends,
    extend,
    packed,
    per_column,
    programs,
    remarks,
    retention,
    search,
    validation,
    weights,
)
from cerebro_udf.coordinator import options as run_options
from cerebro_udf.coordinator.load import verify
from cerebro_udf.coordinator.loop import Loop
from cerebro_udf.coordinator.progress import Progress
from cerebro_udf.coordinator.scheduler import Scheduler
from cerebro_udf.coordinator.segments import Segments
from cerebro_udf.coordinator.source import (
    Source,
    describe,
    describe_held,
    filtered,
    keys,
    refuse_other_kinds,
    settled,
)
from cerebro_udf.coordinator.start import Start, begin
from cerebro_udf.coordinator.study import Study
from cerebro_udf.coordinator.trials import Maker, shown
from cerebro_udf.engines import engine_for
from cerebro_udf.engines.base import Engine, Shard
from cerebro_udf.errors import (
    AllTrialsFailed,
    AlreadyExists,
    ClientGone,
    InUse,
    InvalidArgument,
    NoPrivilege,
    NotSupported,
    NullArgument,
    other,
)
from cerebro_udf.interrupts import Pulse

UNATTENDED_STOP_SECONDS = 10.0  # where no client waits

Row = Tuple[int, Optional[float], Optional[int], str, str, Optional[str]]


@dataclass
class Call:
    """A call of fit whose arguments make sense, by the catalog and the caller's rights."""

    run: str
    model: str
    start: Start
    table: Source
    options: run_options.Options
    seeded: bool  # whether the caller gave the seed
    unnamed: bool  # whether the features are those that a table has
    engine: Engine
    shards: List[Shard]


def check(plpy, gd: dict, run: str, source: str, model: str, label: Optional[str], features: Optional[List[str]], options: dict) -> Call:
    """Check the arguments of fit, before anything starts; a packed table knows labels and features."""
    refuse_read_only(plpy, *TRAINING)
    engine = engine_for(plpy)
    table: Optional[Source] = packed.find(plpy, gd, engine, source)
    if table is None:
        refuse_null(label, features, options)
    start = begin(plpy, gd, model, options)
    if isinstance(table, packed.Packed):
        label, features, options = packed.adopt(plpy, table, label, features, options)
    parsed = run_options.parse(options, start.definition)
    label = ends.settle(parsed, label)
    start.adopt(plpy, parsed, label)
    seeded = parsed.seed is not None
    if not seeded:
        parsed.seed = random.SystemRandom().randrange(2**31)
    author = None if start.earlier is None or features != ["*"] else start.earlier["owner"]
    features = start.features(features)
    unnamed = features == ["*"] and parsed.inputs is None
    learning = adapting.wanted(start.definition, parsed.search)
    if isinstance(table, packed.Packed) and any(wish.learns for layers in learning.values() for wish in layers.values()):
        raise NotSupported(
            "the model has a layer that learns from data, and a packed table does not tell what",
            "Layers %s learn from statistics of columns, which are read for each run." % ", ".join(sorted(set().union(*learning.values()))),
            "Name the table that it was packed from, or give the layer what it would learn.",
        )
    if table is None:
        table = described(plpy, source, features, label, parsed, seeded, author, learning)
    ends.check_sparse(parsed.inputs, parsed.encoders, start.definition)
    parsed.augment = augment.check(parsed.augment, table.feature_specs(parsed.encoders, parsed.nulls))
    if start.earlier is not None:
        refuse_other_kinds(table, start.earlier["encoders"])
    labels = table.label_specs(parsed.labels(label))
    run_options.check_named(parsed, [columns.task_of(output) for output in labels])
    ends.check_classes(labels, start.definition)
    for output in labels:
        for loss in run_options.losses(parsed, output["output"]):
            loss_forms.check(loss, columns.task_of(output), output["type"].endswith("[]"), output["name"])
    if parsed.class_weight is not None:
        for output in labels:
            if parsed.of_output(parsed.class_weight, output["output"]) is not None:
                weights.refuse_other_tasks(output)
    return Call(run, model, start, table, parsed, seeded, unnamed, engine, sharded(plpy, engine, table, parsed, author))


def refuse_null(label: Optional[str], features: Optional[List[str]], options: dict) -> None:
    """Only a packed table knows label and features itself.

    Raises:
        NullArgument: there is no label, or there are no features.
    """
    if label is None and options.get("outputs") is None:
        hint = 'Name a column; of a model of several outputs set the option "outputs".'
        raise NullArgument("argument label is null or blank", None, hint)
    if features is None:
        raise NullArgument("argument features is null", None, "List columns, or leave it out to use every column but the label.")


def described(plpy, source: str, features: Optional[List[str]], label: Optional[str], options: run_options.Options, seeded: bool,
              author: Optional[str] = None, learning: Mapping[Optional[str], Any] = {}) -> Source:  # fmt: skip
    """The table whose rows are read, checked against the options that say how.

    Args:
        author: Who wrote features, label and weight; None: the caller.
        learning: Of ``adapting.wanted``; decides about encoders that nobody has named.

    Raises:
        CerebroError: what ``source.describe`` and the checks of options raise.
    """
    criterion = validation.criterion(options.validation)
    named = ends.features(options.inputs, features)
    labels = [output["label"] for output in options.labels(label)]
    table = describe(
        plpy, source, named, labels, weight=options.sample_weight, criterion=criterion, encoders=options.encoders, author=author
    )
    table = filtered(plpy, table, options.filter)
    ends.check_features(options.inputs, table.features)
    specs = table.label_specs(options.labels(label))
    for spec in specs:
        columns.task_of(spec)
    validation.check(options.validation, table.types, specs, table.weight, seeded)
    options.encoders, options.nulls, options.validation = settled(plpy, table.types, options.encoders, options.nulls, options.validation)
    options.encoders = adapting.encoders(learning, options.encoders, options.inputs, table.features, table.types)
    per_column.check_encoders(options.encoders, table.types, table.features, specs)
    others = [*table.labels, *(name for name in (table.weight, table.criterion) if name is not None)]
    per_column.check_nulls(options.nulls, table.feature_specs(options.encoders, options.nulls), others)
    return table


def sharded(plpy, engine: Engine, table: Source, options: run_options.Options, author: Optional[str] = None,
            plan: Optional[dict] = None) -> List[Shard]:  # fmt: skip
    """The shards of a run's source, with what lies beside each of a table of rows for validation; cut as in a run's plan."""
    ready = table.shards if isinstance(table, packed.Packed) else None
    name = validation.table(options.validation)
    held = None
    if name is not None and ready is None:
        labels = table.label_specs(options.labels(table.label))
        held = describe_held(plpy, name, table, table.feature_specs(options.encoders, options.nulls), labels, author)
        options.validation = {"table": held.name}
    if plan is not None:
        return engine.shards_again(table, plan["shards"], held)
    return engine.beside(engine.shards(table, options.segments) if ready is None else list(ready), held)


def former_run(ledger: Ledger, call: Call) -> Optional[dict]:
    """The caller's run of that name, which the call goes on with or replaces; None when the name is free.

    Raises:
        AlreadyExists, InUse, InvalidArgument: the call may do neither.
    """
    former = ledger.own(call.run)
    if former is not None:
        if call.options.if_exists == "resume":
            _refuse_other_run(former, call)
        elif call.options.if_exists == "error":
            raise AlreadyExists(
                'run "%s" already exists' % call.run, None, 'Choose another name, or set options.if_exists to "replace" or "resume".'
            )
        else:
            ledger.refuse_driven(former["id"])
    return former


def fit(plpy, gd: dict, *arguments: Any) -> List[Row]:
    """Train every configuration over all shards of the source; arguments as for ``check``.

    Returns:
        One row per trial, best first: (trial, metric, best epoch, params as JSON, state, error).
    """
    call = check(plpy, gd, *arguments)
    pulse = Pulse(plpy)
    ledger = Ledger(plpy, pulse, call.engine)
    try:
        former = former_run(ledger, call)
        if former is not None and call.options.if_exists == "resume":
            limit = {} if call.options.time_limit is None else {"time_limit": call.options.time_limit}
            return _resume(plpy, gd, pulse, call.engine, ledger, call.run, limit)
        segments = Segments(plpy, gd, pulse, call.engine, call.shards)
        segments.connect()
        segments.check_policies()

        def create() -> None:
            ledger.create(
                None if former is None else former["id"], call.start.weights, name=call.run, source=call.table.name, model=call.model,
                definition=call.start.definition, label=call.table.label, features=call.table.features, options=call.options.to_json(),
            )  # fmt: skip

        return _drive(plpy, pulse, ledger, segments, call.table, call.options, call.run, create, unnamed=call.unnamed)
    finally:
        ledger.unlock()
        ledger.close()


def resume(plpy, gd: dict, run: str, options: dict) -> List[Row]:
    """Go on with a run from its committed states; a run that is done returns its trials, unless options ask for more.

    A run that its time_limit has ended goes on too, for as long again.

    Args:
        options: See ``extend.extended``; kept with the run.
    """
    refuse_read_only(plpy, *TRAINING)
    pulse = Pulse(plpy)
    engine = engine_for(plpy)
    ledger = Ledger(plpy, pulse, engine)
    try:
        return _resume(plpy, gd, pulse, engine, ledger, run, options)
    finally:
        ledger.unlock()
        ledger.close()


def changed(ledger: Ledger, record: dict, options: dict) -> Tuple[run_options.Options, run_options.Options]:
    """The options that a run has, and those that it goes on with where some are given.

    Raises:
        InvalidArgument: see ``extend.extended``.
    """
    before = run_options.Options.from_json(record["options"])
    if not options:
        return before, before
    return before, extend.extended(before, options, record["definition"], len(ledger.trials(record["id"])))


def _resume(plpy, gd: dict, pulse: Pulse, engine: Engine, ledger: Ledger, run: str, options: dict) -> List[Row]:
    record = ledger.find(run)
    before, parsed = changed(ledger, record, options)
    more = (parsed.epochs, parsed.search) != (before.epochs, before.search)
    if record["state"] == "done" and record["details"] is None and not more:
        return ranked(ledger.trials(record["id"]), record["rank_direction"])
    _refuse_other_owner(plpy, record)
    if record["encoders"] is not None:
        encoding.refuse_newer(record["encoders"], run)
    table: Optional[Source] = packed.find(plpy, gd, engine, record["source"])
    if table is None:
        criterion = validation.criterion(parsed.validation)
        labels = [output["label"] for output in parsed.labels(record["label"])]
        table = describe(
            plpy, record["source"], record["features"], labels, weight=parsed.sample_weight, criterion=criterion,
            encoders=parsed.encoders,
        )  # fmt: skip
        table = filtered(plpy, table, parsed.filter)
    elif (table.label, table.features) != (record["label"], record["features"]):
        raise packed.changed(table)
    shards = sharded(plpy, engine, table, parsed, plan=record["plan"])
    ledger.refuse_driven(record["id"])  # before any session is opened: who comes second is told at once
    segments = Segments(plpy, gd, pulse, engine, shards)
    segments.connect()
    segments.check_policies()
    began = record["encoders"] is not None

    def claim() -> None:
        ledger.claim(record["id"])
        if parsed != before:
            ledger.change(parsed.to_json())
            ledger.flush()

    return _drive(plpy, pulse, ledger, segments, table, parsed, run, claim, began)


def _refuse_other_owner(plpy, record: dict) -> None:
    """Refuse to read again what somebody else has named: whatever it leads to (a view, an expression, a policy) acts as its reader."""
    if record["owner"] != plpy.execute("select current_user::text as name")[0]["name"]:
        raise NoPrivilege(
            'run "%s" is resumed by its owner only' % record["name"],
            'Role "%s" began it; functions that its source leads to would run under your rights.' % record["owner"],
            "Connect as %s, and resume it." % plpy.quote_ident(record["owner"]),
        )


def _refuse_other_run(former: dict, call: Call) -> None:
    """A run that is resumed must be the one that the call describes."""
    table = call.table
    now = {"source": table.name, "label": table.label, "features": table.features, "model": call.start.definition, **call.options.to_json()}
    then = {key: former[key] for key in ("source", "label", "features")}
    then.update(model=former["definition"], **former["options"])
    ignored = {"if_exists", "max_retries", "memory", "retention", "segments", "time_limit"} | (set() if call.seeded else {"seed"})
    for key, value in json.loads(json.dumps(now)).items():
        if key not in ignored and value != then.get(key):
            raise InvalidArgument(
                'run "%s" exists with %s' % (former["name"], other(key)),
                "It began with %s." % json.dumps(then.get(key))[:200],
                'Call cerebro.resume(\'%s\') to go on with it as it is, or set options.if_exists to "replace".' % former["name"],
            )


def _drive(plpy, pulse: Pulse, ledger: Ledger, segments: Segments, table: Source, options: run_options.Options, run: str,
           take: Callable[[], None], began: bool = False, unnamed: bool = False) -> List[Row]:  # fmt: skip
    """Take the run, load, start, then loop to the end; whatever happens, leave segments idle and the run's state true.

    Args:
        take: Has the ledger create or claim the run.
        began: Whether the run has trained before, and so stays even if nothing of it can be read any more.
        unnamed: Whether the features are those that the table has, since the call names none.
    """
    faults.reset(run)
    stays = began or not pulse.attended  # what nobody listens to has to be told of by the run itself
    loop: Optional[Loop] = None
    rank: Optional[Tuple[str, str]] = None
    began_at = time.monotonic()
    deadline = None if options.time_limit is None else began_at + options.time_limit
    try:
        take()
        faults.reach(plpy, "claimed", run)
        record = ledger.record(ledger.run)
        progress = Progress(segments, ledger)
        segments.share_hosts(steady=options.order == "fixed")
        loader = packed.loader(segments, table, options, run, record["definition"])
        stats, encoders, weights = loader.load(), record["encoders"], ledger.weights(ledger.run)
        if encoders is None:
            encoders = loader.encoders(stats, weights)
        else:
            held = validation.table(options.validation)
            verify([shard.segment for shard in segments.shards], record["plan"]["stats"], stats, held)
            for line in remarks.other_versions(record["plan"].get("versions", {}), segments.versions()):
                plpy.warning(line, detail="It goes on from its weights, and its results may differ in their last digits.")
        segments.start()
        loader.encode(encoders)
        if loader.in_files:
            plpy.notice(
                "shards that do not fit the memory they may take: %d of %d; of each a part stays there, the rest is read from files"
                % (loader.in_files, len(stats))
            )
        rows = [(s["train_rows"], s["validation_rows"]) for s in stats]
        rank = run_options.rank(options, any(held for _, held in rows))
        window = search.in_flight(options.search, len(rows)) if record["encoders"] is None else record["plan"]["in_flight"]
        if record["encoders"] is None:
            examine(plpy, table, options, encoders, stats, unnamed)
            plan = {
                "shards": [shard.plan() for shard in segments.shards], "stats": [_figures(s) for s in stats], "in_flight": window,
                "versions": segments.versions(),
            }  # fmt: skip
            ledger.ready(plan, encoders, rank, replaces=record["replaces"] is not None)
        faults.reach(plpy, "ready", run)
        scheduler = Scheduler([a for a, _ in rows], [b for _, b in rows], options.epochs, options.order, options.seed)
        study = Study(options.search, options.seed, record["definition"], options, rank[1], window)
        maker = Maker(options, record["definition"], encoders, rank, len(rows))
        trials, history = maker.read(ledger, record)
        loop = Loop(
            plpy, pulse,
            {
                "name": run, "epochs": options.epochs, "checkpoint": options.checkpoint, "seed": options.seed, "fuse": options.fuses,
                "trials": (options.search or {}).get("trials"), "deadline": deadline, "weights": weights,
                "skipped": sum(s["skipped"] for s in stats),
            },
            segments, ledger, scheduler, study, maker, rank, rows, options.max_retries,
            lambda number: loader.again(number, stats[number], encoders), progress,
        )  # fmt: skip
        loop.go(trials, history)
        _refuse_all_failed(plpy, run, loop, stays or ledger.replaced or loop.visits.began)
        ledger.end("done", None, {"stopped": "time_limit"} if loop.out_of_time else None)
        ledger.flush()
    except BaseException as error:
        stays = stays or ledger.replaced or (loop is not None and loop.visits.began)
        sqlstate = getattr(error, "sqlstate", None)
        segments.rest()
        if not isinstance(error, InUse):
            cancelled = sqlstate == "57014" or isinstance(error, ClientGone)
            patience = STOP_SECONDS if pulse.attended else UNATTENDED_STOP_SECONDS
            state = "cancelled" if cancelled else "failed"
            ledger.close_run(state, error, stays, patience)
            tried = [] if loop is None else list(loop.trials.values())
            plpy.log(remarks.ended(run, state, time.monotonic() - began_at, tried, rank, "%s (SQLSTATE %s)" % (error, sqlstate)))
        raise
    else:  # the run is done, whatever becomes of what follows; still held, it stays itself
        plpy.log(remarks.ended(run, "done", time.monotonic() - began_at, list(loop.trials.values()), rank, None))
        retention.apply(plpy, ledger, options.retention)
    finally:
        segments.rest()
        ledger.unlock()
    return ranked([shown(trial) for trial in loop.trials.values()], rank[1])


def _refuse_all_failed(plpy, run: str, loop: Loop, stays: bool) -> None:
    """A run of which no trial is left has failed; ``stays`` says whether it is kept, with its trials.

    Raises:
        AllTrialsFailed: with the reason of the first trial.
    """
    failed = [loop.trials[number] for number in sorted(loop.trials) if loop.trials[number].status == "failed"]
    if loop.out_of_time or not failed or len(failed) < len(loop.trials):
        return
    hint = "Correct the model, the options or the data, and call fit again."
    if stays:
        shown = "select trial, params, error from cerebro.trial where run = %s; shows each." % plpy.quote_literal(run)
        hint = 'Correct the model, the options or the data, and begin anew with the option {"if_exists": "replace"}; ' + shown
    raise AllTrialsFailed(
        'every trial of run "%s" has failed, %s: %s' % (run, "the first" if len(failed) > 1 else "its only one", failed[0].error),
        "%s had params %s." % ("Trial %d of %d" % (failed[0].number, len(failed)), json.dumps(failed[0].params)),
        hint,
    )


def examine(plpy, table: Source, options: run_options.Options, encoders: dict, stats: List[dict], unnamed: bool) -> None:
    """Before anything is trained, say of the rows that have been read what may not be meant, and refuse what their labels do not allow.

    Raises:
        InvalidArgument: of a metric.
    """
    if not isinstance(table, packed.Packed):
        remark(plpy, table, options, encoders, stats, unnamed)
    for label in encoders["labels"]:
        untrained = refusals.untrained_classes(label)
        if untrained is not None:
            plpy.notice(untrained)
    programs.check_metrics(options.reported, encoders)


def remark(plpy, table: Source, options: run_options.Options, encoders: dict, stats: List[dict], unnamed: bool) -> None:
    """Say what may not be meant of the rows that have been read, and of the features that nobody has named."""
    unique = keys(plpy, table)
    if unnamed:
        plpy.notice(remarks.taken(table.features, table.answers))
        for line in remarks.telling_rows_apart(table.features, encoders, stats, unique):
            plpy.notice(line)
    groups = [name for name in unique if table.types[name] in columns.TYPES and name not in (*table.labels, table.weight)]
    held = remarks.held_out(options.validation, encoders, stats, next(iter(groups), None))
    if held is not None:
        plpy.notice(held)


def _figures(stats: dict) -> dict:
    named = ("rows", "train_rows", "validation_rows", "skipped", "checksum", "source_checksum", "bytes")
    return {key: stats[key] for key in named if key in stats}


def ranked(trials: List[dict], direction: str) -> List[Row]:
    """Rows for the caller, best first; trials without a metric (failed, or NaN throughout) come last, in order of number."""
    sign = 1 if direction == "min" else -1
    ordered = sorted(
        trials, key=lambda t: (t["state"] == "failed", t["metric"] is None, sign * (t["metric"] or 0.0), t["trial"])
    )
    return [(t["trial"], t["metric"], t["best_epoch"], json.dumps(t["params"]), t["state"], t["error"]) for t in ordered]


def drop_run(plpy, run: str) -> None:
    """Remove a run with its history, ledger and states.

    Raises:
        NotFound; InUse while a session drives it.
    """
    refuse_read_only(plpy, *TRAINING)
    pulse = Pulse(plpy)
    ledger = Ledger(plpy, pulse, engine_for(plpy))
    try:
        record = ledger.find(run)
        ledger.refuse_others(record)
        ledger.drop(record["id"])
    finally:
        ledger.close()
