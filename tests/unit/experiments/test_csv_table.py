"""Tables that commands continue: what another program saved in their place is refused."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from fedapp.core.errors import UserError
from fedapp.experiments.csv_table import read_table, write_table
from fedapp.experiments.papers.plan import Request
from fedapp.experiments.papers.reproduce import check_folder, earlier_results, write_results

ROW = {
    "paper": "fedntd", "table": "table1", "cell": "fedavg", "changes": "", "metric": "accuracy",
    "mean": 40.5, "published mean": 40.14, "published failed": False,
}  # fmt: skip


def test_a_table_comes_back_with_the_columns_of_all_rows(tmp_path):
    write_table(tmp_path / "new" / "table.csv", [{"a": 1}, {"a": "x, ü", "b": 2}])
    rows = read_table(tmp_path / "new" / "table.csv", ["a", "b"])
    assert rows == [{"a": "1", "b": ""}, {"a": "x, ü", "b": "2"}]
    assert read_table(tmp_path / "none.csv", ["a"]) == []


def test_earlier_results_have_the_types_of_new_ones(tmp_path):
    write_results(tmp_path, [ROW])
    (row,) = earlier_results(tmp_path, [])
    assert {name: row[name] for name in ROW} == ROW
    assert earlier_results(tmp_path, [ROW]) == []


def test_processes_that_write_at_the_same_time_keep_each_others_rows(tmp_path):
    cells = [f"fedavg lr={rate}" for rate in range(8)]
    with ThreadPoolExecutor(len(cells)) as pool:
        list(pool.map(lambda cell: write_results(tmp_path, [{**ROW, "cell": cell}]), cells))
    assert sorted(row["cell"] for row in earlier_results(tmp_path, [])) == cells


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(b"40.14", b'"40,14"'), "could not convert string to float"),
        (lambda text: text.replace(b",", b";"), "it has no column 'paper'"),
        (lambda text: b"\xff", "'utf-8' codec"),
        (lambda text: b"", "it has no column 'paper'"),
    ],
)
def test_results_that_another_program_has_saved_are_refused(tmp_path, change, words):
    path = write_results(tmp_path, [ROW])
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match=rf"results\.csv is not as fedapp writes it \({words}"):
        check_folder([], Request(tmp_path))
