"""The rounds of a run, as in Flower's strategies, with replies as they arrive."""

from collections.abc import Callable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from strategies.rounds.report import RoundReport
from strategies.rounds.transport import exchange


class RoundLoop(Strategy):
    """Runs rounds of training and evaluation; subclasses make messages and reduce replies."""

    last_round = 0
    tolerate_failures = False
    report: RoundReport

    def before_rounds(self, grid: Grid, timeout: float) -> None:
        """Check or query what a method must know before the first of these rounds."""

    def prepare_messages(
        self, grid: Grid, messages: list[Message], timeout: float
    ) -> list[Message]:
        """Return the training messages to send, after what must be exchanged before them."""
        return messages

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        first_round: int = 1,
    ) -> Result:
        """Run rounds `first_round` to `num_rounds` as Flower does, with replies as they arrive."""
        result, arrays = Result(), initial_arrays
        config = train_config or ConfigRecord()
        evaluation_config = evaluate_config or ConfigRecord()
        self.last_round = num_rounds
        self.before_rounds(grid, timeout)
        for server_round in range(first_round, num_rounds + 1):
            messages = list(self.configure_train(server_round, arrays, config, grid))
            messages = self.prepare_messages(grid, messages, timeout)
            replies = exchange(grid, messages, timeout)
            aggregated, metrics = self.aggregate_train(server_round, replies)
            arrays = result.arrays = aggregated or arrays
            result.train_metrics_clientapp[server_round] = metrics or MetricRecord()
            evaluations = self.configure_evaluate(server_round, arrays, evaluation_config, grid)
            clients = self.aggregate_evaluate(server_round, exchange(grid, evaluations, timeout))
            if clients is not None:
                result.evaluate_metrics_clientapp[server_round] = clients
            self.report.client_accuracy = dict(clients or {})
            if evaluate_fn and (evaluated := evaluate_fn(server_round, arrays)) is not None:
                result.evaluate_metrics_serverapp[server_round] = evaluated
            self.report.check_errors(self.tolerate_failures)  # evaluation errors; the round is kept
        return result
