"""The code base of each table, and its settings that the papers do not state.

FedDr+ computed its tables 3 and 4 with the FedNTD authors' code, which weights models by client
size, and all others with the FedBABU authors' code, which uses the plain mean. The weighting has an
effect only with LDA, where clients differ in size. The sizes of test batches differ too.
"""

from enum import StrEnum

from fedapp.config.paper_settings import FEDBABU_TEST_BATCH, FEDNTD_TEST_BATCH
from fedapp.experiments.papers.metrics import PERSONAL
from fedapp.experiments.papers.protocol import (
    Keys,
    Published,
    method_of,
    normalises_by_batch,
    tested_by_clients,
)
from fedapp.experiments.papers.tables import Paper, Table
from fedapp.methods.table import METHODS

FEDDR_BY_FEDNTD = {"table3-sharding", "table3-lda", "table4-elapsed", "arxiv-table9-elapsed"}
FEDNTD_BY_FEDALIGN = {"table13-fedalign"}
FEDNTD_SPREAD = (
    "over initial weights and batches alone, as the FedNTD authors' code has one partition for all "
    "seeds and draws cohorts by the round only; here the seed decides both"
)
FEDORGP_SPREAD = (
    "over little more than rounding, if as in FedORGP's public code all trials have the same "
    "initial weights and batches; here the seed decides the weights"
)

AUGMENTED_TEST = (
    "published accuracies: perhaps of augmented test images (docs/evidence.md); on the "
    "images as they are, finished runs of this paper end 3 points lower to 14 higher"
)
SAME_BATCHES = (
    "batches: the same in every round, and no shuffling, as in FedORGP's public code, with which "
    "FedDOR's table 2 is reproduced on that code's split (docs/evidence.md)"
)


class CodeBase(StrEnum):
    """A code base that several papers use."""

    FEDBABU = "FedBABU"
    FEDNTD = "FedNTD"


def code_base(paper: Paper, table: Table) -> CodeBase | None:
    """Return the code base of a table; None if its paper does not state it."""
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
    """Return the averaging of models, if any: the FedBABU authors' code uses the plain mean."""
    if METHODS[method_of(published)[0]].exchange.sends == "nothing":
        return {}
    if code_base(published.paper, published.table) is not CodeBase.FEDBABU:
        return {}
    published.notes.append("mean of models: uniform, as in the FedBABU authors' code")
    return {"weights": "uniform"}


def test_batch_keys(published: Published) -> Keys:
    """Return the size of test batches, if BatchNorm makes the accuracy depend on it."""
    if not normalises_by_batch(published):
        return {}
    by_fedntd = code_base(published.paper, published.table) is CodeBase.FEDNTD
    mixed = by_fedntd and not tested_by_clients(published)
    return {"test-batch-size": FEDNTD_TEST_BATCH if mixed else FEDBABU_TEST_BATCH}


def batch_order_keys(published: Published) -> Keys:
    """Return FedDOR's order of images, which the paper does not state."""
    if published.paper.name != "feddor":
        return {}
    published.notes.append(SAME_BATCHES)
    return {"local-shuffle": False}


def spread_over_seeds(paper: Paper, table: Table) -> str:
    """Return what a table's spreads over seeds cover, if it is less than a seed determines here."""
    if paper.name == "feddor":
        return FEDORGP_SPREAD
    return FEDNTD_SPREAD if code_base(paper, table) is CodeBase.FEDNTD else ""


def published_test_note(paper: Paper, table: Table) -> str:
    """Return what is known of the test images of a table's accuracies, if they differ from ours."""
    by_fedntd = paper.name == "fedntd" and code_base(paper, table) is CodeBase.FEDNTD
    return AUGMENTED_TEST if by_fedntd else ""
