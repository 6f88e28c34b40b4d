"""fedapp: federated learning on heterogeneous data, as a Flower app."""

__version__ = "0.1.0"
