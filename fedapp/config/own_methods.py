"""Checks of a method that a user adds: do the names in its row exist, and fit its values?

The rows of this project are checked by its tests. A user's row has none, and a wrong name in it
would end a run with a traceback, some of them in the middle of the training.
"""

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from clients.base import LocalClient
from clients.training.objective import BASE_LOSSES, REGULARISERS
from clients.training.parts import PARTS
from fedapp.config.key_groups import field_name, kebab
from fedapp.config.project import PACKAGES
from fedapp.config.run_keys import RunKeys
from fedapp.core.errors import UserError, unknown
from fedapp.core.keys import Key, must_be
from fedapp.methods.fine_tuned import PROTOCOLS
from fedapp.methods.row import (
    ACCURACIES,
    COMBINATIONS,
    HETEROGENEOUS_SENDS,
    ClientSpec,
    Method,
    ServerSpec,
    no_parts,
)
from fedapp.methods.table import METHODS, method_keys
from fedapp.models.backbones import BackboneProperty
from fedapp.models.heads import HeadKind
from fedapp.models.heterogeneous_heads import STYLES
from fedapp.models.model import SENDS
from strategies.fedavg import FedAvg
from strategies.rounds.base import ClientStrategy

_OWN_KEY = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")


def check_method(row: Method) -> None:
    """Raise UserError for the first part of a method's row that cannot work, in one sentence."""
    for what, name, known in _words(row):
        _exists(what, name, known)
    for name, key in row.keys.items():
        _check_key(name, key)
    try:
        own = method_keys()
        keys = RunKeys.defaults() | {name: key.default for name, key in own.items()}
    except ValueError as error:
        raise UserError(str(error)) from None
    for name in [*_named_keys(row), *row.defaults, *row.fixed]:
        _exists("key", kebab(name), keys)
    for name, key in row.keys.items():
        _check_value("the default of the key", name, key.default, key.kind)
    kinds = {name: key.kind for name, key in own.items()} | _kinds_of_run_keys()
    for name, value in {**row.defaults, **row.fixed}.items():
        _check_value("the value of the key", kebab(name), value, kinds[kebab(name)])
    for name in row.defaults:
        if keys[kebab(name)] != "auto":
            raise UserError(
                f"the defaults name the key '{kebab(name)}', which is never 'auto', so that they "
                "would have no effect; name it in fixed instead"
            )
    _check_loss(row)
    _check_read(row)
    _check_class("client", row.client, LocalClient)
    _check_class("server", row.server, ClientStrategy)
    _check_fitting(row)
    for part, kind in (("client", row.client.kind), ("server", row.server.kind)):
        _check_arguments(part, kind)
    _check_restored(row.server.kind)
    _check_models(row.server.kind)


def _words(row: Method) -> Iterator[tuple[str, str, Collection[str]]]:
    """Yield the words of a row that must be one of some: what it is, the word and all of them."""
    yield "loss", row.loss.base, BASE_LOSSES
    yield "regulariser", row.loss.regulariser or "none", ("none", *REGULARISERS)
    yield "combination of loss and regulariser", row.loss.combine, COMBINATIONS
    yield "method in settings_of", row.settings_of, ("", *METHODS)
    yield "accuracy", row.accuracy, ACCURACIES
    yield "needed property of a model", row.needs, get_args(BackboneProperty)
    yield "fine-tuning protocol", row.fine_tuning.protocol, PROTOCOLS
    yield "fine-tuned part", row.fine_tuning.part, ("", *PARTS)
    sent = SENDS if row.heterogeneous is None else HETEROGENEOUS_SENDS
    yield "part of the model that is sent", row.exchange.sends, sent
    if row.heterogeneous is not None:
        yield "style of heads", row.heterogeneous.style, STYLES
    for name in row.head.options:
        yield "field of a head", name, [field.name for field in fields(HeadKind)]


def _named_keys(row: Method) -> list[str]:
    """Return the keys that parts of a row name, its loss and its exchange included."""
    return row.named_keys() + [key for key in (row.loss.weight, row.exchange.keeps_if[0]) if key]


def _exists(what: str, name: str, known: Collection[str]) -> None:
    if name not in known:
        raise unknown(what, name, known)


def _check_key(name: str, key: object) -> None:
    if not isinstance(key, Key):
        raise UserError(f"the key '{name}' is {key!r}, but must be a Key(type, default, meaning)")
    if not _OWN_KEY.fullmatch(name):
        raise UserError(f"the key '{name}' must be words with hyphens, as 'half-step'")
    field = field_name(name)
    if field in RunKeys.model_fields or hasattr(BaseModel, field):
        raise UserError(f"the key '{name}' exists; choose another name")


def _kinds_of_run_keys() -> dict[str, Any]:
    """Return the types of the keys that belong to no method, with their limits."""
    fields_of_keys = RunKeys.model_fields.items()
    return {kebab(n): Annotated[f.annotation, Field(), *f.metadata] for n, f in fields_of_keys}


def _check_value(what: str, name: str, value: object, kind: Any) -> None:
    try:
        TypeAdapter(kind, config=RunKeys.model_config).validate_python(value)
    except ValidationError as error:
        raise UserError(
            f"{what} '{name}' is {value!r} but must be {must_be(error.errors()[0])}"
        ) from None


