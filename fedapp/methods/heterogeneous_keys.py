"""The run-config keys of methods whose clients have architectures of their own."""

from typing import Literal

from fedapp.core.keys import Auto, Count, Key, Positive, Share, Unsigned, Weight

# Of all of them, or of several.
SHARED = {
    "model-group": Key(
        str, "auto", "architectures of clients with models of their own; auto: tiny"
    ),
    "feature-dim": Key(Count | Auto, "auto", "common feature size of a model group"),
    "feature-map": Key(
        Literal["pool", "linear"], "pool", "how an architecture's features become feature-dim ones"
    ),
    "head-final-relu": Key(
        bool, False, "HtC4 groups: a ReLU after the logits, as in HtFLlib's code"
    ),
    "init-per-client": Key(
        bool, False, "own models start from weights of each client, not of its architecture"
    ),
    "eval-rule": Key(
        Literal["auto", "head", "proto"],
        "auto",
        "class of a test image by head or nearest prototype; auto: the method's",
    ),
    "eval-when": Key(
        Literal["round-end", "after-download"],
        "round-end",
        "evaluate own models, or with the shared part just received",
    ),
    "oi-objective": Key(
        Literal["signed", "abs"],
        "signed",
        "orthogonal initialisation with fewer features than classes: keep "
        "cosines or their absolute values small",
    ),
    "oi-simplex": Key(bool, False, "start at a simplex instead of orthogonal rows"),
    "proto-collect": Key(
        Literal["after", "during"],
        "after",
        "prototypes: means over all images after training, or of what training saw",
    ),
    "proto-server-lr": Key(Positive, 0.01, "of what servers train on prototypes"),
    "proto-batch-size": Key(Count, 32, "prototypes in a server's batch"),
}

FEDDOR = {
    "feddor-lambda-ce": Key(Weight, 10.0, "FedDOR's weight of cross-entropy"),
    "feddor-lambda-align": Key(Weight, 1.0, "FedDOR's weight of alignment"),
    "feddor-inter-weight": Key(Weight, 1.0, "FedDOR's weight of L_inter"),
    "feddor-server-epochs": Key(
        Count | Auto,
        "auto",
        "passes over a round's prototypes; auto: until the loss no longer falls",
    ),
    "feddor-scale-init": Key(Positive, 10.0, "where a cosine head's scale starts"),
    "feddor-classifier": Key(
        Literal["cosine", "normfeat_linear", "linear"], "cosine", "FedDOR's head"
    ),
    "feddor-oi-shared-seed": Key(
        bool, True, "FedDOR's server starts at the clients' orthogonal rows; or at others"
    ),
    "feddor-first-target": Key(
        Literal["oi", "generator", "none"],
        "oi",
        "what round 1 aligns to: orthogonal rows, G(E) untrained, or nothing",
    ),
    "feddor-generator": Key(
        Literal["fitted", "plain", "residual"],
        "fitted",
        "G(E) that starts at E or anywhere, or E + G(E) that starts at E",
    ),
    "feddor-upload": Key(
        Literal["raw_mean", "mean_of_normalized", "normalized_mean"],
        "raw_mean",
        "what FedDOR's clients upload of each class",
    ),
}

FEDPROTO = {
    "fedproto-lambda": Key(Weight, 1.0, "FedProto's weight of the prototype term"),
    "fedproto-weighting": Key(
        Literal["count", "uniform"], "count", "how FedProto averages the prototypes of a class"
    ),
    "fedproto-memory": Key(bool, False, "keep classes that nobody uploads in a round"),
}

FEDTGP = {
    "fedtgp-lambda": Key(Weight, 10.0, "FedTGP's weight of the prototype term"),
    "fedtgp-server-epochs": Key(Count, 100, "passes over a round's prototypes"),
    "fedtgp-margin": Key(
        Literal["maxmin", "max"], "maxmin", "FedTGP's margin: as its code, or as its paper's text"
    ),
    "fedtgp-tau": Key(Positive, 100.0, "FedTGP's largest margin"),
}

FEDORGP = {
    "fedorgp-lambda": Key(Weight, 10.0, "FedORGP's weight of the prototype term"),
    "fedorgp-gamma": Key(Weight, 10.0, "FedORGP's weight of L_inter"),
    "fedorgp-server-epochs": Key(Count, 1, "passes over a round's prototypes"),
    "fedorgp-reduction": Key(
        Literal["mean", "sum"],
        "mean",
        "FedORGP's losses over a batch: its paper's, or its first code's",
    ),
}

FEDGH = {
    "fedgh-server-epochs": Key(Count, 1, "passes over a round's prototypes"),
}

FEDGEN = {
    "fedgen-server-steps": Key(Count, 50, "steps of the generator in a round"),
    "fedgen-server-lr": Key(Positive, 3e-4, "of the generator's Adam"),
    "fedgen-warmup-rounds": Key(Unsigned, 1, "rounds in which clients do not use the generator"),
    "fedgen-label-query": Key(
        bool, False, "ask all clients for label counts before round 1, not as they train"
    ),
    "fedgen-diversity": Key(Weight, 0.0, "weight of the generator's diversity of features; 0: off"),
}

FEDKD = {
    "fedkd-energy-start": Key(Share, 0.95, "energy that FedKD's first messages keep"),
    "fedkd-energy-end": Key(Share, 0.98, "energy that its last messages keep"),
    "fedkd-kl": Key(
        Literal["mean", "batchmean"],
        "mean",
        "FedKD's divergence over batch and classes, or over the batch",
    ),
    "fedkd-detach": Key(bool, False, "FedKD's teachers as constants"),
}

FML = {
    "fml-alpha": Key(Share, 0.5, "FML's weight of the own cross-entropy"),
    "fml-beta": Key(Share, 0.5, "FML's weight of the meme's cross-entropy"),
}

FD = {
    "fd-lambda": Key(Weight, 1.0, "FD's weight of the distillation term"),
}
