"""THE TABLE OF MEASURES: the words of the key `analyses`, and what they stand for."""

from fedapp.analysis.accuracy import CLASS_ACCURACY_MEASURES
from fedapp.analysis.epochs import LocalTraining
from fedapp.analysis.measure import Measure
from fedapp.analysis.measures import (
    Alignment,
    Divergence,
    FeatureDrift,
    FourFactors,
    LocalAccuracy,
    Norms,
    WeightAlignment,
)
from fedapp.analysis.pictures import FeatureMap, Landscape, LocalFeatureMap, UnitCircle
from fedapp.errors import UserError
from fedapp.method import GLOBAL
from fedapp.methods import find_method

MEASURES: dict[str, type[Measure]] = {
    "local-accuracy": LocalAccuracy,
    "local-training": LocalTraining,
    "alignment": Alignment,
    "drift": FeatureDrift,
    "four-factors": FourFactors,
    "norms": Norms,
    "weight-alignment": WeightAlignment,
    "divergence": Divergence,
    "landscape": Landscape,
    "t-sne": FeatureMap,
    "t-sne-locals": LocalFeatureMap,
    "unit-circle": UnitCircle,
}
WORDS = (*CLASS_ACCURACY_MEASURES, *MEASURES)


def measures_of_models(analyses: str) -> list[str]:
    """Return the words that look at models, of a text such as "forgetting alignment"."""
    return [word for word in analyses.split() if word in MEASURES]


def check_measures(name: str, analyses: str, bottleneck: int = 0) -> None:
    """Raise UserError for measures that a method has no models for, or a model no features."""
    row = find_method(name)
    models = measures_of_models(analyses)
    if models and row.accuracy != GLOBAL:
        raise UserError(
            f"measure '{models[0]}' looks at a global model, and method '{name}' has none: its "
            "accuracy is of " + row.accuracy
        )
    for word in models:
        if MEASURES[word].features not in (0, bottleneck):
            raise UserError(
                f"measure '{word}' needs a model with {MEASURES[word].features} features before "
                f"its head: train with bottleneck={MEASURES[word].features} (here: {bottleneck})"
            )
