"""The ClientApp: load the model, train with a data loader, reply with the model."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch.utils.data import DataLoader, TensorDataset

app = ClientApp()


@cache
def programs(folder: str) -> Any:
    """Import job.py, which lies beside this app and is not in its bundle."""
    sys.path.insert(0, folder)
    import job

    return job


@cache
def data(folder: str, beside: str) -> Any:
    """Return the job and the images of all clients, once per process."""
    return programs(beside).read(Path(folder))


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this client's images."""
    folder, beside = (str(context.run_config[key]) for key in ("folder", "programs"))
    job, images, labels = data(folder, beside)
    shared = programs(beside)
    model = shared.network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    first = int(context.node_config["partition-id"]) * job.images
    mine = slice(first, first + job.images)
    loader = DataLoader(TensorDataset(images[mine], labels[mine]), job.batch_size, shuffle=True)
    optimiser = torch.optim.SGD(model.parameters(), lr=shared.LR, momentum=shared.MOMENTUM)
    criterion = torch.nn.CrossEntropyLoss()
    model.train()
    for _ in range(job.epochs):
        for batch, goals in loader:
            optimiser.zero_grad()
            criterion(model(batch), goals).backward()
            optimiser.step()
    content = {
        "arrays": ArrayRecord(model.state_dict()),
        "metrics": MetricRecord({"num-examples": job.images}),
    }
    return Message(RecordDict(content), reply_to=message)
