"""A loss of one's own, for every client: the focal loss (Lin et al. 2017, equation 4).

fedapp run --extension examples/own_loss.py -c "method='focal' num-rounds=20"
"""

import torch

from clients.training.objective import BASE_LOSSES, Step
from fedapp.methods import METHODS, LossSpec, Method

GAMMA = 2.0


def focal(step: Step) -> torch.Tensor:
    """Return the mean of -(1 - p_y)^gamma log p_y over a batch; step.logits [B, C]."""
    log_p = step.logits.log_softmax(1).gather(1, step.labels[:, None]).squeeze(1)
    return (-((1 - log_p.exp()) ** GAMMA) * log_p).mean()


BASE_LOSSES["focal"] = focal
METHODS["focal"] = Method("Focal loss", "Lin et al. 2017, equation 4", loss=LossSpec("focal"))
