"""FedProto's client: FedTGP's client that also uploads counts."""

from typing import Any

from clients.fedtgp import FedTGPClient


class FedProtoClient(FedTGPClient):
    """FedTGP's client that uploads image counts if the server weighs by them (FedProto, eq. 6)."""

    def __init__(self, *args: Any, weighting: str, **kwargs: Any) -> None:
        """Prepare a client; `weighting` is "count" or "uniform", which uploads no counts."""
        super().__init__(*args, **kwargs)
        self.counted = weighting == "count"
