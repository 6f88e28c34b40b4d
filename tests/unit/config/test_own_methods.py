"""The classes in a user's row: their bases and arguments are checked before a run begins."""

from dataclasses import replace

import pytest

from clients.base import LocalClient
from fedapp.config.own_methods import check_method
from fedapp.config.resolve import parse_config
from fedapp.core.errors import UserError
from fedapp.core.keys import Key, Weight
from fedapp.methods import METHODS, ClientSpec, HeadSpec, LossSpec, Method, ServerSpec, find_method
from fedapp.methods.row import Exchange, FineTuning, HeterogeneousModels
from fedapp.models.model import build_model, shared_tensors
from strategies.fedavg import FedAvg
from strategies.fedavgm import FedAvgM

NOTHING = Exchange(sends="nothing")


class Short(FedAvg):
    def __init__(self, *args, step, **kwargs):
        super().__init__(*args, **kwargs)


class ShortMomentum(FedAvgM):
    def __init__(self, *args, step=1.0, **kwargs):
        super().__init__(*args, **kwargs)


class Closed(FedAvgM):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, beta=0.5, **kwargs)


class Bounded(LocalClient):
    def __init__(self, slot, client, data, objective, memory, extras, radius):
        super().__init__(slot, client, data, objective, memory, extras)


class Forgetful(FedAvg):
    def state(self):
        return {}


def row(client=(), server=()):
    return Method("", "", client=ClientSpec(*client), server=ServerSpec(*server))


@pytest.mark.parametrize("method", METHODS)
def test_every_row_of_the_project_passes(method):
    check_method(replace(METHODS[method], keys={}))


@pytest.mark.parametrize(
    "accepted",
    [
        row(server=(Short, {"step": "lr"})),
        row(server=(ShortMomentum, {"beta": "beta"})),
        row(server=(ShortMomentum, {"beta": "beta", "step": "lr"})),
        row(server=(Short, {}, lambda setup: {"step": 0.5})),
        row(server=(Closed,)),
        row(client=(Bounded, {"radius": "lr"})),
    ],
)
def test_arguments_may_be_those_of_the_class_and_of_the_classes_that_it_passes_them_to(accepted):
    check_method(accepted)


