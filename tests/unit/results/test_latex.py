"""The LaTeX table of a comparison: its numbers, its bold cells, its escaped names."""

from fedapp.results.comparison.latex import latex_table


def group(name, final, std=None, seeds=(0, 1), last10=None, best=0.9, of="one model"):
    return {
        "group": name, "accuracy_of": of, "seeds": list(seeds),
        "accuracy_final": final, "accuracy_final_std": std,
        "accuracy_last10": last10, "accuracy_last10_std": None,
        "accuracy_best": best, "accuracy_best_std": None,
    }  # fmt: skip


def rows(*groups, comparable=True):
    lines = latex_table(groups, comparable).splitlines()
    assert lines[1].startswith(r"\begin{tabular}{")
    assert lines[-1] == r"\end{tabular}"
    return [line for line in lines if line.endswith(r"\\")]


def test_the_best_mean_of_each_column_is_bold():
    found = rows(group("feddr+", 0.81234, 0.0045), group("fedavg", 0.8, 0.01, best=0.95))
    assert found == [
        r"group & seeds & final & best \\",
        r"feddr+ & 2 & \textbf{81.23} $\pm$ 0.45 & 90.00 \\",
        r"fedavg & 2 & 80.00 $\pm$ 1.00 & \textbf{95.00} \\",
    ]


def test_accuracies_of_different_things_are_named_and_not_bold():
    pair = group("fedavg", 0.5, of="the global model"), group("local", 0.9, of="personal models")
    heads, one, other = rows(*pair, comparable=False)
    assert heads == r"group & accuracy of & seeds & final & best \\"
    assert one == r"fedavg & the global model & 2 & 50.00 & 90.00 \\"
    assert "textbf" not in other


def test_means_that_read_equal_are_both_bold():
    found = rows(group("a", 0.500001), group("b", 0.499999))
    assert [line.count("textbf{50.00}") for line in found] == [0, 1, 1]


def test_a_group_without_a_number_has_a_dash():
    found = rows(group("one", None, last10=0.5, best=None), group("two", 0.7, best=None))
    assert found[0] == r"group & seeds & final & last 10 \\"
    assert found[1] == r"one & 2 & -- & \textbf{50.00} \\"
    assert found[2] == r"two & 2 & \textbf{70.00} & -- \\"


def test_special_characters_are_escaped():
    [_, line] = rows(group(r"run_name='50 %' \ ^ ~ {a} #1 & $", 0.5))
    signs = r"\textbackslash{} \textasciicircum{} \textasciitilde{} \{a\} \#1 \& \$"
    assert line.startswith(rf"run\_name='50 \%' {signs} & 2 & ")


def test_a_comparison_without_a_completed_run_is_a_table_without_numbers():
    [heads, line] = rows(group("fedavg", None, seeds=(), best=None))
    assert heads == r"group & seeds \\"
    assert line == r"fedavg & 0 \\"
