"""The papers' measurements: pure functions of accuracies, features and weights, and their use."""

from fedapp.analysis.accuracy import class_accuracy_measures, consistency, forgetting

__all__ = ["class_accuracy_measures", "consistency", "forgetting"]
