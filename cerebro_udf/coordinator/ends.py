"""Which features go to which input of a model, and which label to which output: the options ``inputs`` and ``outputs``, read, and
held against the model and the columns. Pure."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Sequence

from cerebro_udf import columns, compilation
from cerebro_udf import definition as definitions
from cerebro_udf.coordinator.space import whole, wrong_option
from cerebro_udf.errors import InvalidArgument, NotSupported, nearest
from cerebro_udf.keras_objects import show
from cerebro_udf.placeholders import names_in

_FORM = '{"wide": ["a", "b"], "series": {"columns": ["jan", "feb"], "stack": -1}}, by the names of the model\'s Input layers'


_OUTPUTS = '{"kind": "species", "size": {"label": "ln(weight)", "task": "regression"}}, by the names of the model\'s outputs'


def read_inputs(option: str, value: Any) -> List[dict]:
    """Return the option ``inputs`` as a list of ``{"name", "features", "stack" (0, -1 or None)}``.

    Raises:
        InvalidArgument.
    """
    if not isinstance(value, dict) or not value:
        raise wrong_option(option, value, _FORM)
    return [_input("%s.%s" % (option, name), name, given) for name, given in value.items()]


def _input(place: str, name: str, given: Any) -> dict:
    settings = {"columns": given} if isinstance(given, list) else given
    if not isinstance(settings, dict):
        raise wrong_option(place, given, _FORM)
    for key in settings:
        if key not in ("columns", "stack"):
            hint = nearest(key, ("columns", "stack"))
            raise InvalidArgument('unknown key "%s" in option "%s"' % (key, place), "The value is %s." % show(given), hint)
    columns, stack = settings.get("columns"), settings.get("stack")
    if not isinstance(columns, list) or not columns or not all(isinstance(column, str) and column.strip() for column in columns):
        raise wrong_option(place, given, 'a list of features such as ["a", "b"]')
    if len(set(columns)) < len(columns):
        raise InvalidArgument('option "%s" names a feature twice' % place, "The value is %s." % show(given), "List each feature once.")
    if stack is not None and (isinstance(stack, bool) or whole(stack) not in (0, -1)):
        raise wrong_option(place + ".stack", stack, "0 (columns become the first axis of a row) or -1 (the last one)")
    return {"name": name, "features": columns, "stack": None if stack is None else whole(stack)}


def check(inputs: Optional[List[dict]], definition: dict) -> None:
    """Hold the option ``inputs`` against a model.

    Args:
        inputs: What :func:`read_inputs` returned, or None.
        definition: Of the model, as ``definition.check`` returned it.

    Raises:
        InvalidArgument: the option names what is no input, or does not name all.
    """
    begins = definitions.inputs(definition)
    known = [name for name in begins if name is not None]
    if inputs is None:
        if len(begins) > 1:
            raise InvalidArgument(
                "the model has several inputs, and nothing says which features go where",
                "Its inputs are %s." % _listed(known),
                'Set the option "inputs", such as {%s}.' % ", ".join('"%s": ["column", …]' % name for name in known),
            )
        return
    if not known and len(inputs) == 1:  # an input without a name takes any
        return
    named = [given["name"] for given in inputs]
    for name in named:
        if name not in known:
            hint = nearest(name, known) if known else "The model has one input: name one."
            raise InvalidArgument('option "inputs" names "%s", which is no input of the model' % name, None, hint)
    missing = [name for name in known if name not in named]
    if missing:
        raise InvalidArgument(
            'option "inputs" leaves out "%s"' % missing[0], "The model's inputs are %s." % _listed(known), "Say which features go there."
        )


def read_outputs(option: str, value: Any) -> List[dict]:
    """Return the option ``outputs`` as a list of ``{"name", "label", "task" (or None)}``, in the order of the names.

    Raises:
        InvalidArgument.
    """
    if not isinstance(value, dict) or not value:
        raise wrong_option(option, value, _OUTPUTS)
    return [_output("%s.%s" % (option, name), name, value[name]) for name in sorted(value)]


def _output(place: str, name: str, given: Any) -> dict:
    settings = {"label": given} if isinstance(given, str) else given
    if not isinstance(settings, dict):
        raise wrong_option(place, given, _OUTPUTS)
    for key in settings:
        if key not in ("label", "task"):
            raise InvalidArgument(
                'unknown key "%s" in option "%s"' % (key, place), "The value is %s." % show(given), nearest(key, ("label", "task"))
            )
    label, task = settings.get("label"), settings.get("task")
    if not isinstance(label, str) or not label.strip():
        raise wrong_option(place + ".label", label, "the name of a column, or an SQL expression over a row")
    if task is not None and task not in columns.TASKS:
        raise wrong_option(place + ".task", task, "one of %s" % ", ".join(map(show, columns.TASKS)))
    return {"name": name, "label": label, "task": task}


def check_outputs(outputs: Optional[List[dict]], names: List[Optional[str]]) -> None:
    """Hold the option ``outputs`` against a model.

    Args:
        outputs: What :func:`read_outputs` returned, or None.
        names: What ``definition.outputs`` says.

    Raises:
        InvalidArgument: the option names what is no output, or does not name all.
    """
    known = [name for name in names if name is not None]
    if outputs is None:
        if known:
            raise InvalidArgument(
                "the model has several outputs, and nothing says which labels they are for",
                "Its outputs are %s." % _listed(known),
                'Set the option "outputs", such as {%s}, and leave label out.' % ", ".join('"%s": "column"' % name for name in known),
            )
        return
    given = [output["name"] for output in outputs]
    if not known:
        if len(given) > 1:
            raise InvalidArgument("the model has one output, option outputs names several", "They are %s." % _listed(given), "Name one.")
        return
    _check_names("outputs", given, known)
    for name in known:
        if name not in given:
            hint = "Say what its label is."
            raise InvalidArgument('option "outputs" leaves out "%s"' % name, "The model's outputs are %s." % _listed(known), hint)


def settle(options: Any, label: Optional[str]) -> Optional[str]:
    """Return the label of a call, None where there are several; a single one that the option ``outputs`` names becomes label and task.

    Args:
        options: Those of the call; changed.
        label: The argument of that name.

    Raises:
        InvalidArgument: the call says the same in two ways.
    """
    if options.outputs is None:
        return label
    for what, given in (("argument label", label), ("option task", options.task)):
        if given is not None:
            hint = 'Leave it out; "outputs" takes {"label": …, "task": …} too.'
            raise InvalidArgument("%s and option outputs exclude each other" % what, 'It is "%s".' % given, hint)
    if options.several:
        return None
    (output,) = options.outputs
    options.outputs, options.task = None, output["task"]
    return output["label"]


def _check_names(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    for name in given:
        if name not in known:
            message = 'option "%s" names "%s", which is no output of the model' % (option, name)
            raise InvalidArgument(message, "Its outputs are %s." % _listed(list(known)), nearest(name, known))


def chosen(run: str, names: Sequence[Optional[str]], output: Optional[str], leave_out: str, name_one: str) -> int:
    """The number of the output of a run that is named, which needs to be said where there are several.

    Args:
        run: Its name.
        names: Of its outputs.
        output: The name that was given.
        leave_out, name_one: Hints; ``%s`` in the second stands for a name.

    Raises:
        InvalidArgument.
    """
    if names == [None]:
        if output is not None:
            raise InvalidArgument('run "%s" has one output' % run, None, leave_out)
        return 0
    if output is None:
        message = 'run "%s" has several outputs, and nothing says which one is meant' % run
        raise InvalidArgument(message, "They are %s." % _listed(names), name_one % names[0])
    if output not in names:
        raise InvalidArgument('run "%s" has no output "%s"' % (run, output), "It has %s." % _listed(names), nearest(output, names))
    return names.index(output)


def by_output(names: Sequence[str], read: Callable[[str, Any], Any]) -> Callable[[str, Any], Dict[str, Any]]:
    """Return what reads an option that goes by the names of several outputs.

    Args:
        names: Of the outputs.
        read: Reads what the option says of one.
    """

    def read_each(option: str, value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_option(option, value, "an object by the names of the model's outputs, which are %s" % _listed(list(names)))
        _check_names(option, list(value), names)
        return {name: read("%s.%s" % (option, name), given) for name, given in value.items() if given is not None}

    return read_each


def read_loss(options: Any, value: Any) -> dict:
    """Return a loss in Keras' full form, or by the names of outputs where there are several."""
    if not options.several:
        return compilation.check_loss(value)
    return by_output([output["name"] for output in options.outputs], lambda _, loss: compilation.check_loss(loss))("loss", value)


