"""The run-config keys that all methods share, with types, limits and help texts.

The row of a method declares the method's own keys. A field's description is the key's help text.
"""

from typing import Annotated, Literal

from pydantic import Field

from fedapp.config.key_groups import Keys, Local, Machine, Recording
from fedapp.config.partition_keys import PartitionKeys
from fedapp.config.protection_keys import PrivacyKeys, RobustnessKeys
from fedapp.core.keys import Auto, Count, FeaturesOrNone, Positive, Threads, Unsigned, Weight


class MethodKeys(Keys):
    """The method and what every method may be combined with."""

    method: str = Field("feddr+", description="name of a method, see `fedapp methods`")
    regulariser: str = Field(
        "auto",
        description="none, prox, kd, ntd, ntd-mse, kd-ntd, ld, moon, fd, norm or decorr, added to "
        "a base method; auto: the method's own",
    )
    beta: Weight | Auto = Field(
        "auto",
        description="beta * base loss + (1 - beta) * regulariser; in methods that add the "
        "regulariser: its weight",
    )
    mu: Weight | Auto = Field(
        "auto", description="weight of the regulariser of fedprox, moon or fedfr"
    )
    tau: Positive | Auto = Field(
        "auto", description="temperature of the regulariser; in spherefed-ce: scale of the logits"
    )
    weights: Literal["size", "uniform"] = Field(
        "size", description="mean of client models: weighted by numbers of examples, or uniform"
    )
    upload_bits: Literal[2, 4, 8, 32] = Field(
        32,
        description="bits in which a client sends each value of its update, rounded at random and "
        "unbiased; 32: it sends its model as it is",
    )
    extension_keys: str = Field(
        "", description="with flwr run: keys of installed extensions: 'own-mu=0.1 own-part=3'"
    )


class DataKeys(Keys):
    """The data set and how its images reach the model."""

    dataset: str = Field("digits", description="name of a data set, see `fedapp datasets`")
    data_dir: Machine[str] = Field("", description="folder that holds the data set")
    download: Recording[bool] = Field(
        False, description="download the data set if it is not in data-dir"
    )
    class_list: str = Field(
        "", description="file in data-dir that lists imagenet100's classes; empty: the first 100"
    )
    classes: str = Field(
        "",
        description="partition own or folders: names of all classes in the order of their labels: "
        "'cat dog'; empty, with folders: all class folders by name",
    )
    image_size: int = Field(
        0,
        ge=0,
        le=1024,
        description="scale the central square of each image to this side in pixels; 0: images are "
        "squares of one size",
    )
    test_share: float = Field(
        0.0,
        ge=0.0,
        le=0.9,
        description="share of each class to hold out for tests, for data without test images; 0: "
        "the data set has test images",
    )
    validation_share: Annotated[float, Field(ge=0, le=0.9)] = Field(
        0.0,
        description="share of each class of the training images that takes the place of the test "
        "images, to choose settings by; 0: the test images are used",
    )
    decode_threads: Recording[Threads] = Field(
        0, description="threads per process that decode imagenet100; 0: one per core, at most 8"
    )
    normalisation: Literal["auto", "dataset", "symmetric"] = Field(
        "auto",
        description="normalisation of the images: dataset: by the data set's statistics; "
        "symmetric: to -1..1; auto: symmetric for pooled data, and with dp-noise where a data set "
        "has no published numbers, else dataset",
    )
    augmentation: str = Field(
        "auto", description="none, or one or more of: crop crop-reflect rrc flip cutout"
    )


class ModelKeys(Keys):
    """The model that the clients train."""

    model: str = Field("auto", description="backbone; auto: the papers' choice for the data set")
    bn: Literal["batch", "running", "group"] = Field(
        "batch",
        description="batch: BatchNorm by batch statistics, also in tests; running: tests use "
        "running statistics; group: GroupNorm",
    )
    bottleneck: FeaturesOrNone = Field(
        0, description="number of features of a linear layer before the head; 0: no such layer"
    )
    bottleneck_layers: Literal[1, 2] = Field(
        1, description="1: the bottleneck; 2: a hidden layer and ReLU before it, as in MOON's code"
    )
    initial_model: str = Field(
        "",
        description="initial weights: a file, a run directory, or imagenet; empty: random",
    )


