"""FedAvg: the weighted mean of the clients' models; the base class of every averaging method.

The server adds replies exactly and as they arrive. Neither their order nor their grouping by node
changes a bit of the model, and the server's memory does not grow with the cohort.
"""

from typing import Any

import numpy as np
from flwr.app import RecordDict

from strategies.aggregate import Arrays, GroupSums, UpdateRefused, moved
from strategies.rounds.quantised import Codec
from strategies.rounds.records import (
    ARRAYS,
    UPLOADS,
    ClientResult,
    Task,
    unpack_uploads,
    view_array_record,
)
from strategies.rounds.robust import Rule, SeparateModels
from strategies.secure.rounds import SecureRounds


class FedAvg(SecureRounds):
    """Weighted mean of the sampled clients' models (McMahan et al. 2017, algorithm 1)."""

    sums_only = True
    needs_models = False  # whether `combine` reads single clients' models, which masks would hide
    rounds_updates = True  # whether it may get models whose updates are rounded
    _sums: GroupSums
    _separate: SeparateModels

    def __init__(
        self, *args: Any, rule: Rule | None = None, codec: Codec | None = None, **kwargs: Any
    ) -> None:
        """Prepare a strategy; `rule` is a robust or private mean instead of the exact one.

        With secure aggregation the nodes clip updates and add the noise of a private mean. `codec`
        is the form in which single models arrive. Other arguments as `SecureRounds`.
        """
        super().__init__(*args, **kwargs)
        self.codec = codec or Codec()
        self.rule = rule or Rule()
        self.clipped_sums = self.rule.clip > 0 and self.secure_threshold > 0  # by nodes
        self.separate = (self.rule.needed or self.needs_models) and not self.clipped_sums

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.sums_only = cls.sums_only and not cls.needs_models

    @property
    def received(self) -> Arrays:
        """The model that the clients of this round have received."""
        return self._global

    def averaged(self) -> dict[str, Arrays]:
        """Return zeros in the shapes of the further groups that are averaged with equal weights."""
        return {}

    def combine(
        self, received: Arrays, models: dict[int, Arrays], weights: dict[int, int]
    ) -> Arrays:
        """Return the next global model from those of single clients, if the class `needs_models`.

        Both are by client, in ascending order.
        """
        raise NotImplementedError(f"{type(self).__name__} needs_models and has no combine()")

    def server_update(self, received: Arrays, mean: Arrays) -> Arrays:
        """Turn the mean of the clients' models into the next global model."""
        return mean

    def stepped(self, start: Arrays, steps: Arrays, mean: Arrays, length: float = 1.0) -> Arrays:
        """Return `start` plus `length` times the steps of trained tensors; buffers are the mean's.

        `steps` are in float64, and the result has the types of `start`.
        """
        return {**mean, **moved({name: start[name] for name in self.trained}, steps, length)}

    def use_means(self, means: dict[str, Arrays]) -> None:
        """Use the uniform means of the groups of `averaged`; called before `server_update`."""

    def begin_round(self, received: Arrays, total_weight: int, cohort: int) -> None:
        """Reset the sums, or the list of models if the rule needs separate models."""
        if self.separate:
            self._separate = SeparateModels(received, cohort)
        else:
            model = received
            if self.clipped_sums:  # whose mean update keeps float64 until it is added to the model
                model = {name: array.astype(np.float64) for name, array in received.items()}
            self._sums = GroupSums(model, self.averaged(), total_weight, cohort)

    def add_reply(
        self, content: RecordDict, task: Task, results: list[ClientResult]
    ) -> list[ClientResult]:
        """Add a client's model, or the exact partial sum of a node with several clients."""
        if self.separate:
            weights = {result.client: task.weight(result.examples) for result in results}
            uploads = unpack_uploads(content.array_records[UPLOADS])
            models = {client: self._decoded(sent) for client, sent in uploads.items()}
            self._separate.add(models, weights)
            return results
        if UPLOADS in content.array_records and type(self).add_reply is FedAvg.add_reply:
            raise UpdateRefused(
                "update.uploads has arrays that the server's rule does not read: send them in "
                "update.groups (averaged), or override add_reply"
            )
        weight = sum(task.weight(result.examples) for result in results)
        model = view_array_record(content.array_records[ARRAYS])
        groups = {
            name: view_array_record(record)
            for name, record in content.array_records.items()
            if name not in (ARRAYS, UPLOADS)
        }
        if self.secure_threshold:
            self._sums.merge(model, groups, weight, len(results), masked=True)
            self.added_masked(task)
        elif len(task.clients) > 1:
            self._sums.merge(model, groups, weight, len(results))
        else:
            model = self._decoded(model)
            checked = self._sums.check(model, groups)
            self.check_model(model, results[0])
            self._sums.add_checked(*checked, weight)
        return results

    def _decoded(self, sent: Arrays) -> Arrays:
        """Return one client's model; raises `UpdateRefused` if it is not in the codec's form."""
        return self.codec.decode(sent, self._global)

    def check_model(self, model: Arrays, result: ClientResult) -> None:
        """Raise `UpdateRefused` if a single client's model contradicts its result.

        A sum of several models, or one with a mask, does not show them and is not checked.
        """

    def end_round(self, received: Arrays) -> Arrays:
        """Return the next global model: the method's update with the mean."""
        if self.needs_models:
            return self.combine(received, *self._separate.by_client())
        if self.separate:
            mean = self.rule.combine(self.server_round, received, self._separate)
        else:
            self.use_means({name: group.mean() for name, group in self._sums.groups.items()})
            mean = self._sums.model.mean()
        if self.clipped_sums:  # as with noise of the server, a missing update counts as zero
            mean = moved(received, mean, self._sums.model.weight / self.report.asked)
        return self.server_update(received, mean)

    def after_replies(self) -> None:
        """Remove the masks of secure aggregation from the sums; raises `RoundFailed`."""
        if self.secure_threshold:
            least = self.report.asked if self.clipped_sums else 0  # so that there is room for noise
            clip = self.rule.clip if self.clipped_sums else 0.0
            self.unmask(self._sums, least, clip, self.rule.noise * clip)