def _check_class(part: str, spec: ClientSpec | ServerSpec, base: type) -> None:
    """Raise UserError if a class has another base, or its arguments are not those of the row."""
    kind = spec.kind
    if not (isinstance(kind, type) and issubclass(kind, base)):
        raise UserError(f"the {part} is {kind!r}, but must be a subclass of {base.__name__}")
    given = _arguments(FedAvg if issubclass(kind, FedAvg) else base)  # by the app, in every run
    own = {name: needed for name, needed in _arguments(kind).items() if name not in given}
    takes = ", ".join(own) or "none of its own"
    for name in spec.options:
        if name not in own:
            raise UserError(
                f"the options name an argument '{name}' of the {part} {kind.__name__}, which takes "
                f"{takes}"
            )
    for name, needed in own.items():
        if needed and name not in spec.options and spec.parts is no_parts:
            raise UserError(
                f"the {part} {kind.__name__} needs an argument '{name}'; name its key in the "
                f"options, as {{'{name}': 'KEY'}}"
            )


def _check_loss(row: Method) -> None:
    """Raise UserError if the options of a base loss are not its arguments."""
    _, *needed = inspect.signature(BASE_LOSSES[row.loss.base]).parameters.values()
    takes = [each.name for each in needed]
    for name in row.loss.options:
        if name not in takes:
            raise UserError(
                f"the options name an argument '{name}' of the loss '{row.loss.base}', which takes "
                f"{', '.join(takes) or 'none but the step'}"
            )
    for each in needed:
        if each.default is each.empty and each.name not in row.loss.options:
            raise UserError(
                f"the loss '{row.loss.base}' needs an argument '{each.name}'; name its key: "
                f"LossSpec('{row.loss.base}', options={{'{each.name}': 'KEY'}})"
            )


def _check_read(row: Method) -> None:
    """Raise UserError if nothing in a row reads a key that it adds."""
    if row.client.parts is not no_parts or row.server.parts is not no_parts:
        return  # they may read any key
    for name in row.keys:
        if name not in _named_keys(row):
            raise UserError(
                f"nothing reads the key '{name}': name it in the options of the loss, the client "
                "or the server, as {'argument': '" + name + "'}"
            )


def _check_fitting(row: Method) -> None:
    """Raise UserError if a row has a regulariser with which its client's update is wrong."""
    kind, name = row.client.kind, row.loss.regulariser
    if name is not None and (why := kind.unfit_regularisers.get(name)):
        raise UserError(
            f"the regulariser '{name}' does not fit the client {kind.__name__}: {why}; choose "
            "another"
        )


def _check_arguments(part: str, kind: type) -> None:
    """Raise UserError if a class redefines a function of ours for other arguments."""
    for name, own in inspect.getmembers(kind, inspect.isfunction):
        *others, first = (cls for cls in kind.__mro__ if name in vars(cls))
        is_plain = inspect.isfunction(inspect.getattr_static(kind, name))
        ours = first.__module__.partition(".")[0] in PACKAGES
        if name.startswith("_") or not (others and ours and is_plain):
            continue
        known = vars(first)[name]
        if not callable(known):
            raise UserError(
                f"the {part} {kind.__name__} has a function {name}(), but {name} is a value of "
                "its base class: make it a property, or choose another name"
            )
        given = [
            each.name
            for each in inspect.signature(known).parameters.values()
            if each.kind == each.POSITIONAL_OR_KEYWORD and each.default is each.empty
        ]
        try:
            inspect.signature(own).bind(*given)
        except TypeError:
            place = f"{Path(own.__code__.co_filename).name} line {own.__code__.co_firstlineno}"
            raise UserError(
                f"the {part} {kind.__name__} has {name}{inspect.signature(own)} ({place}), but "
                f"must have {name}({', '.join(given)})"
            ) from None


def _arguments(kind: type) -> dict[str, bool]:
    """Return the names of a constructor's arguments, and whether the caller must give each.

    A constructor with **kwargs passes them on to the next class, and may add arguments to them. So
    only those of the first constructor are known to be needed.
    """
    found: dict[str, bool] = {}
    constructors = [vars(cls)["__init__"] for cls in kind.__mro__ if "__init__" in vars(cls)]
    for constructor in constructors:
        _, *parameters = inspect.signature(constructor).parameters.values()
        for each in parameters:
            if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
                needed = constructor is constructors[0] and each.default is each.empty
                found.setdefault(each.name, needed)
        if all(each.kind != each.VAR_KEYWORD for each in parameters):
            break
    return found


def _check_restored(kind: type[ClientStrategy]) -> None:
    """Raise UserError if a strategy has a state for its checkpoints and cannot load it."""
    if kind.state is not ClientStrategy.state and kind.load_state is ClientStrategy.load_state:
        raise UserError(
            f"the server's class {kind.__name__} has state() and no load_state(), which a resumed "
            "run needs"
        )


def _check_models(kind: type[ClientStrategy]) -> None:
    """Raise UserError if a strategy reads single models and has no rule, or also wants means."""
    if not (issubclass(kind, FedAvg) and kind.needs_models):
        return
    if kind.combine is FedAvg.combine:
        raise UserError(f"the server's class {kind.__name__} needs_models and has no combine()")
    if kind.averaged is not FedAvg.averaged:
        raise UserError(
            f"the server's class {kind.__name__} needs_models, and then no groups are averaged: "
            "leave out averaged()"
        )
