"""Gradients of sequences whose activations do not fit into memory: a few steps at a time."""

import torch
from torch import Tensor

from neural_em.model import Model, State


def segmented_gradients(
    network: Model, x: Tensor, x_noisy: Tensor, start: State, share: float, length: int, truncate: bool
) -> Tensor:
    """Adds the gradients of ``share`` times the unroll's loss to the parameters, keeping ``length`` steps at a time.

    Without truncation they are exact: the states between the segments are found first, then each segment is run again,
    from the last to the first, and handed the gradient of the state it ends in. With truncation each segment goes back
    on its own, as soon as it is run, and no gradient crosses its borders.

    Frames x (T+1,B,C,H,W), x_noisy (T,B,C,H,W); ``start`` is the state before the first step. Returns the loss,
    detached.
    """
    weights, watched = network.step_weights(len(x_noisy), x) * share, network.loss_weights(len(x_noisy))
    spans = [slice(i, min(i + length, len(x_noisy))) for i in range(0, len(x_noisy), length)]

    def run(state: State, span: slice) -> tuple[State, Tensor]:
        out = network.run(state, x[span.start : span.stop + 1], x_noisy[span], weights[span], watched[span])
        return State(out.theta[-1], out.psi[-1], out.gamma[-1], state.prior), out.loss

    if truncate:
        losses = []
        for span in spans:
            start, loss = run(_cut(start), span)
            losses.append(loss.detach())
            if loss.requires_grad:
                loss.backward()
        return torch.stack(losses).sum()

    states, learned = [start], start.prior if start.prior is not None and start.prior.requires_grad else None
    with torch.no_grad():
        for span in spans[:-1]:
            states.append(run(states[-1], span)[0])
    losses, after = [], None
    for span, before in zip(reversed(spans), reversed(states), strict=True):
        before = _cut(before, learned is not None)
        for part in (before.theta, before.psi, before.gamma):
            part.requires_grad_()
        end, loss = run(before, span)
        roots: list[tuple[Tensor, Tensor | None]] = [(loss, None)]
        if after is not None:  # what the later segments want of this one's end
            parts = zip(end, after, strict=True)
            roots += [(part, grad) for part, grad in parts if part is not None and grad is not None]
        roots = [(root, gradient) for root, gradient in roots if root.requires_grad]
        torch.autograd.backward([root for root, _ in roots], [gradient for _, gradient in roots])
        after = tuple(None if part is None else part.grad for part in before)
        losses.append(loss.detach())
    if learned is not None and after is not None:  # the start, too, comes from the learned prior
        torch.autograd.backward([start.psi, learned], [after[1], after[3]])
    return torch.stack(losses).sum()


def _cut(state: State, learned: bool = False) -> State:
    """The state without what it came from; a learned prior is cut off only where its gradient is wanted by itself."""
    theta, psi, gamma, prior = state
    prior = prior.detach().requires_grad_() if prior is not None and learned else prior
    return State(theta.detach(), psi.detach(), gamma.detach(), prior)
