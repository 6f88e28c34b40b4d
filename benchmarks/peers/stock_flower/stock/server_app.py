"""The ServerApp: Flower's own FedAvg; each round's end is noted, nothing is evaluated."""

from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from stock.client_app import programs

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the job of the folder that the run config names."""
    folder = Path(str(context.run_config["folder"]))
    shared = programs(str(context.run_config["programs"]))
    job, _, _ = shared.read(folder)
    strategy = FedAvg(
        fraction_train=job.cohort / job.clients, fraction_evaluate=0.0,
        min_available_nodes=job.clients,
    )  # fmt: skip

    def evaluate(server_round: int, arrays: ArrayRecord) -> None:
        if server_round:
            shared.note(folder)

    strategy.start(
        grid=grid, initial_arrays=ArrayRecord(shared.network().state_dict()),
        num_rounds=job.rounds, evaluate_fn=evaluate,
    )  # fmt: skip
