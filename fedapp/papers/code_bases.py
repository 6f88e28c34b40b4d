"""What follows from the code base that a table was made with, where the papers do not say it.

FedDr+ names two: FedNTD's for its tables 3 and 4, FedBABU's for the others. FedFN builds on
FedBABU's.
"""

from fedapp.models.backbones import BACKBONES
from fedapp.papers.protocol import MODELS, Keys, Published
from fedapp.settings import FEDBABU_TEST_BATCH, FEDNTD_TEST_BATCH

# Beginnings of the ids of the tables made with FedNTD's code.
_FEDNTD_TABLES = {"fedntd": ("",), "feddr+": ("table3-", "table4-")}


def made_with_fedntd_code(published: Published) -> bool:
    """Return whether a table was made with FedNTD's code; the others with FedBABU's."""
    return published.table.id.startswith(_FEDNTD_TABLES.get(published.paper.name, ()))


def code_base_keys(published: Published) -> Keys:
    """Return the size of test batches, where BatchNorm makes the accuracy depend on it."""
    model = str(published.setting.get("model"))
    backbone = BACKBONES.get(MODELS.get(model, model))
    if backbone is None or not backbone.has_batch_norm or published.paper.name == "feddor":
        return {}
    ntd = made_with_fedntd_code(published)
    return {"test-batch-size": FEDNTD_TEST_BATCH if ntd else FEDBABU_TEST_BATCH}
