"""Steps of SGD on a large weight that are not yet applied to it.

A client of a large federation takes a few steps on small batches. Each step on a layer of two
million weights reads and writes 8 MB of weights and 8 MB of velocity, to add a gradient of rank 10.
The steps of the client's first epoch can stay factors: their sum has a low rank, the layer's
passes use it as it is, and the weight is written once, after them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class DeferredSteps:
    """Steps of SGD from a weight W_0 [out, in] and velocity zero, as factors of low rank.

    Weight and velocity are  W = a W_0 + G^T diag(c) X  and  V = b W_0 + G^T diag(d) X,  where the
    rows of G [rank, out] and X [rank, in] are the factors of the gradients of all steps. W_0 is the
    content of `weight`, which only `settle` changes.
    """

    def __init__(self, weight: Tensor, most_rows: int) -> None:
        """Prepare for a rank of at most `most_rows`."""
        self._weight = weight
        self._of_outputs = weight.new_empty(most_rows, weight.shape[0])  # G
        self._inputs = weight.new_empty(most_rows, weight.shape[1])  # X
        self._in_weight, self._in_velocity = weight.new_zeros(2, most_rows)  # c, d
        self._start_in_weight, self._start_in_velocity = 1.0, 0.0  # a, b
        self.rank = 0

    def has_room(self, rows: int) -> bool:
        """Whether a step on a batch of this many rows can be taken."""
        return self.rank + rows <= len(self._inputs)

    def step(
        self, of_outputs: Tensor, inputs: Tensor, lr: float, momentum: float, weight_decay: float
    ) -> None:
        """Take a step with the gradient of_outputs^T inputs, of [B, out] and [B, in].

        v <- momentum v + g + weight_decay w; w <- w - lr v, as `FusedSGD`.
        """
        new = slice(self.rank, self.rank + len(inputs))
        self._of_outputs[new], self._inputs[new] = of_outputs, inputs
        self._start_in_velocity = (
            momentum * self._start_in_velocity + weight_decay * self._start_in_weight
        )
        self._in_velocity.mul_(momentum).add_(self._in_weight, alpha=weight_decay)
        self._in_velocity[new] = 1.0
        self._start_in_weight -= lr * self._start_in_velocity
        self._in_weight.sub_(self._in_velocity, alpha=lr)
        self.rank = new.stop

    def outputs(self, inputs: Tensor, bias: Tensor | None) -> Tensor:
        """Return inputs W^T + bias [B, out] for inputs [B, in] and a bias [out]."""
        if not self.rank:
            return product(inputs, self._weight, bias)
        of_outputs, kept, c = self._factors(self._in_weight)
        outputs = product(inputs * self._start_in_weight, self._weight, bias)
        return outputs.addmm_((inputs @ kept.t()).mul_(c), of_outputs)

    def gradient_of_inputs(self, of_outputs: Tensor) -> Tensor:
        """Return of_outputs W [B, in] for the gradient of the outputs [B, out]."""
        if not self.rank:
            return product(of_outputs, self._weight.t())
        factors, kept, c = self._factors(self._in_weight)
        of_inputs = product(of_outputs * self._start_in_weight, self._weight.t())
        return of_inputs.addmm_((of_outputs @ factors.t()).mul_(c), kept)

    @torch.no_grad()
    def settle(self, velocity: Tensor | None) -> None:
        """Write W to the weight and, if given, V to `velocity`; take no step after that."""
        if not self.rank:
            return
        if velocity is not None:
            factors, kept, d = self._factors(self._in_velocity)
            scaled, start = (factors * d[:, None]).t(), self._start_in_velocity
            torch.addmm(self._weight, scaled, kept, beta=start, out=velocity)
        factors, kept, c = self._factors(self._in_weight)
        self._weight.addmm_((factors * c[:, None]).t(), kept, beta=self._start_in_weight)

    def _factors(self, coefficients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        used = slice(self.rank)
        return self._of_outputs[used], self._inputs[used], coefficients[used]


def product(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return inputs weight^T + bias [B, out], by oneDNN where PyTorch has it.

    For a few rows and a large weight PyTorch's own products take half as long again.
    """
    if _ONEDNN:
        outputs: Tensor = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")
        return outputs
    return F.linear(inputs, weight, bias)
