"""The figures of a client's model on a few images, computed by hand.

The client has classes 0 and 2 of four. Every figure differs between its classes and the others,
between the local and the received model, and between means over images and over classes.
"""

import math

import numpy as np
import pytest
import torch
from in_process import settings

from clients.training.arrays import to_arrays
from fedapp.analysis.measures.base import Measure
from fedapp.analysis.measures.table import MEASURES
from fedapp.analysis.measures.views import Local, View
from fedapp.analysis.rounds import RoundModels, Start, measure_round
from fedapp.config.resolve import parse_config
from fedapp.runtime.process.context import ProcessContext

pytestmark = pytest.mark.usefixtures("few_images")

LABELS = np.array([0, 0, 1, 2, 1, 3])
COUNTS = np.array([4, 0, 1, 0])  # of the client
COHORT = np.array([1, 1, 2, 4])
ROOT = math.sqrt(2)


def view(features, predicted, head, **arrays):
    """Return a view of a model that predicts these classes."""
    named = {name: np.array(value, np.float32) for name, value in arrays.items()}
    rows = np.array(features, np.float32)
    return View(rows, np.eye(4)[predicted], LABELS, np.array(head, np.float32), named, False)


OWN = view(
    [[3, 4], [0, 2], [1, 0], [6, 8], [1, 1], [0, -5]], [0, 3, 1, 2, 0, 0],
    [[3, 4], [5, 12], [0, 2], [4, -3]], a=[2, 0], b=[[3]],
)  # fmt: skip
RECEIVED = view(
    [[3, 0], [2, 0], [-4, 0], [3, 4], [0, 1], [0, -1]], [0, 1, 1, 0, 1, 3],
    [[1, 0], [3, 4], [-1, 0], [0, 2]], a=[1, 2], b=[[1]],
)  # fmt: skip
RESULT = view(
    [[0, 1], [0, 0.5], [0, 2], [1, 0], [0, 2.5], [0, 2]], [0, 0, 0, 2, 3, 3],
    [[0, 3], [0, 1], [0, 4], [0, 2]],
)  # fmt: skip


def figures(word, erased=None):
    """Return a measure's figures of the client and of the global model."""
    measure = MEASURES[word](None, RECEIVED, RESULT, COHORT)
    of_client = measure.of_client(Local(7, OWN, RECEIVED, COUNTS, erased))
    return of_client, measure.of_model()


def near(expected):
    return pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_drift_of_images_of_the_clients_classes_and_of_others():
    assert figures("drift")[0] == near({
        "distance_observed": (4 + 2 * ROOT + 5) / 3,
        "distance_unobserved": (5 + 1 + 4) / 3,
        "angle_observed": (math.acos(0.6) + math.pi / 2 + 0) / 3,
        "angle_unobserved": (math.pi + math.pi / 4 + 0) / 3,
        "norm_difference_observed": (2 + 0 + 5) / 3,
        "norm_difference_unobserved": (-3 + (ROOT - 1) + 4) / 3,
    })  # fmt: skip


def test_norms_of_features_and_rows_of_the_clients_classes_and_of_others():
    """The discrepancy is from the round's result, whose features are 1.5 long on average."""
    of_client, of_model = figures("norms")
    assert of_client == near({
        "feature_observed": (5 + 2 + 10) / 3,
        "feature_unobserved": (1 + ROOT + 5) / 3,
        "feature_discrepancy": 17 / 3 - 1.5,
        "weight_observed": (5 + 2) / 2,
        "weight_unobserved": (13 + 5) / 2,
    })  # fmt: skip
    assert of_model == near({"feature_global": 1.5, "weight_global": 2.5})


def test_alignment_and_accuracy_on_the_clients_classes_and_on_others():
    own = {"observed": (1 + 0.8 + 0.8) / 3, "unobserved": (5 / 13 + 17 / 13 / ROOT + 0.6) / 3}
    before = {"observed": (1 + 1 - 0.6) / 3, "unobserved": (-0.6 + 0.8 - 1) / 3}
    right = {"observed": 2 / 3, "unobserved": 1 / 3}
    right_before = {"observed": 1 / 3, "unobserved": 1.0}
    expected = {"erased": 0.6}
    for name, after, start in (("", own, before), ("accuracy_", right, right_before)):
        for part in ("observed", "unobserved"):
            expected[f"{name}{part}"] = after[part]
            expected[f"{name}{part}_received"] = start[part]
            expected[f"{name}{part}_gap"] = after[part] - start[part]
    of_client, of_model = figures("alignment", erased=3)
    assert of_client == near(expected)
    assert of_model == near({"global": (1 + 1 + 1 + 0 + 1 + 1) / 6})
    assert "erased" not in figures("alignment")[0]


def test_accuracies_are_weighted_by_the_classes_of_the_client_or_of_the_cohort():
    """The classes' accuracies are .5 .5 1 0; .5 1 0 1 as received; 1 0 1 1 of the result."""
    of_client, of_model = figures("local-accuracy")
    assert of_client == near({
        "in_local": 0.8 * 0.5 + 0.2 * 1,
        "out_local": (0.2 * 0.5 + 0.5 + 0.8 * 1 + 0) / 3,
        "in_received": 0.8 * 0.5,
        "out_received": (0.2 * 0.5 + 1 + 0 + 1) / 3,
    })  # fmt: skip
    assert of_model == near({"in_global": 7 / 8, "out_global": (7 + 6 + 4) / 8 / 3})