@pytest.mark.parametrize(
    ("refused", "message"),
    [
        (row(client=(dict,)), "the client is <class 'dict'>, but must be a subclass of LocalCl"),
        (row(client=(FedAvg,)), "FedAvg'>, but must be a subclass of LocalClient"),
        (row(server=(LocalClient,)), "the server is .*, but must be a subclass of ClientStrategy"),
        (row(server=("Short",)), "the server is 'Short', but must be a subclass"),
        (row(client=(LocalClient, {"rate": "lr"})), "'rate' of the client LocalClient, .* none of"),
        (row(client=(Bounded, {"radios": "lr"})), "'radios' of the .* Bounded, which takes radius"),
        (
            row(server=(ShortMomentum, {"stepp": "lr"})),
            "'stepp' of .* which takes step, beta, nesterov$",
        ),
        (row(server=(Short, {"lr": "lr"})), "'lr' of the server Short, which takes step$"),
        (row(server=(Short,)), "the server Short needs an argument 'step'; .* {'step': 'KEY'}"),
        (row(client=(Bounded,)), "the client Bounded needs an argument 'radius'"),
        (row(server=(Forgetful,)), r"class Forgetful has state\(\) and no load_state\(\)"),
    ],
)
def test_a_class_that_cannot_be_built_or_resumed_is_one_sentence(refused, message):
    with pytest.raises(UserError, match=message):
        check_method(refused)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"exchange": Exchange(sends="heads")}, "part of the model that is sent 'heads' .* 'head'"),
        ({"loss": LossSpec(combine="sum")}, "combination of loss and regulariser 'sum' does not"),
        ({"loss": LossSpec(weight="muu")}, "key 'muu' does not exist; did you mean 'mu'"),
        ({"head": HeadSpec(scale_key="tauu")}, "key 'tauu' does not exist; did you mean 'tau'"),
        ({"head": HeadSpec(options={"frozn": "lr"})}, "field of a head 'frozn' .* 'frozen'"),
        ({"fine_tuning": FineTuning(protocol="zz")}, "fine-tuning protocol 'zz' does not exist"),
        ({"fine_tuning": FineTuning(part="bdy")}, "fine-tuned part 'bdy' .* 'body'"),
        (
            {"heterogeneous": HeterogeneousModels(style="zz"), "exchange": NOTHING},
            "style of heads 'zz'",
        ),
        (
            {"heterogeneous": HeterogeneousModels(style_key="zz"), "exchange": NOTHING},
            "key 'zz' does not",
        ),
        ({"exchange": replace(NOTHING, keeps_if=("zz", 1.0))}, "key 'zz' does not exist"),
        (
            {"heterogeneous": HeterogeneousModels(), "exchange": Exchange(sends="body")},
            "is sent 'body'",
        ),
        ({"accuracy": "x"}, "accuracy 'x' does not exist"),
        ({"needs": "has_layers"}, "needed property of a model 'has_layers' does not exist"),
        ({"fixed": {"weights": "Size"}}, "'weights' is 'Size' but must be 'size' or 'uniform'"),
        ({"fixed": {"num-clients": "5"}}, "'num-clients' is '5' but must be an integer"),
        ({"fixed": {"momentum": 1.5}}, "'momentum' is 1.5 but must be less than"),
        ({"keys": {"own-w": Key(Weight, 1.0, "")}}, "nothing reads the key 'own-w': name it in"),
        ({"loss": LossSpec(options={"tau": "lr"})}, "'tau' of the loss 'ce', which takes none but"),
        ({"keys": {"own-w": Key(Weight, -1.0, "")}}, "default of the key 'own-w' is -1.0 but must"),
    ],
)
def test_a_word_or_key_that_does_not_exist_is_one_sentence(parts, message):
    with pytest.raises(UserError, match=message):
        check_method(Method("", "", **parts))


def test_an_unknown_part_is_never_sent():
    model = build_model("cnn", "linear", 1, 8, 10, seed=0)
    with pytest.raises(UserError, match="part of the model that is sent 'heads' does not exist"):
        shared_tensors(model, "heads")


def test_an_unknown_method_names_the_option_and_the_variable_of_a_host():
    with pytest.raises(UserError, match=r"--extension \(FEDAPP_EXTENSIONS\) and its file"):
        find_method("nope")


def test_a_weight_of_the_users_row_stands_above_that_of_the_method_with_its_rates(monkeypatch):
    own = replace(METHODS["fedntd"], defaults={"beta": 0.3, "tau": 3.0}, settings_of="fedntd")
    monkeypatch.setitem(METHODS, "mine", own)
    monkeypatch.setitem(METHODS, "plain", replace(own, defaults={}))
    keys = {"dataset": "cifar10", "model": "vgg11"}
    mine, plain = (parse_config({**keys, "method": name}) for name in ("mine", "plain"))
    assert (mine.beta, mine.tau) == (0.3, 3.0)
    published = parse_config({**keys, "method": "fedntd"})
    assert (plain.beta, plain.tau, plain.lr) == (published.beta, published.tau, published.lr)
    assert mine.lr == published.lr


def test_what_follows_from_an_own_default_follows_as_from_a_typed_value(monkeypatch):
    """The published protocol is that of the network that the row names."""
    own = replace(METHODS["fedavg"], defaults={"model": "resnet10", "pool-data": True})
    monkeypatch.setitem(METHODS, "mine", own)
    keys = {"dataset": "cifar10", "data-dir": "/x", "seed": 5}
    mine = parse_config({"method": "mine", **keys})
    typed = parse_config({"method": "fedavg", "model": "resnet10", "pool-data": True, **keys})
    assert {**mine.flat(), "method": "fedavg"} == typed.flat()
    assert (mine.local_epochs, mine.partition_seed, mine.normalisation) == (5, 1, "symmetric")
