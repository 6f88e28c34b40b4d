"""The run-config keys of methods whose clients have different architectures."""

from typing import Literal

from fedapp.core.keys import Auto, Count, Features, Key, Positive, Share, Unsigned, Weight
from fedapp.models.architectures import FeatureMap

# Keys of several methods.
SHARED = {
    "model-group": Key(
        str, "auto", "group of architectures for clients with their own models; auto: tiny"
    ),
    "feature-dim": Key(
        Features | Auto, "auto", "features of all models in a group; auto: the group's"
    ),
    "feature-map": Key(
        FeatureMap, "pool", "how an architecture's features are mapped to feature-dim"
    ),
    "head-final-relu": Key(
        bool, False, "HtC4 groups: apply a ReLU to the logits, as in HtFLlib's code"
    ),
    "init-per-client": Key(
        bool, False, "own models: draw initial weights per client, not per architecture"
    ),
    "eval-rule": Key(
        Literal["auto", "head", "proto"],
        "auto",
        "classify test images by the head or the nearest prototype; auto: the method's rule",
    ),
    "eval-when": Key(
        Literal["round-end", "after-download"],
        "round-end",
        "evaluate own models as trained (round-end) or with the received shared part",
    ),
    "oi-objective": Key(
        Literal["signed", "abs"],
        "signed",
        "orthogonal initialisation with fewer features than classes: minimise cosines "
        "(signed) or their absolute values (abs)",
    ),
    "oi-simplex": Key(
        bool, False, "orthogonal initialisation: use a simplex ETF instead of orthogonal rows"
    ),
    "proto-collect": Key(
        Literal["after", "during"],
        "after",
        "prototypes: class means over all images after training, or of features during training",
    ),
    "proto-server-lr": Key(Positive, 0.01, "learning rate of a server that trains on prototypes"),
    "proto-batch-size": Key(Count, 32, "batch size of a server that trains on prototypes"),
}

FEDDOR = {
    "feddor-lambda-ce": Key(Weight, 10.0, "FedDOR: weight of cross-entropy"),
    "feddor-lambda-align": Key(Weight, 1.0, "FedDOR: weight of alignment"),
    "feddor-inter-weight": Key(Weight, 1.0, "FedDOR: weight of L_inter"),
    "feddor-server-epochs": Key(
        Count | Auto,
        "auto",
        "FedDOR: server epochs over a round's prototypes; auto: until the loss stops falling",
    ),
    "feddor-scale-init": Key(Positive, 10.0, "FedDOR: initial scale of a cosine head"),
    "feddor-classifier": Key(
        Literal["cosine", "normalised-linear", "linear"], "cosine", "FedDOR: kind of head"
    ),
    "feddor-oi-shared-seed": Key(
        bool, True, "FedDOR: server starts from the clients' orthogonal rows; false: from others"
    ),
    "feddor-first-target": Key(
        Literal["oi", "generator", "none"],
        "oi",
        "FedDOR: prototypes of round 1: orthogonal rows, untrained G(E), or none",
    ),
    "feddor-generator": Key(
        Literal["fitted", "plain", "residual"],
        "fitted",
        "FedDOR: prototypes are G(E) fitted to E, G(E) from plain initial weights, or E + G(E)",
    ),
    "feddor-upload": Key(
        Literal["raw-mean", "mean-of-normalised", "normalised-mean"],
        "raw-mean",
        "FedDOR: what clients upload for each class",
    ),
}

FEDPROTO = {
    "fedproto-lambda": Key(Weight, 1.0, "FedProto: weight of the prototype term"),
    "fedproto-weighting": Key(
        Literal["count", "uniform"], "count", "FedProto: weights in the mean of a class"
    ),
    "fedproto-memory": Key(bool, False, "FedProto: keep classes that no client uploads in a round"),
}

FEDTGP = {
    "fedtgp-lambda": Key(Weight, 10.0, "FedTGP: weight of the prototype term"),
    "fedtgp-server-epochs": Key(Count, 100, "FedTGP: server epochs over a round's prototypes"),
    "fedtgp-margin": Key(
        Literal["maxmin", "max"], "maxmin", "FedTGP: margin as in its code, or as in its paper"
    ),
    "fedtgp-tau": Key(Positive, 100.0, "FedTGP: largest margin"),
}

FEDORGP = {
    "fedorgp-lambda": Key(Weight, 10.0, "FedORGP: weight of the prototype term"),
    "fedorgp-gamma": Key(Weight, 10.0, "FedORGP: weight of L_inter"),
    "fedorgp-server-epochs": Key(Count, 1, "FedORGP: server epochs over a round's prototypes"),
    "fedorgp-reduction": Key(
        Literal["mean", "sum"],
        "mean",
        "FedORGP: mean of a batch's losses, as in its paper, or sum, as in its first code",
    ),
}

FEDGH = {
    "fedgh-server-epochs": Key(Count, 1, "FedGH: server epochs over a round's prototypes"),
}

FEDGEN = {
    "fedgen-server-steps": Key(Count, 50, "FedGen: training steps of the generator per round"),
    "fedgen-server-lr": Key(Positive, 3e-4, "FedGen: learning rate of the generator's Adam"),
    "fedgen-warmup-rounds": Key(Unsigned, 1, "FedGen: first rounds without the generator"),
    "fedgen-label-query": Key(
        bool, False, "FedGen: request all clients' label counts before round 1"
    ),
    "fedgen-alpha": Key(
        Weight, 1.0, "FedGen: weight of the cross-entropy on generated features; its code has 10"
    ),
    "fedgen-diversity": Key(Weight, 0.0, "FedGen: weight of feature diversity; 0: off"),
}

FEDKD = {
    "fedkd-energy-start": Key(Share, 0.95, "FedKD: energy kept in the first messages"),
    "fedkd-energy-end": Key(Share, 0.98, "FedKD: energy kept in the last messages"),
    "fedkd-kl": Key(
        Literal["mean", "batchmean"],
        "mean",
        "FedKD: average the divergence over batch and classes, or over the batch only",
    ),
    "fedkd-detach": Key(bool, False, "FedKD: no gradients through the teachers"),
    "fedkd-sends": Key(
        Literal["weights", "updates"],
        "weights",
        "FedKD: compress the mentee's weights, or their changes in a round",
    ),
    "fedkd-truncation": Key(
        Literal["if-smaller", "htfllib"],
        "if-smaller",
        "FedKD: matrices whose factors are not smaller are sent whole, or all are truncated, as in "
        "HtFLlib's code",
    ),
}

FML = {
    "fml-alpha": Key(Share, 0.5, "FML: weight of the personal model's cross-entropy"),
    "fml-beta": Key(Share, 0.5, "FML: weight of the meme's cross-entropy"),
    "fml-kl": Key(
        Literal["mean", "batchmean"],
        "mean",
        "FML: average the divergence over batch and classes, or over the batch only",
    ),
    "fml-detach": Key(bool, False, "FML: no gradients through the teachers"),
}

FD = {
    "fd-lambda": Key(Weight, 1.0, "FD: weight of the distillation term"),
}
