"""The measures of a run: what the newest are, and a file that was changed by hand."""

import pytest

from fedapp.core.errors import UserError
from fedapp.results import measures_file
from fedapp.results.measures_file import newest
from fedapp.results.run_directory import RunDirectory


def entry(number, **measures):
    return {"round": number, "measures": {w: {"mean": {"x": v}} for w, v in measures.items()}}


ENTRIES = [entry(2, alignment=0.1, drift=0.2), entry(4, alignment=0.3), entry(9, forgetting=0.4)]


@pytest.mark.parametrize(
    ("words", "rounds", "found"),
    [
        (["alignment"], [], {"round": "4", "alignment/x": 0.3}),
        (["alignment"], [2], {"round": "2", "alignment/x": 0.1}),
        (
            ["forgetting", "alignment", "drift"],
            [2, 4],
            {"round": "2, 4, 9", "alignment/x": 0.3, "drift/x": 0.2, "forgetting/x": 0.4},
        ),
        (["norms"], [], {}),
    ],
)
def test_each_asked_measure_is_that_of_its_newest_round(words, rounds, found):
    assert newest(ENTRIES, words, rounds) == found


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"rounds": [1]}', '{"rounds": [{"round": 1}]}',
     '{"rounds": [{"round": 1, "measures": {"drift": 2}}]}'],
)  # fmt: skip
def test_a_file_without_rounds_and_measures_is_refused(tmp_path, content):
    run = RunDirectory.create(tmp_path, "one", {"method": "fedavg"})
    (run.path / "analysis.json").write_text(content)
    with pytest.raises(UserError, match=r"analysis\.json has no list of measured rounds"):
        measures_file.read(run)
