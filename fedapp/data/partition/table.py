"""THE TABLE OF SPLITS: the partitions of a labelled data set over clients, by name.

Every published table uses one of these splits. They are pure functions of the labels and a seeded
generator. Those for one shared model are in `splits`, those for personal models in
`personal_splits`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedapp.core.errors import unknown
from fedapp.data.partition import personal_splits, splits
from fedapp.data.partition.assignment import Indices, Partition
from fedapp.data.partition.client_folders import ClientFolders, by_folder
from fedapp.data.partition.split_file import read_split

__all__ = ["PARTITIONS", "Partition", "PartitionKind", "PartitionSpec", "make_partition"]


@dataclass(frozen=True)
class PartitionSpec:
    """The parameters of a split; each kind uses some of them.

    Attributes:
        own: the client whose own data the labels belong to; None on the server.
        pooled: whether both label arrays are that of all samples. Each client's part is divided at
            random into 75 % for training and 25 % for testing, unless `file` lists the test images.
        class_names: by label, for errors and notes; empty: they have the labels.
        folders: the images of each client, if the data set has a folder for each.
    """

    num_clients: int
    shards: int = 2
    alpha: float = 0.1
    classes_per_client: int = 2
    sigma: float = 1.0
    lda_cap: bool = True
    own: int | None = None
    file: Path = Path()
    pooled: bool = False
    class_names: tuple[str, ...] = ()
    folders: ClientFolders | None = None


@dataclass(frozen=True)
class PartitionKind:
    """One row of the table: a one-line description of the split and the function that draws it.

    With `pools` a run by default pools training and test images before it assigns them. `key` is
    the run-config key of the split's main parameter, "" if there is none. With `given` each client
    has images of its own from the start, which are mapped to -1..1 whatever their statistics.
    """

    description: str
    draw: Callable[[Indices, Indices, PartitionSpec, np.random.Generator], Partition]
    pools: bool = False
    key: str = ""
    given: bool = False


PARTITIONS: dict[str, PartitionKind] = {
    "iid": PartitionKind(
        "equal random parts",
        lambda train, test, spec, rng: splits.iid(train, test, spec.num_clients, rng),
    ),
    "stratified": PartitionKind(
        "equal random parts with every class equally often",
        lambda train, test, spec, rng: splits.iid(
            train, test, spec.num_clients, rng, stratified=True
        ),
    ),
    "shards": PartitionKind(
        "`shards` one-class shards per client",
        lambda train, test, spec, rng: splits.shards(
            train, test, spec.num_clients, spec.shards, rng, spec.class_names
        ),
        key="shards",
    ),
    "lda": PartitionKind(
        "class proportions from a Dirichlet distribution with concentration `alpha`",
        lambda train, test, spec, rng: splits.lda(
            train, test, spec.num_clients, spec.alpha, rng, balance_cap=spec.lda_cap
        ),
        key="alpha",
    ),
    "unbalanced": PartitionKind(
        "random parts of log-normal sizes with deviation `unbalanced-sigma`",
        lambda train, test, spec, rng: splits.unbalanced(
            train, test, spec.num_clients, spec.sigma, rng
        ),
        key="unbalanced-sigma",
    ),
    "own": PartitionKind(
        "every client has a data folder on its own host, the server one to test on",
        lambda train, test, spec, rng: splits.own(train, test, spec.num_clients, spec.own),
        given=True,
    ),
    "folders": PartitionKind(
        "every client has a folder in data-dir, as on its own host with own",
        lambda train, test, spec, rng: by_folder(spec.folders),
        given=True,
    ),
    "pathological": PartitionKind(
        "`classes-per-client` classes per client, of uneven sizes, 75 % of them to train on",
        lambda train, test, spec, rng: personal_splits.pathological(
            train, test, spec.num_clients, spec.classes_per_client, rng, spec.class_names
        ),
        pools=True,
        key="classes-per-client",
    ),
    "dirichlet": PartitionKind(
        "as lda, for clients with a model of their own: 128 samples or more, 75 % to train on",
        lambda train, test, spec, rng: personal_splits.dirichlet(
            train, test, spec.num_clients, spec.alpha, rng
        ),
        pools=True,
        key="alpha",
    ),
    "file": PartitionKind(
        "the lists of image numbers in `partition-file`, as `fedapp partition --save` writes them",
        lambda train, test, spec, rng: read_split(
            spec.file, train, test, spec.num_clients, spec.pooled, rng
        ),
        key="partition-file",
    ),
}


def make_partition(
    kind: str,
    train_labels: Indices,
    test_labels: Indices,
    spec: PartitionSpec,
    seed: int | np.random.SeedSequence | np.random.Generator,
) -> Partition:
    """Draw the split named `kind`; the same arguments give the same split on every machine.

    Raises:
        UserError: unknown kind, or a split that these labels do not allow.
    """
    if kind not in PARTITIONS:
        raise unknown("partition", kind, PARTITIONS)
    rng = np.random.default_rng(seed)
    drawn = PARTITIONS[kind].draw(train_labels, test_labels, spec, rng)
    if not spec.pooled or drawn.pooled:
        return drawn
    train, test = personal_splits.hold_out(drawn.train, rng)
    return replace(drawn, train=train, test=test, pooled=True)
