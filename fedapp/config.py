"""RunConfig: every run-config key, typed, with its limits and its meaning.

`[tool.flwr.app.config]` in pyproject.toml lists the same keys with the same defaults (a test
compares them). Whatever is wrong with a configuration is said in one sentence before anything
starts. Keys at "auto" take the method's or the paper's value in `RunConfig.resolve`.
"""

import difflib
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedapp.config_input import kebab, sentence, whole_floats
from fedapp.errors import UserError
from fedapp.methods import FALLBACKS, check_regulariser, find_method
from fedapp.settings import MODEL_OF, find_setting, usual_name
from fedapp.tuned import blend_settings

Auto = Literal["auto"]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Unsigned = Annotated[int, Field(ge=0)]
Weight = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(gt=0, le=1)]

# Keys that say where and how fast a run happens, not what it computes: a node may differ in them.
_LOCAL_KEYS = {"data-dir", "download", "output-dir", "run-name", "resume", "device", "threads"}
_LOCAL_KEYS |= {"eval-every", "checkpoint-every", "client-eval-every", "analyses", "tracker"}
_LOCAL_KEYS |= {"decode-threads", "round-timeout", "min-replies", "tolerate-failures", "num-rounds"}
_LOCAL_KEYS |= {"state-dir", "keep-state", "state-missing"}
_LOCAL_KEYS |= {"analysis-every", "analysis-clients", "checkpoint-keep"}


