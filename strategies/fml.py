"""The strategy of FML (Shen et al. 2020): the mean of the shared small models."""

from strategies.fedavg import FedAvg


class FML(FedAvg):
    """Uniform mean of the meme models' parameters (Shen et al. 2020, arXiv 2006.16765)."""

    uniform = True
