"""SGD with momentum on PyTorch's fused kernel, without the imports of `torch.optim`.

The first step of any `torch.optim` optimiser imports torch's compiler and SymPy. That takes five
seconds in every worker, and in every message of a real SuperNode, which starts a new process each
time. This class calls the same kernel with the same arguments and gives the same bits; a test
compares them. Factors of a gradient are multiplied in blocks, so that bits may differ there.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from clients.training.factored import FactoredWeight


class FusedSGD:
    """SGD on float tensors of one device: v <- momentum v + g + weight_decay w; w <- w - lr v.

    The first step sets v to g + weight_decay w, as `torch.optim.SGD` does. With `velocity`, one
    tensor v for each parameter, it starts from these values and changes these tensors in place.
    Where a parameter is `factored`, its gradient has factors, and `settle` writes its first steps.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        lr: float,
        momentum: float,
        weight_decay: float,
        velocity: list[Tensor] | None = None,
        factored: Mapping[Tensor, FactoredWeight] | None = None,
    ) -> None:
        self.parameters = parameters
        self.lr, self.momentum, self.weight_decay = lr, momentum, weight_decay
        self._first = velocity is None
        new = [torch.empty_like(p) for p in parameters] if velocity is None else velocity
        self._buffers: Sequence[Tensor | None] = new if momentum else [None] * len(parameters)
        self._factored = factored or {}
        for parameter, buffer in zip(parameters, self._buffers, strict=True):
            if parameter in self._factored:
                self._factored[parameter].velocity = buffer

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        for weight in self._factored.values():
            weight.factors.clear()

    @torch.no_grad()
    def step(self) -> None:
        """Take one step; parameters without a gradient stay, as in `torch.optim.SGD`."""
        whole = []
        for parameter, buffer in zip(self.parameters, self._buffers, strict=True):
            weight = self._factored.get(parameter)
            if weight is not None and weight.factors:
                self._step_factored(weight, parameter, buffer)
            elif parameter.grad is not None:
                whole.append(_in_memory_order(parameter, parameter.grad, buffer))
            elif self._first and buffer is not None:
                buffer.zero_()  # its first gradient is one of a later step
        if whole:
            self._update(whole)
        self._first = False

    def _step_factored(
        self, weight: FactoredWeight, parameter: Tensor, buffer: Tensor | None
    ) -> None:
        """Take the step of a weight whose gradient has factors, or defer it."""
        if weight.defer(self.lr, self.momentum, self.weight_decay):
            return
        weight.settle()
        for rows, gradient in weight.gradient_blocks():
            part = None if buffer is None else buffer[rows]
            self._update([(parameter[rows], gradient, part)])

    def _update(self, rows: Sequence[tuple[Tensor, Tensor, Tensor | None]]) -> None:
        """Take the step for tuples of weights, their gradient, and v; None without momentum."""
        weights, gradients, buffers = zip(*rows, strict=True)
        torch._fused_sgd_(
            weights,
            gradients,
            buffers if self.momentum else (),
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=self.lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=self._first and bool(self.momentum),
        )


def _in_memory_order(
    parameter: Tensor, gradient: Tensor, buffer: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return a parameter, its gradient and its buffer as views of their memory, in one order.

    PyTorch's fused kernel for CPUs runs through the memory of all three alike, whatever their
    layouts are, so that it takes wrong steps where these differ. Tensors in channels_last it first
    copies, for nothing.
    """
    if parameter.is_contiguous():
        return parameter, gradient.contiguous(), buffer
    last = (0, 2, 3, 1)  # channels_last
    return (
        parameter.permute(last),
        gradient.permute(last).contiguous(),
        None if buffer is None else buffer.permute(last),
    )


def effective_steps(steps: int, momentum: float) -> float:
    """Return how many plain steps move as far as `steps` momentum steps with equal gradients.

    With momentum m, the gradient of step t counts 1 + m + ... + m^(K - t) times in the displacement
    of K steps, so K_eff = (K - m (1 - m^K) / (1 - m)) / (1 - m): Wang et al. 2020, NeurIPS,
    section 4 (|a_i|_1 of FedNova). Without momentum it is K.
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
