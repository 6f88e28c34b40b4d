"""A node's reply to a training message: what its clients send, one client after the other."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from flwr.app import RecordDict

from clients.base import LocalClient
from clients.update import Update
from fedapp.config.run_config import RunConfig
from fedapp.core.errors import UserError
from fedapp.core.rng import Stream, numpy_rng
from strategies.aggregate import Arrays, GroupSums
from strategies.rounds.private import limited
from strategies.rounds.quantised import Codec
from strategies.rounds.records import (
    ARRAYS,
    UPLOADS,
    ClientFailure,
    ClientResult,
    Task,
    pack_report,
    pack_uploads,
    to_array_record,
)
from strategies.rounds.transport import array_bytes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Privacy:
    """What a node does to the updates that masks hide from the server.

    Attributes:
        clip: largest norm of a client's update; 0: clients send their models as they are.
        noise: standard deviation that the noise of the whole sum has at least, over `clip`.
        silent: whether nothing else may depend on the images. Then a client that fails counts as an
            update of zero, and the reason is in the node's log only.
    """

    clip: float = 0.0
    noise: float = 0.0
    silent: bool = False

    @property
    def deviation(self) -> float:
        """The standard deviation that the noise of the whole sum has at least; 0: no noise."""
        return self.noise * self.clip


def privacy_of(config: RunConfig, task: Task, silent: bool) -> Privacy:
    """Return what a node does to its sums; without masks, clipping and noise are the server's."""
    if not config.dp_clip or not task.summed:
        return Privacy()
    return Privacy(config.dp_clip, float(config.dp_noise), silent)


class NodeReply:
    """Collects the results of one node's clients into its reply, one client after the other."""

    def __init__(
        self, received: Arrays, task: Task, privacy: Privacy, codec: Codec, seed: int
    ) -> None:
        """Prepare a reply; `codec` is the form of single models, `seed` that of the run."""
        self.received, self.task, self.privacy = received, task, privacy
        self.codec, self.seed = codec, seed
        self.results: list[ClientResult] = []
        self.failures: list[ClientFailure] = []
        self._sums: GroupSums | None = None
        self._single: dict[str, Arrays] = {}  # the arrays of a single client, unsummed
        self._uploads: dict[int, Arrays] = {}

    def add_update(self, client: LocalClient, update: Update) -> None:
        """Store a client's state and add its update to the reply.

        Raises:
            UpdateRefused: the update cannot be averaged; reply and state are unchanged.
            StateError: the state cannot be stored; reply and state are unchanged.
            UserError: the client has a state and its method's row names none, or the reverse; or it
                uploads under masks.
        """
        task, model = self.task, update.shared
        self._check_kept(client, update)
        if self._sums is None:
            self._sums = GroupSums(self.received, update.groups, task.total_weight, task.cohort)
        if self.privacy.clip:
            model = limited(
                self._sums.model, model, self.received, self.privacy.clip, self.privacy.deviation
            )
        checked = self._sums.check(model, update.groups)
        sent = update.shared
        if self.codec.rounds:
            sent, read = self._rounded(client.client, sent)
            checked = self._sums.model.check(read), checked[1]
        client.save_state(update)
        if task.separate:
            self._uploads[client.client] = sent
        elif len(task.clients) == 1 and not task.summed:
            self._single = {ARRAYS: sent, **update.groups}
        else:
            self._sums.add_checked(*checked, task.weight(update.examples))
        if update.uploads:
            self._uploads[client.client] = update.uploads
        payload = array_bytes(sent, *update.groups.values(), update.uploads)
        line = _report_line(client.client, update, payload, bool(self.privacy.deviation))
        silent = self.privacy.silent
        self.results.append(self._silent_line(line.client, line.examples) if silent else line)

    def add_failure(self, failure: ClientFailure, examples: int) -> None:
        """Add a client that has no update to the reply; a silent node only logs the reason."""
        if self.privacy.silent:
            log.error("client %d has no update: %s", failure.client, failure.reason)
            self.results.append(self._silent_line(failure.client, examples))
        else:
            self.failures.append(failure)

    def content(self, hide: Callable[[GroupSums], None] | None = None) -> RecordDict:
        """Return the reply's records: report, model or partial sums, and uploads.

        `hide` masks the sums, in place. A node whose clients have all failed sends its share of the
        noise, because the noise of the model would tell otherwise that they have.
        """
        content, noisy = pack_report(self.results, self.failures), self.privacy.deviation > 0
        if noisy and self._sums is None:
            self._sums = GroupSums(self.received, {}, self.task.total_weight, self.task.cohort)
        if (self.results or noisy) and self._sums is not None and not self.task.separate:
            if hide is not None:
                hide(self._sums)
            sums = {name: group.sums for name, group in self._sums.groups.items()}
            for name, arrays in (self._single or {ARRAYS: self._sums.model.sums, **sums}).items():
                content[name] = to_array_record(arrays)
        if self._uploads:
            content[UPLOADS] = pack_uploads(self._uploads)
        return content

    def _rounded(self, client: int, model: Arrays) -> tuple[Arrays, Arrays]:
        """Return a client's model as it is sent, and the model that the server reads from that."""
        rng = numpy_rng(self.seed, Stream.ROUNDING, self.task.server_round, client)
        sent = self.codec.encode(model, self.received, rng)
        return sent, self.codec.decode(sent, self.received)

    def _check_kept(self, client: LocalClient, update: Update) -> None:
        """Raise UserError if the update does not fit its method's row, or the masks."""
        if update.state and client.memory is None:
            raise UserError(
                f"{type(client).__name__} has a state to keep, but its method's row names none: "
                "give the row exchange=Exchange(keeps='what it is')"
            )
        if client.memory is not None and not update.state:
            raise UserError(
                f"{type(client).__name__} has no state to keep, but its method's row names one: "
                "set update.state in every round, or leave `keeps` out of the row's exchange"
            )
        if self.task.separate and (update.groups or update.uploads):
            raise UserError(
                f"{type(client).__name__} sends groups or uploads beside its model, but the "
                "server's rule reads single models, which come alone: leave them out"
            )
        if self.task.summed and update.uploads:
            raise UserError("masks hide sums only, and this method uploads more")
        if self.privacy.clip and update.groups:
            raise UserError("the model is clipped and has noise, and this method sends more")

    def _silent_line(self, client: int, examples: int) -> ClientResult:
        """Return a line of the report that is the same whatever has happened."""
        return ClientResult(client, examples, 0, 0.0, 0.0, array_bytes(self.received), 0.0)


def _report_line(client: int, update: Update, payload: int, private: bool) -> ClientResult:
    """Return the line of the report about one client's training.

    That of a private update leaves out what depends on the images: loss and distance. It has no
    steps, so that the mean training loss does not count it.
    """
    training = update.training
    return ClientResult(
        client=client,
        examples=update.examples,
        steps=0 if private else training.steps,
        loss=0.0 if private else training.loss,
        seconds=training.seconds,
        payload=payload,
        squared_distance=0.0 if private else update.squared_distance,
        effective_steps=update.effective_steps,
        images=training.images,
        reinitialised=int(update.reinitialised),
    )
