"""`fedapp bench`: the overhead of federated training over its arithmetic, as ratios.

Absolute speeds depend mostly on the machine and on other programs on it. Therefore one call
measures the compared runs alternately, and the main results are ratios: of rounds to a plain
PyTorch loop, of methods to FedAvg, of this project's messages to stock Flower's.
"""
