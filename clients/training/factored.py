"""Gradients of large linear layers as two factors, which the optimiser multiplies in blocks.

The gradient of a weight [out, in] is G^T X of the outputs' gradients G [B, out] and the inputs
X [B, in]. A layer of two million weights has a gradient of 8 MB. Written by the backward pass and
read again by the optimiser, it leaves the CPU's cache in between. In blocks of a few rows the
optimiser uses each part of the gradient while it is in the cache, and the whole never exists. A
client's first steps on small batches are not even applied before they are needed (see
`DeferredSteps`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from clients.training.deferred import DeferredSteps, product

_FEWEST_WEIGHTS = 1 << 20  # of a layer; the gradient of a smaller one stays in the cache
_BLOCK = 1 << 17  # weights per block and thread: 0.5 MB of gradient
_FEW_ROWS = 16  # in a batch; a step on more is as quick if it is applied at once
_DEFERRED_ROWS = 128  # in the batches of all deferred steps


class FactoredWeight:
    """A large weight W [out, in] in training, and the factors of its gradient in this step.

    These weights get no `grad` from their layer; one from elsewhere, such as a proximal term, has
    to be added.
    """

    def __init__(self, weight: Tensor, defer: bool) -> None:
        """Prepare for training; `defer` allows that steps are not applied at once."""
        self.weight = weight
        self.velocity: Tensor | None = None  # of SGD, which `settle` writes
        self.factors: list[tuple[Tensor, Tensor]] = []  # G and X of each use of the layer
        self._deferred = DeferredSteps(weight, _DEFERRED_ROWS) if defer else None

    def outputs(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """Return inputs W^T + bias [B, out] for inputs [B, in] and a bias [out]."""
        if self._deferred is None:
            return product(inputs, self.weight, bias)
        return self._deferred.outputs(inputs, bias)

    def gradient_of_inputs(self, of_outputs: Tensor) -> Tensor:
        """Return of_outputs W [B, in] for the gradient of the outputs [B, out]."""
        if self._deferred is None:
            return product(of_outputs, self.weight.t())
        return self._deferred.gradient_of_inputs(of_outputs)

    def defer(self, lr: float, momentum: float, weight_decay: float) -> bool:
        """Take a step of SGD that `settle` will write, if that is possible and quicker."""
        rows = sum(len(inputs) for _, inputs in self.factors)
        if self._deferred is None or self.weight.grad is not None or rows > _FEW_ROWS:
            return False
        if not self._deferred.has_room(rows):
            return False
        self._deferred.step(*self._joined(), lr, momentum, weight_decay)
        return True

    def settle(self) -> None:
        """Write deferred steps to the weight and to the velocity; from now on defer none."""
        if self._deferred is not None:
            self._deferred.settle(self.velocity)
            self._deferred = None

    def gradient_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Return blocks of rows of the weight's gradient, [rows, in], with their place.

        A block is overwritten by the next one.
        """
        weight = self.weight
        of_outputs, inputs = self._joined()
        height = max(1, _BLOCK * torch.get_num_threads() // weight.shape[1])
        buffer = weight.new_empty(min(height, len(weight)), weight.shape[1])
        for start in range(0, len(weight), height):
            rows = slice(start, min(start + height, len(weight)))
            block = buffer[: rows.stop - start]
            if weight.grad is None:
                torch.mm(of_outputs[:, rows].t(), inputs, out=block)
            else:
                torch.addmm(weight.grad[rows], of_outputs[:, rows].t(), inputs, out=block)
            yield rows, block

    def _joined(self) -> tuple[Tensor, Tensor]:
        """Return the factors of the whole gradient; the usual case of one use needs no copy."""
        if len(self.factors) == 1:
            return self.factors[0]
        of_outputs, inputs = map(torch.cat, zip(*self.factors, strict=True))
        return of_outputs, inputs


class CurrentParameters(Sequence[nn.Parameter]):
    """Parameters for a loss that may read them; at the first access deferred steps are applied."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], weights: Mapping[Tensor, FactoredWeight]
    ) -> None:
        self._parameters, self._weights = parameters, weights

    def __len__(self) -> int:
        return len(self._parameters)

    def __getitem__(self, index: Any) -> Any:
        self.settle()
        return self._parameters[index]

    def settle(self) -> None:
        """Apply the deferred steps; no further ones are deferred."""
        for weight in self._weights.values():
            weight.settle()


@contextmanager
def factored(model: nn.Module, defer: bool) -> Iterator[dict[Tensor, FactoredWeight]]:
    """Let the large linear layers of a model keep factors instead of gradients inside the block.

    Yields these layers' weights with what a backward pass appends factors to
    (`torch.autograd.grad` finds no gradient of them). With `defer` the weights may lag behind
    SGD's steps inside the block. This is for float32 on a CPU without autocast.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and _is_large(m)]
    weights = {layer.weight: FactoredWeight(layer.weight, defer) for layer in layers}
    for layer in layers:
        layer.forward = partial(_forward, layer, weights[layer.weight])  # type: ignore[method-assign]
    try:
        yield weights
    finally:
        for layer in layers:
            del layer.forward
        for weight in weights.values():
            weight.velocity = None  # nobody needs it any more
            weight.settle()


def _is_large(layer: nn.Linear) -> bool:
    weight = layer.weight
    kind = (type(layer), type(weight), weight.device.type, weight.dtype)
    large = weight.requires_grad and weight.numel() >= _FEWEST_WEIGHTS
    changed = "forward" in vars(layer)
    return large and not changed and kind == (nn.Linear, nn.Parameter, "cpu", torch.float32)


def _forward(layer: nn.Linear, weight: FactoredWeight, inputs: Tensor) -> Tensor:
    """Map [B, in] to [B, out] as the layer does; other shapes have a gradient as usual."""
    if inputs.dim() != 2 or not torch.is_grad_enabled():
        weight.settle()
        return nn.Linear.forward(layer, inputs)
    outputs: Tensor = _FactoredLinear.apply(inputs, layer.weight, layer.bias, weight)
    return outputs


class _FactoredLinear(Function):
    """A linear layer whose weight's gradient is appended to the factors of `factored`."""

    @staticmethod
    def forward(ctx, inputs, weight, bias, factored):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs)
        ctx.factored = factored
        return factored.outputs(inputs, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        if ctx.needs_input_grad[1]:
            ctx.factored.factors.append((gradient, *ctx.saved_tensors))
        of_inputs = ctx.factored.gradient_of_inputs(gradient) if ctx.needs_input_grad[0] else None
        of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return of_inputs, None, of_bias, None
