"""Gradients of large linear layers as two factors, which the optimiser multiplies in blocks.

The gradient of a weight [out, in] is G^T X of the outputs' gradients G [B, out] and the inputs
X [B, in]. A layer of two million weights has a gradient of 8 MB. Written by the backward pass and
read again by the optimiser, it leaves the CPU's cache in between. In blocks of a few rows the
optimiser uses each part of the gradient while it is in the cache, and the whole never exists.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

Factors = list[tuple[Tensor, Tensor]]  # G and X of each use of the layer in this step

_FEWEST_WEIGHTS = 1 << 20  # of a layer; the gradient of a smaller one stays in the cache
_BLOCK = 1 << 17  # weights per block and thread: 0.5 MB of gradient
_FEW_ROWS = 32  # in a batch: weights times inputs is quicker than inputs times weights


@contextmanager
def factored(model: nn.Module) -> Iterator[dict[Tensor, Factors]]:
    """Let the large linear layers of a model keep factors instead of gradients inside the block.

    Yields the lists that a backward pass appends factors to, by weight. These weights get no
    `grad` from their layer (`torch.autograd.grad` finds none either); one from elsewhere, such as a
    proximal term, has to be added. This is for float32 on a CPU without autocast.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and _is_large(m)]
    kept: dict[Tensor, Factors] = {layer.weight: [] for layer in layers}
    for layer in layers:
        layer.forward = partial(_forward, layer, kept[layer.weight])  # type: ignore[method-assign]
    try:
        yield kept
    finally:
        for layer in layers:
            del layer.forward


def gradient_blocks(weight: Tensor, factors: Factors) -> Iterator[tuple[slice, Tensor]]:
    """Return blocks of rows of a weight's gradient, [rows, in], with their place.

    A block is overwritten by the next one.
    """
    single = len(factors) == 1  # the usual case needs no copy
    of_outputs, inputs = factors[0] if single else map(torch.cat, zip(*factors, strict=True))
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


def _is_large(layer: nn.Linear) -> bool:
    weight = layer.weight
    kind = (type(layer), type(weight), weight.device.type, weight.dtype)
    large = weight.requires_grad and weight.numel() >= _FEWEST_WEIGHTS
    changed = "forward" in vars(layer)
    return large and not changed and kind == (nn.Linear, nn.Parameter, "cpu", torch.float32)


def _forward(layer: nn.Linear, factors: Factors, input: Tensor) -> Tensor:
    """Map [B, in] to [B, out] as the layer does; other shapes have a gradient as usual."""
    if input.dim() != 2 or not torch.is_grad_enabled():
        return nn.Linear.forward(layer, input)
    outputs: Tensor = _FactoredLinear.apply(input, layer.weight, layer.bias, factors)
    return outputs


class _FactoredLinear(Function):
    """A linear layer whose weight's gradient is appended to `factors`."""

    @staticmethod
    def forward(ctx, inputs, weight, bias, factors):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(inputs, weight)
        ctx.factors = factors
        if len(inputs) > _FEW_ROWS or bias is None:
            return F.linear(inputs, weight, bias)
        outputs = torch.addmm(bias[:, None], weight, inputs.t()).t()
        return outputs.clone(memory_format=torch.contiguous_format)  # a view could not be changed

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        inputs, weight = ctx.saved_tensors
        if ctx.needs_input_grad[1]:
            ctx.factors.append((gradient, inputs))
        of_inputs = gradient @ weight if ctx.needs_input_grad[0] else None
        of_bias = gradient.sum(0) if ctx.needs_input_grad[2] else None
        return of_inputs, None, of_bias, None
