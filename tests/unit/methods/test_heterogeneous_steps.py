"""What clients of different architectures minimise in one batch, against independent numbers."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from heterogeneous_runs import run
from reference import HETEROGENEOUS, tensor
from torch import nn
from torch.nn import functional as F

from clients.fd import FDClient
from clients.feddor import FedDORClient
from clients.fedorgp import FedORGPClient
from clients.fedproto import FedProtoClient
from clients.training.local_training import LocalSettings
from clients.training.model_slot import ClientData, ModelSlot
from clients.training.objective import Objective, Step
from fedapp.config.resolve import parse_config
from fedapp.models.heads import Head
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

LOCAL, FD = HETEROGENEOUS["feddor_local"], HETEROGENEOUS["fd_loss"]


def loss_of(client_kind, step, table, classes=(0, 1, 2), **options) -> float:
    """Return a client's loss of a batch, which received a table of these classes."""
    model = nn.Linear(2, 3)
    slot = ModelSlot(model, {}, LocalSettings(1), lambda: model)
    nothing = dict.fromkeys(field.name for field in fields(ClientData))
    data = ClientData(**{**nothing, "class_counts": torch.tensor([1, 1, 1])})
    received = {
        "proto": np.array([table[c] for c in classes]), "proto-classes": np.array(list(classes))
    }  # fmt: skip
    extras = {"prototypes": received} if classes else {}
    client = client_kind(slot, 0, data, Objective(), None, extras, **options)
    return float(client.local_loss(step, Objective()).detach())


def feature_step() -> Step:
    """The vectors' batch with the logits of its cosine head."""
    features, rows = tensor(LOCAL["features"]), tensor(LOCAL["classifier_weight"])
    head = Head(rows, normalise=True, normalise_rows=True, scale=LOCAL["scale"], learn_scale=True)
    return Step(torch.tensor(LOCAL["labels"]), features, head.double()(features), rows)


def test_feddors_loss_is_the_vectors():
    weights = {"ce_weight": LOCAL["lambda_ce"], "weight": LOCAL["lambda_align"]}
    table, options = LOCAL["global_prototypes"], {**weights, "kind": "raw-mean"}
    found = loss_of(FedDORClient, feature_step(), table, **options)
    assert found == pytest.approx(LOCAL["L_local"], rel=1e-10)
    alone = loss_of(FedDORClient, feature_step(), table, classes=(), **options)
    assert alone == pytest.approx(LOCAL["lambda_ce"] * LOCAL["L_CE"], rel=1e-10)


@pytest.mark.parametrize(("reduction", "images"), [("mean", 1), ("sum", 4)])
def test_fedorgps_loss_is_ce_with_the_weighted_distance(reduction, images):
    found = loss_of(FedORGPClient, feature_step(), LOCAL["global_prototypes"], weight=0.7,
                    reduction=reduction)  # fmt: skip
    assert found == pytest.approx(LOCAL["L_CE"] + 0.7 * images * LOCAL["L_align"], rel=1e-10)


def test_fedprotos_loss_is_ce_with_the_weighted_square_of_the_distance():
    table, step = np.array(LOCAL["global_prototypes"]), feature_step()
    squares = (np.array(LOCAL["features"]) - table[LOCAL["labels"]]) ** 2
    found = loss_of(FedProtoClient, step, table, weight=0.3)
    assert found == pytest.approx(LOCAL["L_CE"] + 0.3 * squares.mean(), rel=1e-10)
    squares[np.array(LOCAL["labels"]) == 1] = 0.0  # a class without prototype
    some = loss_of(FedProtoClient, step, table, classes=(0, 2), weight=0.3)
    assert some == pytest.approx(LOCAL["L_CE"] + 0.3 * squares.mean(), rel=1e-10)


def test_fds_loss_is_the_vectors():
    logits = tensor(FD["logits"]).requires_grad_()
    step = Step(torch.tensor(FD["labels"]), logits, logits, logits)
    for weight in (1.0, 0.4):
        found = loss_of(FDClient, step, FD["global_logits"], weight=weight)
        assert found == pytest.approx(FD["CE"] + weight * FD["distill"], rel=1e-10)


def test_feddors_scale_stays_positive():
    process = ProcessContext(parse_config(run(method="feddor")))
    client = process.client(0)
    scale = client.model.head.scale
    with torch.no_grad():
        scale.fill_(-3.0)
    client._keep_scale_positive()
    assert float(scale) == pytest.approx(1e-3)


def test_fedghs_client_trains_from_the_received_header():
    process = ProcessContext(parse_config(run(method="fedgh")))
    plain = process.client(0)
    hidden = plain.model.head.hidden
    name = f"header-{hidden.out_features if hidden else 0}"
    header = {
        n: np.full(t.shape, 0.25, np.float32) for n, t in plain.model.head.state_dict().items()
    }
    client = process.client(0, None, {name: header})
    client.recall(keep_received=True)
    assert all(bool((t == 0.25).all()) for t in client.model.head.state_dict().values())


def test_fedgens_client_learns_from_the_generators_features_too():
    process = ProcessContext(parse_config(run(method="fedgen")))
    plain = process.client(0)
    generator = plain.build_generator().eval()
    sent = {n: t.numpy().copy() for n, t in generator.state_dict().items()}
    sent["label-distribution"] = np.full(10, 0.1, np.float32)
    client = process.client(0, None, {"generator": sent})
    client.labels, client.generator = torch.full((10,), 0.1), generator.requires_grad_(False)
    images, labels = next(iter(client.data.training(1)()))
    model = client.model.eval()

    def step():
        features, logits = model(images)
        return Step(labels, features, logits, model.get_parameter("head.weight"))

    torch.manual_seed(3)
    loss = client.gradients(step, Objective())
    found = model.head.weight.grad.clone()
    model.zero_grad()
    torch.manual_seed(3)
    drawn = torch.multinomial(torch.full((10,), 0.1), len(labels), replacement=True)
    noise = torch.rand(len(labels), client.noise)
    expected = F.cross_entropy(model(images)[1], labels)
    expected = expected + F.cross_entropy(model.head(generator(noise, drawn)), drawn)
    expected.backward()
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(found, model.head.weight.grad)


def test_fedkds_losses_take_the_mentees_features_through_its_map():
    vector = HETEROGENEOUS["fedkd_losses"]
    process = ProcessContext(parse_config(run(method="fedkd")))
    client = process.client(0)
    weight = tensor(vector["W_h_weight_out_by_in"])
    pair = nn.Module()
    pair.transform = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        pair.transform.weight.copy_(weight)
    pair.seen = tensor(vector["mentee_features"]), tensor(vector["mentee_logits"])
    client.model, client.detach = pair, False
    personal = tensor(vector["personal_features"]).float(), tensor(vector["personal_logits"])
    for per_element, kind in ((True, "mean"), (False, "batchmean")):
        client.per_element = per_element
        found = client.losses(*personal, torch.tensor(vector["labels"]))
        assert float(sum(found).detach()) == pytest.approx(vector[kind]["total"], rel=1e-6)
