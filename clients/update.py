"""What one round of a client's local work gives: one object, from the client to the message."""

from dataclasses import dataclass, field

from clients.training.arrays import Arrays
from clients.training.local_training import TrainingResult


@dataclass
class Update:
    """The result of one client's round, by what becomes of it."""

    shared: Arrays  # the tensors that the server averages, in the order in which they came
    training: TrainingResult  # its loss, steps, images and seconds
    examples: int  # the client's weight where clients count by size
    groups: dict[str, Arrays] = field(default_factory=dict)  # further means, by record name
    uploads: Arrays = field(default_factory=dict)  # what the server takes from each client alone
    state: Arrays = field(default_factory=dict)  # what the client keeps for its next round
    extra: float = 0.0  # the method's own number in the report
    squared_distance: float = 0.0  # ||w_i - w_g||^2 over the trained parameters that travel
    reinitialised: bool = False  # whether what the client had kept was lost

    def bytes_sent(self) -> int:
        """Return the bytes of all arrays that travel to the server."""
        sent = [self.shared, *self.groups.values(), self.uploads]
        return sum(array.nbytes for arrays in sent for array in arrays.values())