def features(inputs: Optional[List[dict]], given: List[str]) -> List[str]:
    """Return the features of a call: those that ``inputs`` lists, where the call lists none itself."""
    if inputs is None or given != ["*"]:
        return given
    return list(dict.fromkeys(name for one in inputs for name in one["features"]))


def check_features(inputs: Optional[List[dict]], features: List[str]) -> None:
    """Hold the option ``inputs`` against the features.

    Raises:
        InvalidArgument: it names what is no feature, or leaves one out.
    """
    if inputs is None:
        return
    listed = {name for given in inputs for name in given["features"]}
    for given in inputs:
        for name in given["features"]:
            if name not in features:
                message = 'option "inputs.%s" names "%s", which is not a feature' % (given["name"], name)
                raise InvalidArgument(message, None, nearest(name, features))
    for name in features:
        if name not in listed:
            hint = "List it in an input, or take it off the features."
            raise InvalidArgument('feature "%s" goes to no input of the model' % name, 'It is not in the option "inputs".', hint)


def check_sparse(inputs: Optional[List[dict]], encoders: Dict[str, Any], definition: dict) -> None:
    """Hold sparse features against a model: the layers that take one must be such as multiply sparse rows.

    Raises:
        NotSupported.
    """
    for column, encoder in encoders.items():
        if columns.encoder_name(encoder) != "sparse":
            continue
        for name in [given["name"] for given in inputs or [{"name": None, "features": [column]}] if column in given["features"]]:
            others = [found for found in definitions.first_layers(definition, name) if found != "Dense"]
            if others:
                raise NotSupported(
                    'column "%s" of sparse rows does not go into %s' % (column, "a layer of this kind" if others[0] is None else others[0]),
                    "Rows stay sparse up to the first layer, which multiplies what there is of them.",
                    "Let a Dense layer take them; other features may have an input of their own.",
                )


def check_classes(labels: Sequence[dict], definition: dict) -> None:
    """See that ``$classes`` of a model stands for one number: a single output has classes.

    Args:
        labels: Specifications of the labels, see ``Source.label_specs``.
        definition: Of the model.

    Raises:
        InvalidArgument.
    """
    if "classes" not in names_in(definition):
        return
    tasks = [columns.task_of(label) for label in labels]
    told = ['"%s"' % (label["output"] or label["name"]) for label, task in zip(labels, tasks) if task != columns.REGRESSION]
    if not told:
        raise InvalidArgument(
            'placeholder "$classes" has no value',
            ("Label %s is a quantity." if len(labels) == 1 else "Labels %s are quantities.") % _listed([label["name"] for label in labels]),
            'Write the number of units, 1 for a single quantity; or set the option "task" if the label holds classes.',
        )
    if len(told) > 1:
        raise InvalidArgument(
            'placeholder "$classes" may stand for the classes of several outputs',
            "Outputs %s have classes." % ", ".join(told),
            'Write the number of units of each, or placeholders of your own: {"search": {"space": {"kinds": [3], "colours": [5]}}}.',
        )


def _listed(names: Sequence[Optional[str]]) -> str:
    return ", ".join('"%s"' % name for name in names)
