"""Whose code made a table, and what a run takes from that where the papers say nothing.

FedDr+ made its tables 3 and 4 with the FedNTD authors' code, which weighs models by size, and all
others with the FedBABU authors', which takes their plain mean. It matters with LDA only, where
clients differ in size. Their test batches differ in size too.
"""

from enum import StrEnum

from fedapp.config.auto import FEDBABU_TEST_BATCH, FEDNTD_TEST_BATCH
from fedapp.experiments.papers.metrics import PERSONAL
from fedapp.experiments.papers.protocol import MODELS, Keys, Published, method_of
from fedapp.experiments.papers.tables import Paper, Table
from fedapp.methods.table import METHODS
from fedapp.models.backbones import BACKBONES

FEDDR_BY_FEDNTD = {"table3-sharding", "table3-lda", "table4-elapsed", "arxiv-table9-elapsed"}
FEDNTD_BY_FEDALIGN = {"table13-fedalign"}
FEDNTD_SPREAD = (
    "over initial weights and batches alone, as the authors' code has one partition for all seeds "
    "and draws cohorts by the round only; here the seed decides both"
)


class CodeBase(StrEnum):
    """A code base that several papers use."""

    FEDBABU = "FedBABU"
    FEDNTD = "FedNTD"


def code_base(paper: Paper, table: Table) -> CodeBase | None:
    """Return whose code made a table, as far as its paper says; None where it does not."""
    match paper.name:
        case "fedntd":
            return None if table.id in FEDNTD_BY_FEDALIGN else CodeBase.FEDNTD
        case "feddr+":
            return CodeBase.FEDNTD if table.id in FEDDR_BY_FEDNTD else CodeBase.FEDBABU
        case "fedfn" if table.metric == PERSONAL:
            return CodeBase.FEDBABU
    stated = table.setting.get("code_base")
    return CodeBase(stated) if stated else None


def averaging_keys(published: Published) -> Keys:
    """Return how models are averaged, where any are: the FedBABU authors' code takes their mean."""
    if METHODS[method_of(published)[0]].exchange.sends == "nothing":
        return {}
    if code_base(published.paper, published.table) is not CodeBase.FEDBABU:
        return {}
    published.notes.append("mean of models: uniform, as in the FedBABU authors' code")
    return {"weights": "uniform"}


def test_batch_keys(published: Published) -> Keys:
    """Return the size of test batches, where BatchNorm makes the accuracy depend on it."""
    model = str(published.setting.get("model"))
    backbone = BACKBONES.get(MODELS.get(model, model))
    if backbone is None or not backbone.has_batch_norm:
        return {}
    by_fedntd = code_base(published.paper, published.table) is CodeBase.FEDNTD
    return {"test-batch-size": FEDNTD_TEST_BATCH if by_fedntd else FEDBABU_TEST_BATCH}


def spread_over_seeds(paper: Paper, table: Table) -> str:
    """Say what a table's spreads over seeds are over, if over less than a seed decides here."""
    theirs = paper.name == "fedntd" and code_base(paper, table) is CodeBase.FEDNTD
    return FEDNTD_SPREAD if theirs else ""
