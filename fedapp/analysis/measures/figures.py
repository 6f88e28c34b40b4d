"""The measures of models that give numbers, client by client."""

from typing import Any

import numpy as np

from fedapp.analysis.formulas import features as on_features
from fedapp.analysis.formulas import weights as on_weights
from fedapp.analysis.formulas.accuracy import in_local_accuracy, out_local_accuracy
from fedapp.analysis.formulas.features import mean, split_mean
from fedapp.analysis.measures.base import Figures, Measure
from fedapp.analysis.measures.views import Local, View

_ORDERS = {"l1": 1, "l2": 2}  # of the norms of "divergence", by the suffix of the results' names


class LocalAccuracy(Measure):
    """Accuracy on the classes that a client has, and on the others."""

    title = "In-local and out-local accuracy"
    source = "FedNTD (Lee et al. 2022), section 3"

    def of_client(self, local: Local) -> Figures:
        """Return both accuracies of the local model and of the received one."""
        own, received = local.view.class_accuracy, local.received.class_accuracy
        return {
            "in_local": in_local_accuracy(own, local.counts),
            "out_local": out_local_accuracy(own, local.counts),
            "in_received": in_local_accuracy(received, local.counts),
            "out_received": out_local_accuracy(received, local.counts),
        }

    def of_model(self) -> dict[str, Any]:
        """Return both accuracies of the global model, for all clients of the round together."""
        accuracies = self.newest.class_accuracy
        return {
            "in_global": in_local_accuracy(accuracies, self.counts),
            "out_global": out_local_accuracy(accuracies, self.counts),
        }


class Alignment(Measure):
    """The alignment of features with their class's row of the classifier, before averaging."""

    title = "Feature-classifier alignment"
    source = "FedDr+ (Kim et al. 2025), section 2.2"

    def of_client(self, local: Local) -> Figures:
        """Return alignment and accuracy on observed and unobserved classes, and their gaps."""
        figures: Figures = {}
        for name, values in (("", _alignment), ("accuracy_", lambda view: view.right)):
            own, before = (
                split_mean(values(view), view.labels, local.observed)
                for view in (local.view, local.received)
            )
            for split, after_, before_ in zip(("observed", "unobserved"), own, before, strict=True):
                figures[f"{name}{split}"] = after_
                figures[f"{name}{split}_received"] = before_
                figures[f"{name}{split}_gap"] = after_ - before_
        if local.erased is not None:
            figures["erased"] = mean(_alignment(local.view)[local.view.labels == local.erased])
        return figures

    def of_model(self) -> dict[str, Any]:
        """Return the alignment of the global model on all classes."""
        return {"global": mean(_alignment(self.newest))}


class FeatureDrift(Measure):
    """The change of test images' features in local training."""

    title = "Feature distance, angle and norm difference"
    source = "FedDr+ (Kim et al. 2025), section 3.3; arXiv version"

    def of_client(self, local: Local) -> Figures:
        """Return mean distance, angle (radians) and norm difference for each set of classes."""
        moved = on_features.drift(local.view.features, local.received.features)
        figures: Figures = {}
        for name in ("distance", "angle", "norm_difference"):
            seen, unseen = split_mean(getattr(moved, name), local.view.labels, local.observed)
            figures |= {f"{name}_observed": seen, f"{name}_unobserved": unseen}
        return figures


class FourFactors(Measure):
    """Similarity of class weights and of features, between and within classes, and of both."""

    title = "Four factors of the global model"
    source = "FedFN (Kim et al. 2023), section 3"
    local = False

    def of_model(self) -> dict[str, Any]:
        """Return one number per factor, and the factors' matrices and class values."""
        view = self.newest
        factors = on_features.four_factors(view.features, view.labels, view.head, view.normalised)
        matrices = {
            "weight_similarity_matrix": factors.weight_similarity,
            "inter_class_matrix": factors.inter_class,
            "intra_class_by_class": factors.intra_class,
            "prototype_weight_by_class": factors.prototype_weight,
        }
        return {**factors.scalars(), **{key: np.round(m, 4) for key, m in matrices.items()}}


