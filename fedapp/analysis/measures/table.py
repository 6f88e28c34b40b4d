"""THE TABLE OF MEASURES: the measures of the key `analyses`, by name."""

from fedapp.analysis.measures.base import Measure
from fedapp.analysis.measures.epochs import LocalTraining
from fedapp.analysis.measures.figures import (
    Alignment,
    Divergence,
    FeatureDrift,
    FourFactors,
    LocalAccuracy,
    Norms,
    WeightAlignment,
)
from fedapp.analysis.measures.pictures import FeatureMap, Landscape, LocalFeatureMap, UnitCircle

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