class TrainingKeys(Keys):
    """Rounds, local training and the machine."""

    num_rounds: Local[Count] = Field(120, description="number of rounds")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="fraction of the clients that train in each round"
    )
    local_epochs: Count | Auto = Field("auto", description="epochs of a client per round")
    straggler_share: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="probability that a client is slow in a round and trains fewer epochs: a "
        "random number from straggler-epochs to local-epochs",
    )
    straggler_epochs: Count = Field(1, description="fewest epochs of a slow client")
    batch_size: Count | Auto = Field("auto", description="images per local training batch")
    drop_last: bool | Auto = Field(
        "auto",
        description="drop incomplete last batches of epochs; auto: if clients have own models",
    )
    local_shuffle: bool = Field(True, description="shuffle a client's images in every epoch")
    lr: Positive | Auto = Field("auto", description="learning rate of round 1")
    lr_schedule: Literal["auto", "constant", "step", "exponential", "cosine"] = Field(
        "auto",
        description="over R rounds: step: x0.1 at R/2 and 3R/4; exponential: x0.99 per round; "
        "cosine: half a cosine wave from lr to 0; auto: the paper's",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | Auto = Field(
        "auto", description="momentum of local SGD; auto: 0.9, or 0 if clients have own models"
    )
    weight_decay: Weight | Auto = Field(
        "auto", description="weight decay of local SGD; auto: 1e-5, or 0 if clients have own models"
    )
    clip_norm: Weight = Field(0.0, description="largest norm of local gradients; 0: no limit")
    seed: Unsigned = Field(0, description="seed of the run's random numbers")
    device: Local[str] = Field("auto", description="device that trains: auto, cpu, cuda or cuda:N")
    precision: Literal["fp32", "tf32", "bf16", "bf16-teacher"] = Field(
        "fp32", description="precision of local training; bf16-teacher: bf16 for frozen teachers"
    )
    cuda_graphs: Local[bool] = Field(
        False, description="on a GPU, record a training step as a CUDA graph and replay it"
    )
    threads: Machine[Threads] = Field(
        1, description="CPU threads of a client process; 0: PyTorch's default"
    )


class EvaluationKeys(Keys):
    """What is tested and measured, and when."""

    eval_every: Local[Count] = Field(
        1, description="rounds between evaluations on the global test set"
    )
    test_batch_size: Annotated[int, Field(ge=2)] | Auto = Field(
        "auto",
        description="images per test batch, with BatchNorm and bn='batch' only, where accuracy "
        "depends on it; auto: the paper's, 50 or 128",
    )
    client_eval_every: Local[Unsigned] = Field(
        0, description="rounds between evaluations on all clients' own test splits; 0: never"
    )
    analyses: Recording[str] = Field(
        "", description="the papers' measures, separated by spaces; see `fedapp measures`"
    )
    analysis_every: Recording[Unsigned] = Field(
        0, description="rounds between measurements of models; 0: after the last round only"
    )
    analysis_clients: Recording[Unsigned] = Field(
        10, description="largest number of a round's clients that measures train again; 0: all"
    )
    class_statistics: Recording[bool] = Field(
        False,
        description="at the end, get number, mean and scatter of each client's features by class, "
        "with which `fedapp calibrate` retrains the head where no client's data are",
    )


class OutputKeys(Keys):
    """What a run writes, and where."""

    output_dir: Recording[str] = Field("runs", description="parent folder of run directories")
    run_name: Recording[str] = Field(
        "", description="name of the run directory; empty: method, data set and time"
    )
    checkpoint_every: Recording[Unsigned] = Field(
        0,
        description="rounds between checkpoints (at most five minutes; one more if a run ends "
        "early); 0: none",
    )
    checkpoint_keep: Recording[Unsigned] = Field(
        2, description="number of newest checkpoints to keep; 0: all"
    )
    keep_best: Recording[bool] = Field(
        False,
        description="write best.safetensors, the global model with the highest accuracy, at every "
        "test that finds one",
    )
    resume: Recording[str] = Field(
        "", description="run directory to continue; auto: the one that run-name names"
    )
    tracker: Recording[Literal["none", "tensorboard", "wandb", "mlflow"]] = Field(
        "none", description="tracker that also receives the metrics; metrics.jsonl always has them"
    )
    callbacks: Recording[str] = Field(
        "", description="own callbacks, separated by spaces: installed names or module:Class"
    )
    state_dir: Recording[str] = Field(
        "",
        description="folder of client states; empty: $FEDAPP_STATE, or the cache folder's name "
        "with -state, such as ~/.cache/fedapp-state",
    )
    keep_state: Recording[bool] = Field(False, description="keep the clients' states after the run")


KEY_GROUPS: dict[str, type[Keys]] = {
    "method": MethodKeys,
    "data": DataKeys,
    "partition": PartitionKeys,
    "model": ModelKeys,
    "training": TrainingKeys,
    "evaluation": EvaluationKeys,
    "output": OutputKeys,
    "robustness": RobustnessKeys,
    "privacy": PrivacyKeys,
}


# Pydantic lists the fields of the last base class first.
class RunKeys(
    PrivacyKeys,
    RobustnessKeys,
    OutputKeys,
    EvaluationKeys,
    TrainingKeys,
    ModelKeys,
    PartitionKeys,
    DataKeys,
    MethodKeys,
):
    """All keys that do not belong to one method, in the order of `KEY_GROUPS`."""
