"""Training steps on a GPU as CUDA graphs: recorded once, then started as a whole.

A step on a small model is hundreds of kernels of a few microseconds each, and Python needs longer
to start one of them than the GPU to compute it. A recorded step is started by one call, computes
with the same kernels on the same memory and gives the same bits.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
TrainingStep = Callable[[Tensor, Tensor], Tensor]  # images and labels of a batch -> its loss

_EAGER_STEPS = 2  # before a recording: the first one sets SGD's velocity, libraries start up
_recorders: dict[torch.device, "_Recorder"] = {}  # one per GPU of this process


class _Recorder:
    """A GPU's stream for recorded steps, and the memory that all recordings share."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device)
        self.works = True  # False after a step that cannot be recorded
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._last: torch.cuda.CUDAGraph | None = None  # keeps the shared memory allocated

    def record(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """Record what `work` starts, without doing it; None if it cannot be recorded."""
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may go on allocating; `torch.cuda.graph` would empty the cache first.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                work()
            finally:
                graph.capture_end()
        except RuntimeError as error:
            self.works = False
            reason = str(error.__context__ or error).splitlines()[0]
            log.warning("training steps are not recorded as a CUDA graph: %s", reason)
            return None
        self._last = graph
        return graph


@contextmanager
def replayed(step: TrainingStep, device: torch.device) -> Iterator[TrainingStep]:
    """Give a step that is recorded after two batches and replayed on later ones of that shape.

    `step` must do the same work on every batch, without waiting for the GPU. One that cannot be
    recorded is called for every batch, and the log says so once. On a CPU this is `step` itself.
    """
    if device.type != "cuda":
        yield step
        return
    if device not in _recorders:
        _recorders[device] = _Recorder(device)
    recorder = _recorders[device]
    around = torch.cuda.current_stream(device)
    recorder.stream.wait_stream(around)
    try:
        with torch.cuda.stream(recorder.stream):
            yield _Replayed(step, recorder)
    finally:
        around.wait_stream(recorder.stream)


class _Replayed:
    """A step that records itself."""

    def __init__(self, step: TrainingStep, recorder: _Recorder) -> None:
        self._step, self._recorder = step, recorder
        self._graph: torch.cuda.CUDAGraph | None = None
        self._eager = 0  # steps taken on batches of the recorded shape
        self._shape: torch.Size | None = None
        self._inputs = self._labels = self._loss = torch.empty(0)

    def __call__(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Take the step; the returned loss is overwritten by the next call."""
        self._shape = self._shape or inputs.shape
        if inputs.shape != self._shape or not self._recorder.works:
            return self._step(inputs, labels)
        if self._graph is None and self._eager == _EAGER_STEPS:
            self._inputs, self._labels = inputs.clone(), labels.clone()
            self._graph = self._recorder.record(self._record)
        if self._graph is None:
            self._eager += 1
            return self._step(inputs, labels)
        self._inputs.copy_(inputs)
        self._labels.copy_(labels)
        self._graph.replay()
        return self._loss

    def _record(self) -> None:
        self._loss = self._step(self._inputs, self._labels)
