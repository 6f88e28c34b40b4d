"""A sweep names the best values of each method, not the best method."""

from fedapp.experiments.best_values import best_values
from fedapp.experiments.sweep import SweepRun


def found(*rows, last10=True, config=None):
    runs = [SweepRun(varied, 0, config or {}) for varied, *_ in rows]
    summary = [
        {
            "combination": run.combination,
            "accuracy_final": final,
            "accuracy_last10": last if last10 else None,
        }
        for run, (_, final, last) in zip(runs, rows, strict=True)
    ]
    return best_values(runs, summary)


RATES = [
    ({"method": "fedavg", "lr": 0.01}, 0.5, 0.4),
    ({"method": "fedavg", "lr": 0.1}, 0.4, 0.45),
    ({"method": "feddr+", "lr": 0.01}, 0.9, 0.8),
    ({"method": "feddr+", "lr": 0.1}, None, None),  # has not completed
    ({"method": "feddr+", "lr": 1.0}, 0.8, 0.7),
]


def test_every_method_has_its_best_rate():
    sentence = found(*RATES[:3], RATES[4])
    assert sentence.startswith("best last 10: fedavg: lr=0.1 (45.0 %), feddr+: lr=0.01 (80.0 %); ")
    assert sentence.endswith("choose with validation-share=0.1, and report without it")


def test_without_a_mean_of_the_last_rounds_the_final_accuracy_decides():
    sentence = found(*RATES[:4], last10=False)
    assert sentence.startswith("best final: fedavg: lr=0.01 (50.0 %); ")  # one feddr+ is no choice


def test_a_sweep_of_one_key_names_its_best_value():
    sentence = found(({"lr": 0.1}, 0.5, 0.5), ({"lr": 0.3}, 0.6, 0.6))
    assert sentence.startswith("best last 10: lr=0.3 (60.0 %); ")
    rows = ({"lr": 0.1}, 0.5, 0.5), ({"lr": 0.3}, 0.6, 0.6)
    held_out = {"validation-share": 0.1}
    assert found(*rows, config=held_out) == "best last 10: lr=0.3 (60.0 %), on validation images"


def test_nothing_is_chosen_among_methods_or_seeds():
    assert found(({"method": "fedavg"}, 0.5, 0.5), ({"method": "dr"}, 0.6, 0.6)) == ""
    assert found(({}, 0.5, 0.5)) == ""
    assert found() == ""
