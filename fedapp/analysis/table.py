"""THE TABLE OF MEASURES: the words of the key `analyses`, and what they stand for."""

from fedapp.analysis.accuracy import CLASS_ACCURACY_MEASURES
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
from fedapp.analysis.pictures import FeatureMap, Landscape

MEASURES: dict[str, type[Measure]] = {
    "local-accuracy": LocalAccuracy,
    "alignment": Alignment,
    "drift": FeatureDrift,
    "four-factors": FourFactors,
    "norms": Norms,
    "weight-alignment": WeightAlignment,
    "divergence": Divergence,
    "landscape": Landscape,
    "t-sne": FeatureMap,
}
WORDS = (*CLASS_ACCURACY_MEASURES, *MEASURES)


def measures_of_models(analyses: str) -> list[str]:
    """Return the words that look at models, of a text such as "forgetting alignment"."""
    return [word for word in analyses.split() if word in MEASURES]