class RunConfig(BaseModel):
    """The whole configuration of one run; the description of a field is its help text."""

    model_config = ConfigDict(
        alias_generator=kebab, populate_by_name=True, extra="forbid", frozen=True, strict=True
    )

    method: str = Field("feddr+", description="a row of the method table, see `fedapp methods`")
    dataset: str = Field("digits", description="a data set, see `fedapp datasets`")
    data_dir: str = Field("", description="folder that holds the data set")
    download: bool = Field(False, description="fetch the data set if it is not in data-dir")
    class_list: str = Field(
        "", description="file with imagenet100's classes, in data-dir; empty: the first 100"
    )
    classes: str = Field(
        "", description="partition own: the class names of all hosts, by label: 'cat dog'"
    )
    decode_threads: Unsigned = Field(
        0, description="threads of a process that decode imagenet100; 0: one per core, up to 8"
    )
    model: str = Field("auto", description="backbone; auto: the papers' choice for the data set")
    bn: Literal["batch", "running", "group"] = Field("batch", description="kind of BatchNorm")
    normalisation: Literal["auto", "dataset", "symmetric"] = Field(
        "auto", description="of images: the data set's, or to -1..1; auto: -1..1 for pooled data"
    )
    partition: str = Field(
        "shards",
        description="how clients share the data: shards, lda, iid, stratified, unbalanced, "
        "pathological, dirichlet",
    )
    shards: Count = Field(2, description="shards (of one class each) per client")
    alpha: Positive = Field(0.1, description="concentration of the LDA and Dirichlet partitions")
    lda_cap: bool = Field(
        True, description="LDA: clients with an average share get nothing of further classes"
    )
    classes_per_client: Count | Auto = Field(
        "auto", description="of the pathological partition; auto: the papers' for the data set"
    )
    unbalanced_sigma: Annotated[float, Field(ge=0)] = Field(
        1.0, description="spread of the unbalanced partition's log-normal sizes; 0: equal"
    )
    pool_data: bool | Auto = Field(
        "auto",
        description="divide training and test images together, then 75/25 per client; "
        "auto: for pathological and dirichlet",
    )
    partition_seed: int | Auto = Field(
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
    num_rounds: Count = Field(120, description="number of rounds")
    local_epochs: Count | Auto = Field("auto", description="epochs a client trains per round")
    batch_size: Count | Auto = Field("auto", description="local mini-batch size")
    lr: Positive | Auto = Field("auto", description="learning rate of round 1")
    lr_schedule: Literal["auto", "constant", "step", "exponential"] = Field(
        "auto", description="step: x0.1 at R/2 and 3R/4; exponential: x0.99 per round"
    )
    momentum: Annotated[float, Field(ge=0, lt=1)] | Auto = Field(
        "auto", description="of local SGD; auto: 0.9, or 0 for clients with models of their own"
    )
    weight_decay: Weight | Auto = Field(
        "auto", description="of local SGD; auto: 1e-5, or 0 for clients with models of their own"
    )
    clip_norm: Annotated[float, Field(ge=0)] = Field(
        0.0, description="gradient norm limit; 0: none"
    )
    augmentation: str = Field("auto", description="none, or words of: crop rrc flip cutout")
    regulariser: str = Field(
        "auto", description="prox, kd, ntd, ld, fd or norm on a base method; auto: the method's"
    )
    beta: Annotated[float, Field(ge=0)] | Auto = Field(
        "auto", description="weight of base loss against regulariser"
    )
    mu: Annotated[float, Field(ge=0)] | Auto = Field(
        "auto", description="weight of the proximal term"
    )
    tau: Positive | Auto = Field("auto", description="temperature of distillation")
    weights: Literal["size", "uniform"] = Field(
        "size", description="how client models are averaged"
    )
    seed: Unsigned = Field(0, description="of everything random")
    device: str = Field("auto", description="auto, cpu, cuda or cuda:N")
    precision: Literal["fp32", "tf32", "bf16"] = Field("fp32", description="of local training")
    threads: Unsigned = Field(1, description="CPU threads of a client process; 0: torch's choice")
    eval_every: Count = Field(1, description="rounds between evaluations on the global test set")
    client_eval_every: Unsigned = Field(
        0, description="rounds between evaluations on every client's own test split; 0: never"
    )
    checkpoint_every: Unsigned = Field(0, description="rounds between checkpoints; 0: none")
    checkpoint_keep: Unsigned = Field(2, description="newest checkpoints to keep; 0: all")
    resume: str = Field("", description="run directory to continue, or auto: run-name's")
    output_dir: str = Field("runs", description="where run directories are made")
    run_name: str = Field("", description="name of the run directory; empty: method, data, time")
    analyses: str = Field("", description="measures of the papers, see `fedapp measures`")
    analysis_every: Unsigned = Field(
        0, description="rounds between measures of models; 0: after the last round only"
    )
    analysis_clients: Unsigned = Field(
        10, description="most clients of a round that are trained again to be measured; 0: all"
    )
    tracker: Literal["none", "tensorboard"] = Field("none", description="where else metrics go")
    round_timeout: Positive = Field(3600.0, description="seconds a round waits for its nodes")
    min_replies: Count = Field(1, description="fewest usable client updates that make a round")
    tolerate_failures: bool = Field(False, description="go on without clients that fail")
    state_dir: str = Field(
        "", description="folder of what clients keep; empty: the user's cache folder"
    )
    keep_state: bool = Field(False, description="leave clients' states in place after the run")
    state_missing: Literal["error", "reinit"] = Field(
        "error", description="when a client's state is lost: end the round, or start it afresh"
    )
    aggregation: Literal["mean", "median", "trimmed-mean", "krum", "multi-krum"] = Field(
        "mean", description="how client models become one; robust ones keep each model apart"
    )
    robust_malicious: Unsigned = Field(0, description="clients that krum expects to lie")
    robust_trim: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.2, description="share of values that trimmed-mean cuts at each end"
    )
    dp_clip: Annotated[float, Field(ge=0)] = Field(
        0.0, description="differential privacy: largest norm of an update; 0: off"
    )
    dp_noise: Annotated[float, Field(ge=0)] = Field(
        0.0, description="differential privacy: noise multiplier"
    )
    fedexp_epsilon: Positive = Field(1e-3, description="FedExP's epsilon in the step length")
    fedavgm_beta: Annotated[float, Field(ge=0, lt=1)] = Field(0.7, description="server momentum")
    ditto_lambda: Annotated[float, Field(ge=0)] = Field(
        0.75, description="Ditto's pull of personal models to the global one"
    )
    ditto_reference: bool = Field(
        False, description="Ditto as its reference code: personal models are averaged"
    )
    per_fedavg_beta: Positive = Field(
        0.1, description="Per-FedAvg's outer learning rate of round 1"
    )
    per_fedavg_constant: bool = Field(
        False, description="keep it in all rounds, as the reference code"
    )
    per_fedavg_adapt_epochs: Unsigned = Field(
        0, description="epochs of plain SGD before Per-FedAvg is evaluated; 0: one step"
    )
    model_group: str = Field(
        "auto", description="architectures of clients with models of their own; auto: tiny"
    )
    feature_dim: Count | Auto = Field("auto", description="common feature size of a model group")
    feature_map: Literal["pool", "linear"] = Field(
        "pool", description="how an architecture's features become feature-dim ones"
    )
    eval_rule: Literal["auto", "head", "proto"] = Field(
        "auto", description="class of a test image by head or nearest prototype; auto: the method's"
    )
    eval_when: Literal["round-end", "after-download"] = Field(
        "round-end", description="evaluate own models, or with the shared part just received"
    )
    oi_objective: Literal["signed", "abs"] = Field(
        "signed",
        description="orthogonal initialisation with fewer features than classes: keep "
        "cosines or their absolute values small",
    )
    oi_simplex: bool = Field(False, description="start at a simplex instead of orthogonal rows")
    proto_server_lr: Positive = Field(0.01, description="of what servers train on prototypes")
    proto_batch_size: Count = Field(32, description="prototypes in a server's batch")
    feddor_lambda_ce: Weight = Field(10.0, description="FedDOR's weight of cross-entropy")
    feddor_lambda_align: Weight = Field(1.0, description="FedDOR's weight of alignment")
    feddor_inter_weight: Weight = Field(1.0, description="FedDOR's weight of L_inter")
    feddor_server_epochs: Count = Field(1, description="passes over a round's prototypes")
    feddor_scale_init: Positive = Field(10.0, description="where a cosine head's scale starts")
    feddor_classifier: Literal["cosine", "normfeat_linear", "linear"] = Field(
        "cosine", description="FedDOR's head"
    )
    feddor_first_target: Literal["oi", "generator", "none"] = Field(
        "oi", description="what round 1 aligns to: orthogonal rows, G(E) untrained, or nothing"
    )
    feddor_generator: Literal["plain", "residual"] = Field(
        "plain", description="G(E), or E + G(E) that starts at E"
    )
    feddor_upload: Literal["raw_mean", "mean_of_normalized", "normalized_mean"] = Field(
        "raw_mean", description="what FedDOR's clients upload of each class"
    )

    @classmethod
    def parse(cls, values: Mapping[str, Any]) -> "RunConfig":
        """Read a flat run configuration and resolve it; raises UserError with one sentence."""
        known = {kebab(name) for name in cls.model_fields}
        for key in values:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean '{near[0]}'?" if near else "see `fedapp config` for all keys"
                raise UserError(f"run-config key '{key}' does not exist; {hint}")
        try:
            return cls(**whole_floats(cls, values)).resolve()
        except ValidationError as error:
            raise UserError(sentence(cls, error)) from None

    def resolve(self) -> "RunConfig":
        """Replace every "auto"; raises UserError if the configuration cannot work."""
        from fedapp.checks import check_config
        from fedapp.data.defaults import partition_settings
        from fedapp.models.groups import group_settings

        row = find_method(self.method)
        if self.regulariser not in ("auto", "none"):
            check_regulariser(self.method, self.regulariser)
        dataset = usual_name(self.dataset)
        model = MODEL_OF.get(dataset, "cnn") if self.model == "auto" else self.model
        setting = find_setting(dataset, model)
        asked = "none" if self.regulariser in ("auto", row.regulariser) else self.regulariser
        place = (dataset, model)
        chosen: dict[str, Any] = {
            **FALLBACKS,
            **blend_settings(self.method, asked, place, self.partition),
            **row.defaults,
            **setting.extras.get(self.method, {}),
            "model": model,
            **partition_settings(self),
            "local_epochs": setting.local_epochs,
            "batch_size": setting.batch_size,
            "lr": setting.lr_of.get(row.rate_of or self.method, setting.lr),
            "lr_schedule": setting.lr_schedule,
            "augmentation": setting.augmentation,
            "regulariser": row.regulariser or "none",
            "model_group": "",
            **group_settings(self, row),
        }
        autos = {k: v for k, v in chosen.items() if getattr(self, k) == "auto"}
        resolved = self.model_copy(update=autos)
        check_config(resolved)
        return resolved

    def flat(self) -> dict[str, Any]:
        """Return the configuration with its kebab-case keys, as Flower and TOML take it."""
        return self.model_dump(by_alias=True)

    def fingerprint(self) -> str:
        """Return a hash of all that server and clients must agree on."""
        agreed = {key: value for key, value in self.flat().items() if key not in _LOCAL_KEYS}
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()[:16]

    def lr_at(self, server_round: int) -> float:
        """Return the learning rate of a round, counted from 1 (specification G10)."""
        before = server_round - 1
        if self.lr_schedule == "exponential":
            return float(self.lr) * 0.99**before
        if self.lr_schedule == "step":
            half, three_quarters = self.num_rounds // 2, 3 * self.num_rounds // 4
            passed = (before >= max(half, 1)) + (before >= max(three_quarters, 1))
            return float(self.lr) * 0.1**passed
        return float(self.lr)
