"""The run-config keys that belong to one method or family, after those that all share."""

from typing import Annotated, Literal

from pydantic import Field

from fedapp.config.run_keys import Auto, Count, Positive, RunKeys, Share, Unsigned, Weight


class MethodKeys(RunKeys):
    """What only some methods read."""

    fedexp_epsilon: Positive = Field(1e-3, description="FedExP's epsilon in the step length")
    fedexp_step: Literal["paper", "authors", "feddr+"] = Field(
        "paper", description="FedExP's step length: its paper's, its code's, or FedDr+'s code's"
    )
    fedexp_evaluate: Literal["average", "last"] = Field(
        "average", description="FedExP's model for tests: mean of the last two, or the last"
    )
    fedavgm_beta: Annotated[float, Field(ge=0, lt=1)] = Field(0.7, description="server momentum")
    kd_ntd_lambda: Annotated[float, Field(ge=0, le=1)] = Field(
        0.5, description="share of NTD in kd-ntd; the rest is KD"
    )
    ntd_tau_squared: bool = Field(
        True, description="NTD times tau squared, as in FedNTD's code; or as in its equation"
    )
    spherefed_reduction: Literal["mean", "sum-classes"] = Field(
        "mean", description="SphereFed's squared error: mean over classes, or their sum"
    )
    fedetf_missing: Literal["clamp", "exclude"] = Field(
        "clamp", description="classes a FedETF client lacks: counted as 1, or not in its softmax"
    )
    fedetf_learn_scale: bool = Field(True, description="FedETF learns the scale of its logits")
    fedetf_scale_init: Positive = Field(1.0, description="where it starts, or what it stays at")
    fedgela_normalise: bool = Field(False, description="FedGELA with features of norm 1")
    fedgela_temperature: Positive = Field(
        1.0, description="what FedGELA's logits are divided by in its loss"
    )
    fedfn_bias: bool = Field(False, description="the head of fedfn and X+fn has a bias")
    fedalign_mu: Weight = Field(0.45, description="FedAlign's weight of alignment")
    fedalign_width: Share = Field(0.25, description="share of channels at FedAlign's part width")
    fedsol_rho: Weight = Field(2.0, description="FedSOL's length of the perturbation")
    fedsol_adaptive: bool = Field(
        True, description="FedSOL moves weights as they differ from the received ones; or all"
    )
    fedsol_part: Literal["all", "body", "head"] = Field(
        "all", description="what FedSOL perturbs of the model"
    )
    finetune_epochs: Unsigned | Auto = Field(
        "auto", description="of every client on the final model; auto: for methods X-ft only"
    )
    finetune_lr: Positive | Auto = Field("auto", description="of fine-tuning; auto: the protocol's")
    finetune_protocol: Literal["auto", "feddr+", "fedfn", "fedetf"] = Field(
        "auto", description="paper whose epochs and rates are auto; auto: the method's"
    )
    finetune_part: Literal["auto", "body", "head", "all", "alternating"] = Field(
        "auto",
        description="of the model; auto: all but a frozen head; alternating: FedETF's turns too",
    )
    finetune_turns: Count = Field(
        20, description="alternating: turns of 3 epochs of the head's rows, 3 of the bottleneck"
    )
    finetune_loss: Literal["auto", "own", "base", "base+fd", "dr", "dr+"] = Field(
        "auto",
        description="own: as in training; base: no regulariser; base+fd: with FD; auto: own",
    )
    fednova_correction: Literal["none", "own"] = Field(
        "none",
        description="FedNova's gradients as they are, or less the client's own last mean one",
    )
    feddyn_alpha: Positive = Field(0.1, description="FedDyn's weight of the quadratic term")
    fedcurv_lambda: Weight = Field(1.0, description="FedCurv's weight of the penalty")
    fedcurv_samples: Count = Field(
        500, description="training examples of a client that FedCurv measures importance on"
    )
    fedcurv_per_sample: bool = Field(
        False, description="importance by gradients of examples, not of mini-batches; slower"
    )
    fedcurv_accumulate: bool = Field(
        False, description="FedCurv's penalty by all clients so far, not by the last round's"
    )
    local_etf_frozen: bool = Field(
        True, description="local-etf keeps the ETF as it is; or trains it from there"
    )
    ditto_lambda: Weight = Field(
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
    head_final_relu: bool = Field(
        False, description="HtC4 groups: a ReLU after the logits, as in HtFLlib's code"
    )
    init_per_client: bool = Field(
        False, description="own models start from weights of each client, not of its architecture"
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
    proto_collect: Literal["after", "during"] = Field(
        "after",
        description="prototypes: means over all images after training, or of what training saw",
    )
    proto_server_lr: Positive = Field(0.01, description="of what servers train on prototypes")
    proto_batch_size: Count = Field(32, description="prototypes in a server's batch")
    feddor_lambda_ce: Weight = Field(10.0, description="FedDOR's weight of cross-entropy")
    feddor_lambda_align: Weight = Field(1.0, description="FedDOR's weight of alignment")
    feddor_inter_weight: Weight = Field(1.0, description="FedDOR's weight of L_inter")
    feddor_server_epochs: Count | Auto = Field(
        "auto", description="passes over a round's prototypes; auto: until the loss no longer falls"
    )
    feddor_scale_init: Positive = Field(10.0, description="where a cosine head's scale starts")
    feddor_classifier: Literal["cosine", "normfeat_linear", "linear"] = Field(
        "cosine", description="FedDOR's head"
    )
    feddor_oi_shared_seed: bool = Field(
        True, description="FedDOR's server starts at the clients' orthogonal rows; or at others"
    )
    feddor_first_target: Literal["oi", "generator", "none"] = Field(
        "oi", description="what round 1 aligns to: orthogonal rows, G(E) untrained, or nothing"
    )
    feddor_generator: Literal["fitted", "plain", "residual"] = Field(
        "fitted", description="G(E) that starts at E or anywhere, or E + G(E) that starts at E"
    )
    feddor_upload: Literal["raw_mean", "mean_of_normalized", "normalized_mean"] = Field(
        "raw_mean", description="what FedDOR's clients upload of each class"
    )
    fedproto_lambda: Weight = Field(1.0, description="FedProto's weight of the prototype term")
    fedproto_weighting: Literal["count", "uniform"] = Field(
        "count", description="how FedProto averages the prototypes of a class"
    )
    fedproto_memory: bool = Field(False, description="keep classes that nobody uploads in a round")
    fedtgp_lambda: Weight = Field(10.0, description="FedTGP's weight of the prototype term")
    fedtgp_server_epochs: Count = Field(100, description="passes over a round's prototypes")
    fedtgp_margin: Literal["maxmin", "max"] = Field(
        "maxmin", description="FedTGP's margin: as its code, or as its paper's text"
    )
    fedtgp_tau: Positive = Field(100.0, description="FedTGP's largest margin")
    fedorgp_lambda: Weight = Field(10.0, description="FedORGP's weight of the prototype term")
    fedorgp_gamma: Weight = Field(10.0, description="FedORGP's weight of L_inter")
    fedorgp_server_epochs: Count = Field(1, description="passes over a round's prototypes")
    fedorgp_reduction: Literal["mean", "sum"] = Field(
        "mean",
        description="FedORGP's losses over a batch: its paper's, or its first code's",
    )
    fedgh_server_epochs: Count = Field(1, description="passes over a round's prototypes")
    fedgen_server_steps: Count = Field(50, description="steps of the generator in a round")
    fedgen_server_lr: Positive = Field(3e-4, description="of the generator's Adam")
    fedgen_warmup_rounds: Unsigned = Field(
        1, description="rounds in which clients do not use the generator"
    )
    fedgen_label_query: bool = Field(
        False, description="ask all clients for label counts before round 1, not as they train"
    )
    fedgen_diversity: Weight = Field(
        0.0, description="weight of the generator's diversity of features; 0: off"
    )
    fedkd_energy_start: Share = Field(0.95, description="energy that FedKD's first messages keep")
    fedkd_energy_end: Share = Field(0.98, description="energy that its last messages keep")
    fedkd_kl: Literal["mean", "batchmean"] = Field(
        "mean", description="FedKD's divergence over batch and classes, or over the batch"
    )
    fedkd_detach: bool = Field(False, description="FedKD's teachers as constants")
    fml_alpha: Share = Field(0.5, description="FML's weight of the own cross-entropy")
    fml_beta: Share = Field(0.5, description="FML's weight of the meme's cross-entropy")
    fd_lambda: Weight = Field(1.0, description="FD's weight of the distillation term")
