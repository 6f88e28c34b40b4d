"""The weights that FedDr+ tuned for every base loss with every regulariser (its table 12).

beta * base + (1 - beta) * regulariser needs a beta of its own for each pair, because the terms are
of very different sizes. CIFAR-100, MobileNet, 10 shards or LDA 0.1; its table 13 has 0.9 for all.
"""

PLACE = ("cifar100", "mobilenet")
ORDER = ("prox", "moon", "kd", "ntd", "ld", "fd")
TAU = {"kd": 3.0, "ntd": 3.0, "kd-ntd": 3.0, "moon": 0.5}  # as in the methods of their own

BETAS: dict[str, dict[str, tuple[float, ...]]] = {
    "shards": {
        "fedavg": (0.999, 0.5, 0.9999, 0.9999, 0.999, 0.9),
        "fedbabu": (0.9999, 0.9, 0.999, 0.99, 0.999, 0.999),
        "spherefed": (0.9999, 0.9999, 0.9999, 0.9, 0.99, 0.9),
        "fedetf": (0.999, 0.3, 0.5, 0.999, 0.9, 0.9),
        "fedgela": (0.9999, 0.7, 0.5, 0.7, 0.5, 0.7),
        "dr": (0.9999, 0.9, 0.5, 0.5, 0.5, 0.9),
    },
    "lda": {
        "fedavg": (0.999, 0.99, 0.999, 0.99, 0.999, 0.9999),
        "fedbabu": (0.999, 0.999, 0.999, 0.999, 0.99, 0.9999),
        "spherefed": (0.9999, 0.999, 0.999, 0.9999, 0.999, 0.99),
        "fedetf": (0.9999, 0.9999, 0.5, 0.999, 0.99, 0.99),
        "fedgela": (0.99, 0.9, 0.5, 0.5, 0.5, 0.3),
        "dr": (0.9999, 0.5, 0.5, 0.5, 0.5, 0.9),
    },
}


def blend_settings(
    base: str, regulariser: str, place: tuple[str, str], partition: str
) -> dict[str, float]:
    """Return the tuned "beta" and the "tau" of a regulariser that is asked for on a base.

    `place` is the data set and the model. Empty where nothing was tuned: 0.9 is taken then.
    """
    settings = {"tau": TAU[regulariser]} if regulariser in TAU else {}
    betas = BETAS.get(partition, {}).get(base)
    if place == PLACE and betas is not None and regulariser in ORDER:
        settings["beta"] = betas[ORDER.index(regulariser)]
    return settings
