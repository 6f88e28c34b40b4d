"""The words of the run-config key `analyses`, and what each measure needs of a run.

Only words: what they measure is in `fedapp.analysis.measures`, which loads far more than a
configuration needs. A test compares the words.
"""

CLASS_ACCURACY_MEASURES = ("forgetting", "consistency")  # from what every run logs anyway
# Measures of models, with the number of features that they need before the head; 0: any number.
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
    """Return the words that look at models, of a text such as "forgetting alignment"."""
    return [word for word in analyses.split() if word in FEATURES_OF]