class Norms(Measure):
    """Norms of features and of class weights, for a client's classes and for the others."""

    title = "Feature norms and weight norms"
    source = "FedFN (Kim et al. 2023), section 3"

    def of_client(self, local: Local) -> Figures:
        """Return the mean norms of the local model, and the difference from the global model."""
        view = local.view
        lengths = np.linalg.norm(on_features.wide(view.features), axis=1)
        seen, unseen = split_mean(lengths, view.labels, local.observed)
        row_seen, row_unseen = on_weights.norm_means(view.head, local.observed)
        return {
            "feature_observed": seen,
            "feature_unobserved": unseen,
            "feature_discrepancy": seen - _feature_norm(self.newest),
            "weight_observed": row_seen,
            "weight_unobserved": row_unseen,
        }

    def of_model(self) -> dict[str, Any]:
        """Return the mean norms of the global model."""
        rows = np.linalg.norm(on_features.wide(self.newest.head), axis=1)
        return {"feature_global": _feature_norm(self.newest), "weight_global": mean(rows)}


class WeightAlignment(Measure):
    """Whether the same classes activate the neurons of the last two layers as before."""

    title = "Weight alignment"
    source = "FedNTD (Lee et al. 2022), section 5 and appendix"

    def of_client(self, local: Local) -> Figures:
        """Return the share of neurons with equal preferences in received and local model."""
        return _agreement(local.received, local.view)

    def of_model(self) -> dict[str, Any]:
        """Return the same for the received and the new global model."""
        if self.result is None:
            return {}
        agreement = _agreement(self.received, self.result)
        return {f"{layer}_global": value for layer, value in agreement.items()}


class Divergence(Measure):
    """The clients' change of the weights, and their data's distance from the class accuracies.

    Each distance has the L1 norm, as in FedNTD's figure 8, and the L2 norm.
    """

    title = "Weight divergence and distribution distance"
    source = "FedNTD (Lee et al. 2022), section 5, figure 8; Yin et al. 2018 (diversity, times K)"

    def begin(self) -> None:
        """Keep nothing yet of any client."""
        self.pairs: dict[str, list[tuple[float, float]]] = {norm: [] for norm in _ORDERS}
        self.diversity = on_weights.GradientDiversity()

    def of_client(self, local: Local) -> Figures:
        """Return the distance of the weights and of the distributions, in each norm."""
        own, before = local.view.arrays, local.received.arrays
        known, counts = local.received.class_accuracy, local.counts
        self.diversity.add({name: own[name] - before[name] for name in own})
        figures: Figures = {}
        for norm, order in _ORDERS.items():
            moved = on_weights.weight_divergence(own, before, order)
            distance = on_weights.distribution_distance(known, counts, order)
            self.pairs[norm].append((distance, moved))
            figures |= {
                f"weight_divergence_{norm}": moved,
                f"distribution_distance_{norm}": distance,
            }
        return figures

    def of_model(self) -> dict[str, Any]:
        """Return the correlation of both over the clients, and the diversity of their updates."""
        if self.diversity.count < 2:
            return {}
        correlations = {
            f"pearson_{norm}": on_weights.pearson(*zip(*pairs, strict=True))
            for norm, pairs in self.pairs.items()
        }
        return {**correlations, "gradient_diversity": self.diversity.value()}


def _alignment(view: View) -> np.ndarray:
    return on_features.alignment(view.features, view.labels, view.head)


def _feature_norm(view: View) -> float:
    return mean(np.linalg.norm(on_features.wide(view.features), axis=1))


def _agreement(one: View, other: View) -> Figures:
    """Compare the class preferences of the last hidden layer and of the logits."""
    return {
        layer: on_weights.weight_alignment(_preferences(one, part), _preferences(other, part))
        for layer, part in (("last_hidden", "features"), ("logits", "logits"))
    }


def _preferences(view: View, part: str) -> np.ndarray:
    by_class = on_weights.class_activation(getattr(view, part), view.labels, len(view.head))
    return on_weights.class_preference(by_class)
