"""Keys of clients with their own models, each at another value than its default.

Clients are built from a configuration, so that a key which reaches another argument is found. The
expected numbers are computed image by image from the papers' formulas, in NumPy.
"""

import numpy as np
import pytest
import torch
from heterogeneous_runs import run
from in_process import work
from torch.nn import functional as F

from clients.training.objective import Step
from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

K, C = 16, 10  # features and classes
LABELS = [0, 2, 1, 5, 2]
KNOWN = [0, 2, 5]  # classes with a prototype: label 1 has none
RNG = np.random.default_rng(0)
FEATURES, LOGITS = RNG.normal(size=(5, K)), RNG.normal(size=(5, C))
ROWS = {K: RNG.normal(size=(3, K)), C: RNG.normal(size=(3, C))}  # prototypes; mean logits


def client_of(extras=None, client=0, **keys):
    return ProcessContext(parse_config(run(**keys))).client(client, None, extras)


def log_softmax(row):
    return row - np.log(np.exp(row).sum())


def soft_cross_entropy(features, logits, row):
    return -(np.exp(log_softmax(row)) * log_softmax(logits)).sum()


def cosine_distance(features, logits, row):
    return 1 - features @ row / np.linalg.norm(features) / np.linalg.norm(row)


def squared_distance(features, logits, row):
    return ((features - row) ** 2).mean()


def loss_by_hand(pull, ce_weight, weight, width=K):
    """Return ce_weight CE + weight * the mean pull, image by image."""
    total = 0.0
    for features, logits, label in zip(FEATURES, LOGITS, LABELS, strict=True):
        total -= ce_weight * log_softmax(logits)[label]
        if label in KNOWN:
            total += weight * pull(features, logits, ROWS[width][KNOWN.index(label)])
    return total / len(LABELS)


FEDDOR_KEYS = {"feddor_lambda_ce": 3.0, "feddor_lambda_align": 0.25}
ORGP_SUM = {"fedorgp_lambda": 0.7, "fedorgp_reduction": "sum"}


@pytest.mark.parametrize(
    ("method", "keys", "expected"),
    [
        ("feddor", FEDDOR_KEYS, (cosine_distance, 3.0, 0.25)),
        ("feddor-no-oi", FEDDOR_KEYS, (cosine_distance, 3.0, 0.25)),
        ("feddor-no-dor", FEDDOR_KEYS, (cosine_distance, 3.0, 0.25)),
        ("fedproto", {"fedproto_lambda": 0.3}, (squared_distance, 1.0, 0.3)),
        ("fedtgp", {"fedtgp_lambda": 0.4}, (squared_distance, 1.0, 0.4)),
        ("fedorgp", {"fedorgp_lambda": 0.7}, (cosine_distance, 1.0, 0.7)),
        ("fedorgp", ORGP_SUM, (cosine_distance, 1.0, 0.7 * len(LABELS))),
        ("fd", {"fd_lambda": 0.6}, (soft_cross_entropy, 1.0, 0.6, C)),
    ],
)
def test_the_weights_of_a_prototype_loss_are_those_of_its_keys(method, keys, expected):
    width = expected[3] if len(expected) > 3 else K
    table = {"proto": np.float32(ROWS[width]), "proto-classes": np.array(KNOWN)}
    client = client_of({"prototypes": table}, method=method, **keys)
    features, logits = (torch.tensor(a, requires_grad=True) for a in (FEATURES, LOGITS))
    step = Step(torch.tensor(LABELS), features, logits, torch.empty(0))
    found = client.local_loss(step, client.objective).detach()
    assert float(found) == pytest.approx(loss_by_hand(*expected), rel=1e-6)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


UPLOADS = {
    "raw-mean": lambda rows: rows.mean(0),
    "mean-of-normalised": lambda rows: unit(rows).mean(0),
    "normalised-mean": lambda rows: unit(rows.mean(0)),
}


@pytest.mark.parametrize("kind", UPLOADS)
def test_feddor_uploads_the_kind_of_mean_that_is_asked_for(kind):
    client = client_of(method="feddor", feddor_upload=kind, local_epochs=1)
    uploads = work(client).uploads
    batches = list(client.data.examples(1))
    with torch.no_grad():
        rows = torch.cat([client.model.eval()(images)[0] for images, _ in batches]).numpy()
    labels = torch.cat([labels for _, labels in batches]).numpy()
    assert uploads["proto-classes"].tolist() == sorted(set(labels.tolist()))
    expected = [UPLOADS[kind](rows[labels == c].astype(float)) for c in uploads["proto-classes"]]
    np.testing.assert_allclose(uploads["proto"], expected, rtol=1e-5, atol=1e-6)


