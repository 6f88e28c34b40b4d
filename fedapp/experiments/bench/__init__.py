"""`fedapp bench`: what federated training costs beside its arithmetic, as ratios.

Absolute speeds say more about a machine, and about what else runs on it, than about this program.
So what is compared is measured in turn, in one call, and the headline figures are ratios: of rounds
to a plain PyTorch loop, of methods to FedAvg, of our messages to stock Flower's.
"""
