"""FedProto's client, which is also FedTGP's but for the counts."""

from typing import Any

from clients.fedtgp import FedTGPClient


class FedProtoClient(FedTGPClient):
    """The same, with the numbers of images if the server weighs by them (FedProto, equation 6)."""

    def __init__(self, *args: Any, weighting: str = "count", **kwargs: Any) -> None:
        """Prepare a client; `weighting` is "count" or "uniform", for which counts stay away."""
        super().__init__(*args, **kwargs)
        self.counted = weighting == "count"