def test_prototypes_collected_during_training_are_the_means_of_what_each_step_saw():
    keys = {"proto_collect": "during", "local_epochs": 2, "lr": 0.05}
    client = client_of(method="fedproto", **keys)
    seen, epoch = [], client.data.training(1)
    labels = torch.cat([labels for _ in range(2) for _, labels in epoch()]).numpy()
    client.model.register_forward_hook(
        lambda model, _, outputs: seen.append(outputs[0].detach()) if model.training else None
    )
    uploads = work(client).uploads
    rows = torch.cat(seen).numpy().astype(float)
    assert len(rows) == len(labels) == uploads["proto-counts"].sum()
    columns = (uploads[f"proto{name}"] for name in ("-classes", "", "-counts"))
    for c, row, count in zip(*columns, strict=True):
        assert count == (labels == c).sum()
        np.testing.assert_allclose(row, rows[labels == c].mean(0), rtol=1e-4, atol=1e-6)


HEADS = {
    "cosine": lambda f, rows, bias: 4.0 * unit(f) @ unit(rows).T,
    "normalised-linear": lambda f, rows, bias: 4.0 * unit(f) @ rows.T,
    "linear": lambda f, rows, bias: f @ rows.T + bias,
}


@pytest.mark.parametrize("kind", HEADS)
def test_feddors_head_is_the_chosen_one_and_starts_at_the_orthogonal_rows(kind):
    process = ProcessContext(
        parse_config(run(method="feddor", feddor_classifier=kind, feddor_scale_init=4.0))
    )
    head = process.client(0).model.head
    rows, bias = 3.0 * process.heterogeneous.rows, np.linspace(-1, 1, C)
    np.testing.assert_array_equal(head.weight.detach().numpy(), process.heterogeneous.rows)
    with torch.no_grad():
        head.weight.mul_(3.0)
        if head.bias is not None:
            head.bias.copy_(torch.from_numpy(bias))
        found = head(torch.tensor(FEATURES, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(found, HEADS[kind](FEATURES, rows, bias), rtol=1e-4, atol=1e-5)
    assert isinstance(head.scale, torch.nn.Parameter) == (kind != "linear")


def lines(**keys):
    """Return the cosines of the rows of different classes that FedDOR starts from."""
    process = ProcessContext(parse_config(run(method="feddor", **keys)))
    rows = process.heterogeneous.rows.astype(float)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)
    return (rows @ rows.T)[~np.eye(C, dtype=bool)]


def test_ten_classes_in_five_features_are_opposite_pairs_or_equiangular_lines():
    """The known optima: the cross-polytope, and ten lines whose cosines are all 1/3."""
    signed, absolute = (lines(feature_dim=5, oi_objective=o) for o in ("signed", "abs"))
    assert signed.max() < 0.01
    assert signed.min() < -0.99
    np.testing.assert_allclose(np.abs(absolute), 1 / 3, atol=0.01)


def test_ten_classes_in_enough_features_are_a_simplex_on_demand():
    np.testing.assert_allclose(lines(oi_simplex=True), -1 / 9, atol=1e-6)
    np.testing.assert_allclose(lines(), 0, atol=1e-6)


@pytest.mark.parametrize(("method", "rule"), [("feddor", "proto"), ("fedproto", "head")])
def test_the_rule_of_the_evaluation_is_that_of_the_key(method, rule):
    """FedDOR's own rule is the head; FedProto's the nearest prototype."""
    keys = {"method": method, "eval_rule": rule, "local_epochs": 5}
    process = ProcessContext(parse_config(run(**keys)))
    uploads = work(process.client(0)).uploads
    table = {name: uploads[name] for name in ("proto", "proto-classes")}
    client = process.client(0, None, {"prototypes": table})  # its model is the trained one
    rows, classes, hits = table["proto"], table["proto-classes"], {"head": [], "proto": []}
    with torch.no_grad():
        for images, labels in client.data.test():
            features, logits = (each.numpy() for each in client.model.eval()(images))
            nearest = classes[(unit(features) @ unit(rows).T).argmax(1)]
            hits["head"] += (logits.argmax(1) == labels.numpy()).tolist()
            hits["proto"] += (nearest == labels.numpy()).tolist()
    assert client.scores()["accuracy"] == pytest.approx(np.mean(hits[rule]))
    assert np.mean(hits["head"]) != np.mean(hits["proto"])


def test_features_can_be_a_linear_map_of_the_networks_own():
    client = client_of(method="fedproto", feature_map="linear")
    network, last = client.model.extractor
    images = next(iter(client.data.test()))[0]
    with torch.no_grad():
        own, found = network.eval()(images), client.model.eval()(images)[0]
    assert own.shape[1] == 512
    torch.testing.assert_close(found, F.linear(own, last.weight, last.bias))
    assert float(found.min()) < 0 <= float(own.min()), "the map has no activation"


def kl(teacher, student, reduction):
    """Return KL(softmax(teacher) || softmax(student)) over batch and classes, or over the batch."""
    total = 0.0
    for one, other in zip(teacher, student, strict=True):
        p, q = one.exp() / one.exp().sum(), other.exp() / other.exp().sum()
        total = total + (p * (p.log() - q.log())).sum()
    return total / (teacher.numel() if reduction == "mean" else len(teacher))


def fml(t, constant, keys):
    alpha, beta, reduction = (keys[f"fml_{name}"] for name in ("alpha", "beta", "kl"))
    own = alpha * F.cross_entropy(t["z"], LABELS_TENSOR)
    own = own + (1 - alpha) * kl(constant["zg"], t["z"], reduction)
    other = beta * F.cross_entropy(t["zg"], LABELS_TENSOR)
    return own, other + (1 - beta) * kl(constant["z"], t["zg"], reduction)


def fedkd(t, constant, keys):
    both = [F.cross_entropy(t[name], LABELS_TENSOR) for name in ("z", "zg")]
    total = sum(F.cross_entropy(constant[name], LABELS_TENSOR) for name in ("z", "zg"))
    near = ((t["f"] - constant["fg"] @ constant["W"].T) ** 2).mean()
    near_mentee = ((constant["f"] - t["fg"] @ t["W"].T) ** 2).mean()
    to_own, to_mentee = (
        kl(constant[teacher], t[student], keys["fedkd_kl"])
        for teacher, student in (("zg", "z"), ("z", "zg"))
    )
    return both[0] + (to_own + near) / total, both[1] + (to_mentee + near_mentee) / total


LABELS_TENSOR = torch.tensor(LABELS)
FML = {"fml_alpha": 0.3, "fml_beta": 0.9}


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize(
    ("losses", "keys"),
    [
        (fml, {**FML, "fml_kl": "batchmean"}),
        (fml, {**FML, "fml_kl": "mean"}),
        (fedkd, {"fedkd_kl": "batchmean"}),
        (fedkd, {"fedkd_kl": "mean"}),
    ],
)
def test_two_models_teach_each_other_as_the_keys_say(losses, keys, detach):
    """With `detach` all that a model learns from is a constant, also the sum of both losses."""
    name = losses.__name__
    client = client_of(method=name, **keys, **{f"{name}_detach": detach})
    draw = np.random.default_rng(3)
    shapes = {"z": (5, C), "zg": (5, C), "f": (5, K), "fg": (5, K), "W": (K, K)}
    t = {n: torch.tensor(draw.normal(size=s), requires_grad=True) for n, s in shapes.items()}
    expected = losses(t, {n: v.detach() for n, v in t.items()} if detach else t, keys)
    slopes = torch.autograd.grad(sum(expected), list(t.values()), allow_unused=True)
    pair = client.model.double()
    if pair.transform is not None:
        pair.transform.weight = torch.nn.Parameter(t["W"].detach().clone())
    pair.seen = t["fg"], t["zg"]
    found = client.losses(t["f"], t["z"], LABELS_TENSOR)
    sum(found).backward()
    if pair.transform is not None:
        t["W"].grad = pair.transform.weight.grad
    for one, other in zip(found, expected, strict=True):
        assert one.item() == pytest.approx(other.item(), rel=1e-5)
    for (tensor, value), slope in zip(t.items(), slopes, strict=True):
        assert (value.grad is None) == (slope is None), tensor
        if slope is not None:
            torch.testing.assert_close(value.grad, slope, rtol=1e-4, atol=1e-6, msg=tensor)


def fedgens_slope(alpha):
    """Return the gradient of the head's weight for fixed features, noise and drawn labels."""
    client = client_of(method="fedgen", fedgen_alpha=alpha)
    head = client.model.get_submodule("head")
    client.generator, client.labels = client.build_generator().eval(), torch.full((C,), 1 / C)
    features = torch.tensor(FEATURES, dtype=torch.float32)

    def forward():
        return Step(LABELS_TENSOR, features, head(features), head.weight)

    torch.manual_seed(4)
    client.gradients(forward, lambda step: F.cross_entropy(step.logits, step.labels))
    return head.weight.grad.clone()


def test_generated_features_have_fedgens_weight():
    plain, whole, triple = (fedgens_slope(alpha) for alpha in (0.0, 1.0, 3.0))
    assert (whole - plain).abs().max() > 1e-3
    torch.testing.assert_close(triple - plain, 3 * (whole - plain), rtol=1e-3, atol=1e-6)
