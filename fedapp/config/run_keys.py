"""The run-config keys that every method shares, typed, with their limits and their meaning.

A method's own keys are declared in its row. The description of a field is its help text.
"""

from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedapp.core.keys import Auto, Count, Positive, Threads, Unsigned, Weight

T = TypeVar("T")
LOCAL, KEEPING, PLACE = "local", "keeping", "place"
# Marks of keys in which a node may differ from the server, and a resumed run from what it was.
Local = Annotated[T, LOCAL]  # where, how fast and how far a run goes
Place = Annotated[T, LOCAL, PLACE]  # of these, what says something of the machine alone
Keeping = Annotated[T, KEEPING]  # how its record is kept, which changes none of its results


def kebab(name: str) -> str:
    """Return a field's name as a run-config key."""
    return name.replace("_", "-")


class RunKeys(BaseModel):
    """Data, clients, local training, evaluation, files and failures."""

    model_config = ConfigDict(
        alias_generator=kebab,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
    )

    method: str = Field("feddr+", description="a row of the method table, see `fedapp methods`")
    dataset: str = Field("digits", description="a data set, see `fedapp datasets`")
    data_dir: Place[str] = Field("", description="folder that holds the data set")
    download: Keeping[bool] = Field(
        False, description="fetch the data set if it is not in data-dir"
    )
    class_list: str = Field(
        "", description="file with imagenet100's classes, in data-dir; empty: the first 100"
    )
    classes: str = Field(
        "", description="partition own: the class names of all hosts, by label: 'cat dog'"
    )
    decode_threads: Keeping[Threads] = Field(
        0, description="threads of a process that decode imagenet100; 0: one per core, up to 8"
    )
    model: str = Field("auto", description="backbone; auto: the papers' choice for the data set")
    bn: Literal["batch", "running", "group"] = Field("batch", description="kind of BatchNorm")
    bottleneck: Unsigned = Field(
        0, description="features of a linear layer before the head, such as 2; 0: no such layer"
    )
    bottleneck_layers: Literal[1, 2] = Field(
        1, description="1: that layer alone; 2: a hidden one and ReLU before it, as MOON's code has"
    )
    initial_model: str = Field(
        "",
        description="weights to start from: a file, a run directory, or imagenet; empty: random",
    )
    normalisation: Literal["auto", "dataset", "symmetric"] = Field(
        "auto", description="of images: the data set's, or to -1..1; auto: -1..1 for pooled data"
    )
    partition: str = Field(
        "shards",
        description="how clients share the data: shards, lda, iid, stratified, unbalanced, "
        "pathological, dirichlet; own: every client has a data-dir of its own",
    )
    shards: Count = Field(2, description="shards (of one class each) per client")
    alpha: Annotated[float, Field(gt=0, le=1e9)] = Field(
        0.1, description="concentration of the LDA and Dirichlet partitions"
    )
    lda_cap: bool = Field(
        True, description="LDA: clients with an average share get nothing of further classes"
    )
    classes_per_client: Count | Auto = Field(
        "auto", description="of the pathological partition; auto: the papers' for the data set"
    )
    unbalanced_sigma: Annotated[float, Field(ge=0, le=10)] = Field(
        1.0, description="spread of the unbalanced partition's log-normal sizes; 0: equal"
    )
    pool_data: bool | Auto = Field(
        "auto",
        description="divide training and test images together, then 75/25 per client; "
        "auto: for pathological and dirichlet",
    )
    partition_seed: Unsigned | Auto = Field(
        "auto", description="seed of the partition; auto: seed, or 1 for pooled data"
    )
    stochastic_every: Unsigned = Field(
        0, description="rounds after which every client lacks another one of its classes; 0: never"
    )
    stochastic_from: Count = Field(1, description="first round in which a class is lacking")
    num_clients: Count = Field(20, description="number of clients (not of nodes)")
    participation: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="fraction of the clients that train in a round"
    )
    num_rounds: Local[Count] = Field(120, description="number of rounds")
    local_epochs: Count | Auto = Field("auto", description="epochs a client trains per round")
    batch_size: Count | Auto = Field("auto", description="local mini-batch size")
    drop_last: bool | Auto = Field(
        "auto",
        description="leave out an epoch's last batch if it is not full; auto: with own models only",
    )
    local_shuffle: bool = Field(True, description="mix a client's images anew in every epoch")
    lr: Positive | Auto = Field("auto", description="learning rate of round 1")
    lr_schedule: Literal["auto", "constant", "step", "exponential", "cosine"] = Field(
        "auto",
        description="step: x0.1 at R/2 and 3R/4; exponential: x0.99 per round; cosine: half a "
        "wave from lr to 0",
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | Auto = Field(
        "auto", description="of local SGD; auto: 0.9, or 0 for clients with models of their own"
    )
    weight_decay: Weight | Auto = Field(
        "auto", description="of local SGD; auto: 1e-5, or 0 for clients with models of their own"
    )
    clip_norm: Weight = Field(0.0, description="gradient norm limit; 0: none")
    augmentation: str = Field(
        "auto", description="none, or words of: crop crop-reflect rrc flip cutout"
    )
    regulariser: str = Field(
        "auto",
        description="prox kd ntd ntd-mse kd-ntd ld moon fd norm on a base; auto: the method's",
    )
    beta: Weight | Auto = Field("auto", description="weight of base loss against regulariser")
    mu: Weight | Auto = Field("auto", description="weight of the proximal term")
    tau: Positive | Auto = Field(
        "auto", description="temperature of a regulariser; of spherefed-ce: scale of its logits"
    )
    weights: Literal["size", "uniform"] = Field(
        "size", description="how client models are averaged"
    )
    seed: Unsigned = Field(0, description="of everything random")
    device: Local[str] = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["fp32", "tf32", "bf16", "bf16-teacher"] = Field(
        "fp32", description="of local training; bf16-teacher: of the frozen models beside it only"
    )
    threads: Place[Threads] = Field(
        1, description="CPU threads of a client process; 0: torch's choice"
    )
    eval_every: Local[Count] = Field(
        1, description="rounds between evaluations on the global test set"
    )
    test_batch_size: Annotated[int, Field(ge=2)] | Auto = Field(
        "auto",
        description="test images per batch where BatchNorm normalises by the batch (bn='batch'), "
        "so that accuracy depends on it; auto: the paper's, 50 or 128",
    )
    client_eval_every: Local[Unsigned] = Field(
        0, description="rounds between evaluations on every client's own test split; 0: never"
    )
    checkpoint_every: Keeping[Unsigned] = Field(
        0, description="rounds between checkpoints; 0: none"
    )
    checkpoint_keep: Keeping[Unsigned] = Field(2, description="newest checkpoints to keep; 0: all")
    resume: Keeping[str] = Field("", description="run directory to continue, or auto: run-name's")
    output_dir: Keeping[str] = Field("runs", description="where run directories are made")
    run_name: Keeping[str] = Field(
        "", description="name of the run directory; empty: method, data, time"
    )
    analyses: Keeping[str] = Field("", description="measures of the papers, see `fedapp measures`")
    analysis_every: Keeping[Unsigned] = Field(
        0, description="rounds between measures of models; 0: after the last round only"
    )
    analysis_clients: Keeping[Unsigned] = Field(
        10, description="most clients of a round that are trained again to be measured; 0: all"
    )
    tracker: Keeping[Literal["none", "tensorboard", "wandb", "mlflow"]] = Field(
        "none", description="where else metrics go; metrics.jsonl has them always"
    )
    callbacks: Keeping[str] = Field(
        "", description="own callbacks: installed names, or module:Class, separated by spaces"
    )
    extension_keys: str = Field(
        "", description="keys of installed extensions, for plain flwr run: 'own-mu=0.1 own-part=3'"
    )
    round_timeout: Keeping[Positive] = Field(
        3600.0, description="seconds a round waits for its nodes"
    )
    min_replies: Local[Count] = Field(
        1, description="fewest usable client updates that make a round"
    )
    tolerate_failures: Local[bool] = Field(False, description="go on without clients that fail")
    state_dir: Keeping[str] = Field(
        "", description="folder of what clients keep; empty: the user's cache folder"
    )
    keep_state: Keeping[bool] = Field(
        False, description="leave clients' states in place after the run"
    )
    state_missing: Local[Literal["error", "reinit"]] = Field(
        "error", description="when a client's state is lost: end the round, or start it afresh"
    )
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "mean", description="how client models become one; robust ones keep each model apart"
    )
    robust_malicious: Unsigned = Field(0, description="clients that krum expects to lie")
    robust_trim: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.2, description="share of values that trimmed-mean cuts at each end"
    )
    dp_clip: Weight = Field(
        0.0, description="differential privacy: largest norm of an update; 0: off"
    )
    dp_noise: Weight = Field(0.0, description="differential privacy: noise multiplier")


def marked_keys(cls: type[BaseModel], *marks: str) -> frozenset[str]:
    """Return the run-config keys that carry one of the marks."""
    fields = cls.model_fields.items()
    return frozenset(
        kebab(name) for name, field in fields if any(mark in field.metadata for mark in marks)
    )


def sentence(cls: type[BaseModel], error: ValidationError) -> str:
    """Say the first thing that is wrong with a configuration in one sentence."""
    first = error.errors()[0]
    key = str(first["loc"][0])
    value = first["input"]
    message = first["msg"].removeprefix("Input should be ").removeprefix("a valid ")
    if (most := first.get("ctx", {}).get("le")) is not None:
        message = f"less than or equal to {most:g}"  # not a number of 30 digits
    auto = " or 'auto'" if any("auto" in str(e.get("ctx", "")) for e in error.errors()) else ""
    help_text = cls.model_fields[key.replace("-", "_")].description
    return f"run-config key '{key}' is {value!r} but must be {message}{auto} ({help_text})"
