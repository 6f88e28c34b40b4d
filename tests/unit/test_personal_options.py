"""Options of clients with models of their own: other readings of their papers and codes."""

import pytest
from flwr.app import RecordDict
from in_process import federate
from personal_runs import run

from fedapp.config import RunConfig
from fedapp.errors import UserError
from strategies.records import UPLOADS, from_array_record, to_array_record


@pytest.mark.parametrize("method", ["fedkd", "fml", "fedgen", "fedgh"])
def test_a_method_can_be_evaluated_as_if_the_next_round_had_begun(method):
    strategy = federate(run(method=method, eval_when="after-download", num_rounds=1), nodes=2)[1]
    assert strategy.report.failures == []
    assert strategy.report.client_accuracy["client-count"] == 4


@pytest.mark.parametrize("method", ["fedavg", "fedgh", "fedkd", "lg-fedavg"])
def test_the_nearest_prototype_needs_prototypes(method):
    with pytest.raises(UserError, match=f"clients of method '{method}' receive no prototypes"):
        RunConfig.parse(run(method=method, eval_rule="proto", feature_dim="auto"))
    assert RunConfig.parse(run(method="feddor", eval_rule="proto")).eval_rule == "proto"


def test_a_batch_of_one_image_is_refused_before_the_run():
    with pytest.raises(UserError, match=r"'batch-size' is 1, but .* BatchNorm"):
        RunConfig.parse(run(method="feddor", batch_size=1))


def test_label_counts_that_the_server_refused_are_sent_again():
    spoiled = []

    def tamper(reply):
        records = reply.content.array_records
        uploads = from_array_record(records[UPLOADS]) if UPLOADS in records else {}
        if "2/label-counts" in uploads and not spoiled:
            spoiled.append(uploads["2/label-counts"])
            uploads["2/label-counts"] = -spoiled[0]
            reply.content = RecordDict({**reply.content, UPLOADS: to_array_record(uploads)})
        return reply

    config = run(method="fedgen", tolerate_failures=True)
    strategy = federate(config, nodes=4, tamper=tamper)[1]
    assert sorted(strategy._heard) == [0, 1, 2, 3]
    assert (strategy._heard[2] == spoiled[0]).all()
