"""How long clients that train alone do so, and how often models of the clients' own are evaluated.

Both papers that have such tables, FedDr+ and FedFN, made them with the FedBABU authors' code.
"""

from fedapp.experiments.papers.protocol import Keys, Published, method_of
from fedapp.methods.row import CLIENT_MEAN
from fedapp.methods.table import METHODS

# How long clients that train alone do so is in no paper: as in the code base that both name.
ALONE: Keys = {
    "num-rounds": 160, "participation": 1.0, "local-epochs": 1, "weight-decay": 0.0,
    "eval-every": 20,
}  # fmt: skip
EVALUATIONS = 4  # in a run: each asks all clients, and FedRep's train for it


def personal_keys(published: Published) -> Keys:
    """Return the length of training alone, or the rounds in which personal models are evaluated.

    A run's last round is always evaluated, whatever `eval-every` is.
    """
    row = METHODS[method_of(published)[0]]
    if row.exchange.sends == "nothing" and row.personal is None:
        published.notes.append(
            "clients that train alone: 160 epochs, x0.1 at 80 and 120, not stated"
        )
        return ALONE
    if row.accuracy == CLIENT_MEAN and not row.fine_tuned:
        return {"eval-every": int(published.number("rounds") or 0) // EVALUATIONS}
    return {}
