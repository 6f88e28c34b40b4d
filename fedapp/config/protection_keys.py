"""The run-config keys about failures, malicious clients, and what the server may see."""

from typing import Annotated, Literal

from pydantic import Field

from fedapp.config.key_groups import Keys, Local, Recording
from fedapp.core.keys import Auto, Count, Positive, Unsigned, Weight


class RobustnessKeys(Keys):
    """Failures and malicious clients."""

    round_timeout: Recording[Positive] = Field(
        3600.0, description="seconds that a round waits for its nodes"
    )
    min_replies: Local[Count] = Field(
        1, description="smallest number of usable client updates that a round needs"
    )
    tolerate_failures: Local[bool] = Field(False, description="continue without clients that fail")
    state_missing: Local[Literal["error", "reinit"]] = Field(
        "error", description="if a client's state is lost: the client fails, or starts afresh"
    )
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "mean",
        description="rule that combines client models; all but mean get each model by itself",
    )
    robust_malicious: Unsigned = Field(0, description="malicious clients that krum expects")
    robust_trim: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.2, description="fraction of values that trimmed-mean removes at each end"
    )
    attackers: Unsigned = Field(
        0, description="number of clients, drawn from the seed, that are made malicious for a test"
    )
    attack: Literal["sign-flip", "noise", "label-flip"] = Field(
        "sign-flip",
        description="what attackers do: send their update with the opposite sign, send noise, or "
        "train on wrong labels",
    )
    attack_scale: Positive = Field(
        1.0, description="length of what attackers send; 1: that of their honest update"
    )


class PrivacyKeys(Keys):
    """Secure aggregation and differential privacy."""

    secure_aggregation: Literal["off", "pairwise"] = Field(
        "off", description="pairwise: masks hide each node's update from the server"
    )
    secure_threshold: Annotated[float, Field(gt=0.5, le=1)] = Field(
        2 / 3, description="share of a round's nodes that must stay until its masks are removed"
    )
    dp_clip: Weight = Field(
        0.0, description="differential privacy: largest norm of a client's update; 0: off"
    )
    dp_noise: Weight | Auto = Field(
        "auto",
        description="differential privacy: noise multiplier; auto: what dp-epsilon needs, or none",
    )
    dp_epsilon: Weight = Field(
        0.0, description="differential privacy: the run ends before it spends more; 0: no limit"
    )
    dp_delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="differential privacy: delta at which epsilon is counted"
    )
