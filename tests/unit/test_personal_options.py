"""Options of clients with models of their own: other readings of their papers and codes."""

import pytest
from in_process import federate
from personal_runs import run


@pytest.mark.parametrize("method", ["fedkd", "fml", "fedgen", "fedgh"])
def test_a_method_can_be_evaluated_as_if_the_next_round_had_begun(method):
    strategy = federate(run(method=method, eval_when="after-download", num_rounds=1), nodes=2)[1]
    assert strategy.report.failures == []
    assert strategy.report.client_accuracy["client-count"] == 4
