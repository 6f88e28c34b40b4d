"""The result of one client's local training in one round, as one object."""

from dataclasses import dataclass, field

from clients.arrays import Arrays
from clients.training.local_training import TrainingResult


@dataclass
class Update:
    """The result of one client's round, grouped by its use."""

    shared: Arrays  # the tensors that the server averages, in the received order
    training: TrainingResult  # its loss, steps, images and seconds
    examples: int  # the client's weight if clients are weighted by size
    groups: dict[str, Arrays] = field(default_factory=dict)  # further means, by record name
    uploads: Arrays = field(default_factory=dict)  # what the server keeps per client
    state: Arrays = field(default_factory=dict)  # the client's state for its next round
    effective_steps: float = 0.0  # FedNova's a_i, for the report
    squared_distance: float = 0.0  # ||w_i - w_g||^2 over the trained parameters that are sent
    reinitialised: bool = False  # whether the client's earlier state was lost