def test_divergence_of_weights_and_of_distributions_in_both_norms():
    """Shares .2 .4 0 .4 of the received model's accuracies; two clients, updates 1 -2 2, 0 3 4."""
    measure = MEASURES["divergence"](None, RECEIVED, RESULT, COHORT)
    first = measure.of_client(Local(7, OWN, RECEIVED, COUNTS))
    assert measure.of_model() == {}, "one client has no correlation"
    farther = view(OWN.features, [0] * 6, OWN.head, a=[1, 5], b=[[5]])
    second = measure.of_client(Local(8, farther, RECEIVED, np.array([0, 3, 0, 0])))
    assert first == near({
        "weight_divergence_l1": 5, "weight_divergence_l2": 3,
        "distribution_distance_l1": 0.6 + 0.4 + 0.2 + 0.4,
        "distribution_distance_l2": math.sqrt(0.36 + 0.16 + 0.04 + 0.16),
    })  # fmt: skip
    assert second == near({
        "weight_divergence_l1": 7, "weight_divergence_l2": 5,
        "distribution_distance_l1": 0.2 + 0.6 + 0.4,
        "distribution_distance_l2": math.sqrt(0.04 + 0.36 + 0.16),
    })  # fmt: skip
    diversity = ((9 + 25) / 2) / ((1 + 1 + 36) / 4)
    expected = {"pearson_l1": -1.0, "pearson_l2": -1.0, "gradient_diversity": diversity}
    assert measure.of_model() == near(expected)


def test_neurons_agree_if_the_same_class_activates_them_most():
    """Both features prefer class 2 as received and locally, 2 and 1 in the result.

    The logits prefer 3 1 2 0 locally, 2 1 (dead) 3 as received, and 0 (dead) 2 3 in the result.
    """
    of_client, of_model = figures("weight-alignment")
    assert of_client == near({"last_hidden": 1.0, "logits": 1 / 4})
    assert of_model == near({"last_hidden_global": 1 / 2, "logits_global": 1 / 4})


def test_means_and_deviations_over_clients_leave_out_what_a_client_has_not(monkeypatch):
    given = {1: (1.0, 8.0), 4: (2.0, math.nan), 6: (6.0, 4.0)}

    class Given(Measure):
        def of_client(self, local):
            return dict(zip(("observed", "unobserved"), given[local.client], strict=True))

    monkeypatch.setitem(MEASURES, "given", Given)
    process = ProcessContext(parse_config(settings(method="fedavg")))
    start = Start(to_arrays(process.slot.shared))
    entry = measure_round(process, RoundModels(1, start, None, (1, 4, 6), 0.05), ["given"])
    found = entry["measures"]["given"]
    assert found["mean"] == near({"observed": 3.0, "unobserved": 6.0})
    assert found["std"] == near({"observed": math.sqrt((4 + 1 + 9) / 3), "unobserved": 2.0})
    assert [row["client"] for row in found["clients"]] == entry["clients"] == [1, 4, 6]


def outputs(process, arrays):
    """Return features, labels and head of a model on the whole test set."""
    model = process.new_model().eval()
    model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    batches = list(process.data.test_batches())
    with torch.no_grad():
        features = torch.cat([model(images)[0] for images, _ in batches]).double().numpy()
    labels = torch.cat([labels for _, labels in batches]).numpy()
    return features, labels, model.head.weight.detach().double().numpy()


def test_figures_of_a_real_round_are_of_its_models_and_of_the_clients_own_classes():
    process = ProcessContext(parse_config(settings(method="fedavg", lr=0.05)))
    received = {name: array.copy() for name, array in to_arrays(process.slot.shared).items()}
    client = process.client(3)
    local = client.work(dict(received), 1, 0.05).shared
    result = {name: 0.5 * array for name, array in local.items()}
    models = RoundModels(1, Start(received), result, (3,), 0.05)
    found = measure_round(process, models, ["drift", "norms", "alignment"])["measures"]
    (own, labels, rows), (before, _, _) = (outputs(process, each) for each in (local, received))
    has = set(process.data.dataset.train_labels[process.data.partition.train[3]].tolist())
    assert len(has) == 2
    lengths, apart = (np.sqrt((each**2).sum(1)) for each in (own, own - before))
    row_lengths = np.sqrt((rows**2).sum(1))
    cosines = (own * rows[labels]).sum(1) / lengths / row_lengths[labels]
    length = np.sqrt((outputs(process, result)[0] ** 2).sum(1)).mean()
    for part, inside in (("observed", True), ("unobserved", False)):
        chosen = [i for i, label in enumerate(labels.tolist()) if (label in has) == inside]
        kept = [c for c in range(10) if (c in has) == inside]
        drift, norms, alignment = (found[w]["mean"] for w in ("drift", "norms", "alignment"))
        assert drift[f"distance_{part}"] == pytest.approx(apart[chosen].mean(), rel=1e-4)
        assert norms[f"feature_{part}"] == pytest.approx(lengths[chosen].mean(), rel=1e-4)
        assert norms[f"weight_{part}"] == pytest.approx(row_lengths[kept].mean(), rel=1e-4)
        assert alignment[part] == pytest.approx(cosines[chosen].mean(), rel=1e-4)
        if inside:
            expected = lengths[chosen].mean() - length
            assert norms["feature_discrepancy"] == pytest.approx(expected, rel=1e-3)
