"""The run-config keys about what images each client has."""

from typing import Annotated, Literal

from pydantic import Field

from fedapp.config.key_groups import Keys, Local
from fedapp.core.keys import Auto, Count, Unsigned


class PartitionKeys(Keys):
    """How the images are divided among the clients."""

    num_clients: Count = Field(20, description="number of clients (not of nodes)")
    new_clients: Unsigned = Field(
        0,
        description="number of clients, the last ones, that never train; their accuracy is apart",
    )
    partition: str = Field(
        "shards",
        description="how the images are divided among the clients: shards, lda, iid, stratified, "
        "unbalanced, pathological, dirichlet; file: as partition-file lists them; own: "
        "every client has its own data-dir; folders: every client has a folder in data-dir",
    )
    partition_file: Local[str] = Field(
        "", description="partition file: JSON file of each client's images, absolute or in data-dir"
    )
    shards: Count = Field(2, description="number of shards (of one class each) per client")
    alpha: Annotated[float, Field(gt=0, le=1e9)] = Field(
        0.1, description="concentration of the LDA and Dirichlet partitions"
    )
    lda_cap: bool = Field(
        True, description="LDA: clients with an average share of images get no further classes"
    )
    classes_per_client: Count | Auto = Field(
        "auto", description="pathological partition: classes per client; auto: the papers' number"
    )
    unbalanced_sigma: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="unbalanced partition: sigma of the log-normal sizes; 0: equal sizes"
    )
    pool_data: bool | Auto = Field(
        "auto",
        description="pool training and test images, divide them among the clients, and split each "
        "part 75/25; auto: for pathological and dirichlet",
    )
    partition_seed: Unsigned | Auto = Field(
        "auto", description="seed of the partition; auto: the run's seed, or 1 for pooled data"
    )
    imbalance_factor: Annotated[float, Field(ge=1, le=1e6)] = Field(
        1.0,
        description="long-tailed training data: the first class keeps so many times as many images "
        "as the last; 1: all images",
    )
    feature_skew: Literal["none", "rotation", "noise", "brightness"] = Field(
        "none",
        description="images that differ from client to client: turned by 0, 90, 180 or 270 "
        "degrees, noisier, or brighter; the global test images stay as they are",
    )
    feature_skew_level: Annotated[float, Field(gt=0, le=1)] = Field(
        0.5,
        description="noise: standard deviation at the last client, pixels being 0 to 1; "
        "brightness: factors from 1 - level to 1 + level",
    )
    stochastic_every: Unsigned = Field(
        0, description="rounds after which the class that every client lacks is drawn anew; 0: none"
    )
    stochastic_from: Count = Field(1, description="first round in which clients lack a class")
