"""The names of measures for the run-config key `analyses`, and the models that they need.

The measures themselves are in `fedapp.analysis.measures`, whose imports a configuration does not
need. A test compares the names.
"""

CLASS_ACCURACY_MEASURES = ("forgetting", "consistency")  # from metrics that every run logs
# Measures of models, with the number of features before the head that each needs; 0: any number.
FEATURES_OF = {
    "local-accuracy": 0,
    "local-training": 0,
    "alignment": 0,
    "drift": 0,
    "four-factors": 0,
    "norms": 0,
    "weight-alignment": 0,
    "divergence": 0,
    "landscape": 0,
    "t-sne": 0,
    "t-sne-locals": 0,
    "unit-circle": 2,
}
WORDS = (*CLASS_ACCURACY_MEASURES, *FEATURES_OF)


def measures_of_models(analyses: str) -> list[str]:
    """Return the measures of models in a text such as "forgetting alignment"."""
    return [word for word in analyses.split() if word in FEATURES_OF]
