"""The strategy of FD (Jeong et al. 2018): mean logits of each class."""

from strategies.prototypes.rounds import PrototypeRounds
from strategies.prototypes.uploads import Table, Upload, class_means


class FD(PrototypeRounds):
    """Plain means over clients of each class's mean logits (Jeong et al. 2018)."""

    def update(self, uploads: list[Upload]) -> Table:
        """Return the means of this round."""
        return class_means(uploads)
