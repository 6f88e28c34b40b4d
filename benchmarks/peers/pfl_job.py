"""The job with pfl-research: `torchrun --nproc-per-node N pfl_job.py FOLDER`, one share each."""

import sys
from pathlib import Path

import job as jobs
import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import distributed
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel


class Network(torch.nn.Module):
    """The job's network with the methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = jobs.network()

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the cross-entropy of a batch."""
        return torch.nn.functional.cross_entropy(self.layers(images), labels)

    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict:
        """Return no metrics: nothing is evaluated."""
        return {}


class Clock(TrainingProcessCallback):
    """Notes the end of each round."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def after_central_iteration(self, *_: object, **__: object) -> tuple[bool, Metrics]:
        """Append the time in the first process."""
        if distributed is None or distributed.global_rank == 0:
            jobs.note(self.folder)
        return False, Metrics()


def main() -> None:
    """Train the job of the folder that the command line names."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    np.random.seed(0)
    folder = Path(sys.argv[1])
    job, images, labels = jobs.read(folder)

    def client(number: int) -> PyTorchTensorDataset:
        mine = slice(number * job.images, (number + 1) * job.images)
        return PyTorchTensorDataset((images[mine], labels[mine]), user_id=str(number))

    users = FederatedDataset(client, get_user_sampler("minimize_reuse", list(range(job.clients))))
    network = Network()
    model = PyTorchModel(
        network,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=jobs.MOMENTUM),
        torch.optim.SGD(network.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=job.rounds, evaluation_frequency=job.rounds + 1,
            train_cohort_size=job.cohort, val_cohort_size=0,
        ),
        SimulatedBackend(training_data=users, val_data=users),
        model,
        NNTrainHyperParams(
            local_num_epochs=job.epochs, local_learning_rate=jobs.LR,
            local_batch_size=job.batch_size,
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock(folder)],
    )  # fmt: skip


if __name__ == "__main__":
    main()
