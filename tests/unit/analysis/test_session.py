"""One call of `fedapp analyse` on several runs says when it measures them at different rounds."""

from in_process import train_one

from fedapp.analysis.session import AnalysisRequest, analyse_runs


def test_runs_measured_at_different_rounds_are_told_with_a_round_that_all_have(tmp_path):
    kept = train_one(tmp_path / "kept", num_rounds=2, checkpoint_keep=0)
    final = train_one(tmp_path / "final", num_rounds=2, checkpoint_every=0, method="dr")
    paths, said = [kept.path, final.path], []
    found = analyse_runs(paths, AnalysisRequest("norms", clients=1), said.append)
    assert [entries[-1]["round"] for entries in found.values()] == [2, 3]
    assert said[-1].startswith("the runs are measured at different rounds (")
    assert said[-1].endswith("; --round 3 measures all of them at one round")
    said.clear()
    analyse_runs(paths, AnalysisRequest("norms", [3], clients=1), said.append)
    assert not [text for text in said if "different rounds" in text]
    analyse_runs(paths, AnalysisRequest("forgetting"), said.append)  # needs no round
    assert not [text for text in said if "different rounds" in text]
