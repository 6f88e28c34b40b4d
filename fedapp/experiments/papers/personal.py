"""The length of local-only training, and the frequency of evaluations of personal models.

Both papers with such tables, FedDr+ and FedFN, used the FedBABU authors' code.
"""

from fedapp.experiments.papers.protocol import Keys, Published, method_of
from fedapp.methods.row import CLIENT_MEAN
from fedapp.methods.table import METHODS

# No paper states the length of local-only training: these are the values of that code base.
ALONE: Keys = {
    "num-rounds": 160, "participation": 1.0, "local-epochs": 1, "weight-decay": 0.0,
    "eval-every": 20,
}  # fmt: skip
EVALUATIONS = 4  # per run: each involves all clients, and FedRep's clients train for it


def personal_keys(published: Published) -> Keys:
    """Return the length of local-only training, or the rounds that evaluate personal models.

    A run's last round is always evaluated.
    """
    row = METHODS[method_of(published)[0]]
    trains_alone = row.exchange.sends == "nothing" and not row.exchange.also_sends
    if trains_alone and row.heterogeneous is None:
        published.notes.append(
            "clients that train alone: 160 epochs, x0.1 at 80 and 120, batch 50, momentum 0.9 are "
            "not stated"
        )
        return ALONE
    if row.accuracy == CLIENT_MEAN and not row.fine_tuned:
        return {"eval-every": int(published.number("rounds") or 0) // EVALUATIONS}
    return {}
