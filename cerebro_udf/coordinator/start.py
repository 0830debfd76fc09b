"""Where the trials of a run begin: anew, from the weights of an imported model, or from those of an earlier run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import List, Optional

from cerebro_udf import definition as definitions
from cerebro_udf import encoders as encoding
from cerebro_udf import placeholders, stored
from cerebro_udf.coordinator import search
from cerebro_udf.coordinator.options import Options, parse_init_from
from cerebro_udf.coordinator.source import settled
from cerebro_udf.errors import InvalidArgument, NotFound, other
from cerebro_udf.segment import state
from cerebro_udf.wire import parsed, parts

_MODEL = """
select m.id, m.definition from cerebro_internal.usable_model m where m.name = $1 order by m.owner = current_user desc, m.id limit 1
"""
_WEIGHTS = "select w.data from cerebro_internal.usable_model_weights w where w.model = $1 order by w.chunk"


@dataclass
class Start:
    """What the trials of a run begin from.

    Attributes:
        definition: The model; what an earlier run fixes is filled in.
        weights: Chunks of a blob for ``segment.weights.assign``; none where trials begin anew.
        earlier: The record of the earlier run, None where there is none.
        trial: The number of its trial.
    """

    definition: dict
    weights: List[bytes] = field(default_factory=list)
    earlier: Optional[dict] = None
    trial: Optional[int] = None

    def features(self, given: List[str]) -> List[str]:
        """The features of a call: those of the earlier run, whose weights mean nothing else.

        Raises:
            InvalidArgument: the call lists others.
        """
        if self.earlier is None or given == ["*"]:
            return given if self.earlier is None else self.earlier["features"]
        if given != self.earlier["features"]:
            raise InvalidArgument(
                'run "%s" was trained on other features' % self.earlier["name"],
                "Its features are %s, in this order." % ", ".join('"%s"' % name for name in self.earlier["features"]),
                "List these, or leave features out; or leave option init_from out.",
            )
        return given

    def adopt(self, plpy, options: Options, label: Optional[str]) -> None:
        """Let an earlier run decide about the options that say how rows are encoded, and name it in ``init_from``.

        Raises:
            InvalidArgument: the call wants something else.
        """
        if self.earlier is None:
            return
        options.init_from = {"run": self.earlier["name"], "trial": self.trial}
        encoders, inputs = self.earlier["options"]["encoders"], self.earlier["options"]["inputs"]
        types = {feature["name"]: feature["type"] for feature in self.earlier["encoders"]["features"]}
        asked, nulls, _ = settled(plpy, types, options.encoders, options.nulls)
        earlier = [{"name": one["output"], "label": one["name"], "task": one["task"]} for one in self.earlier["encoders"]["labels"]]
        task, outputs = (earlier[0]["task"], None) if len(earlier) == 1 else (None, earlier)
        if options.outputs is not None and outputs is not None:
            tasks = {one["name"]: one["task"] for one in outputs}
            options.outputs = [{**one, "task": one["task"] or tasks.get(one["name"])} for one in options.outputs]
        for key, given, kept in (
            ("encoders", {**encoders, **asked}, encoders),
            ("inputs", options.inputs or inputs, inputs),
            ("task", options.task or task, task),
            ("outputs", options.outputs or outputs, outputs),
            ("label", label, self.earlier["label"]),
        ):
            if given != kept:
                raise InvalidArgument(
                    'run "%s" was trained with %s' % (self.earlier["name"], other(key)),
                    "It was %s; rows are encoded as they were for that run." % json.dumps(kept),
                    "Leave it as it was, or leave option init_from out.",
                )
        options.encoders, options.inputs, options.task, options.outputs = encoders, inputs, task, outputs
        kept = self.earlier["options"].get("nulls", "error")
        if isinstance(kept, dict) or isinstance(nulls, dict):
            if nulls not in ("error", kept):
                raise InvalidArgument(
                    'run "%s" was trained with other nulls' % self.earlier["name"],
                    "They were %s; rows are encoded as they were for that run." % json.dumps(kept),
                    "Leave the option nulls out, or leave option init_from out.",
                )
            options.nulls = kept


def begin(plpy, gd: dict, model: str, options: Optional[dict]) -> Start:
    """Find the model, and what its trials begin from.

    Raises:
        NotFound, NotReady: no such model, or earlier run; or that one has no finished epoch.
        InvalidArgument: the earlier run's model has other weights than this one.
    """
    given = parse_init_from(options)
    registered = registered_model(plpy, model, with_weights=given is None)
    if given is None:
        return registered
    chosen, record, chunks = stored.read(plpy, gd, given["run"], given["trial"])
    return Start(_matching(model, registered.definition, record, options), _weights(record, chunks), record, chosen.trial)


def registered_model(plpy, name: str, with_weights: bool = True) -> Start:
    """A registered model, with the weights that it was imported with.

    Raises:
        NotFound.
    """
    found = plpy.execute(plpy.prepare(_MODEL, ["text"]), [name])
    if not len(found):
        raise NotFound('model "%s" does not exist' % name, None, "select model from cerebro.model; shows all models.")
    rows = plpy.execute(plpy.prepare(_WEIGHTS, ["int4"]), [found[0]["id"]]) if with_weights else []
    return Start(parsed(found[0]["definition"]), [row["data"] for row in rows])


def _weights(record: dict, state_chunks: List[bytes]) -> List[bytes]:
    model = state.learnt(b"".join(state_chunks))
    return parts(state.pack(model, {"encoders": json.dumps(record["encoders"])}))


def _matching(model: str, definition: dict, record: dict, options: Optional[dict]) -> dict:
    """The definition, its placeholders filled with the earlier trial's values where this call searches for none."""
    given = (options or {}).get("search")
    space = given.get("space") if isinstance(given, dict) else None
    searched = set(space) if isinstance(space, dict) else set()
    values = encoding.from_data(record["encoders"])
    values.update(search.resolve(Options.from_json(record["options"]), record["params"])["model_values"])
    before = definitions.bind(record["definition"], values)
    then = definitions.matched(definition, before)
    filled = definitions.fill(definition, {name: value for name, value in then.items() if name not in searched | placeholders.FROM_DATA})
    now = definitions.shaping(definitions.fill(filled, {name: value for name, value in values.items() if name in placeholders.FROM_DATA}))
    varied = sorted(definitions.placeholders(now) & searched)
    if varied:
        raise InvalidArgument(
            'the search varies "%s", which shapes the weights that trials begin from' % varied[0],
            'The trial of run "%s" has %s.' % (record["name"], json.dumps(then.get(varied[0]))),
            "Leave the axis out: the placeholder keeps that value.",
        )
    other = definitions.difference(definitions.shaping(placeholders.literal(before)), now)
    if other is not None:
        raise InvalidArgument(
            'model "%s" has other weights than that of run "%s"' % (model, record["name"]),
            "They differ at %s." % other,
            "Name the model that the run was trained with, or leave option init_from out.",
        )
    return filled
