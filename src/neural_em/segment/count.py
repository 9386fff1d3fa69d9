"""How many objects there are: of more components than needed, those that stand for an object of their own."""

from typing import Any

import torch
from torch import Tensor

from neural_em.model.mixture import foreground
from neural_em.segment.pixels import Step

_SHARE = 0.02  # of the foreground: who owns less stands for nothing
_PIXELS = 3  # at least
_SAME = 0.6  # intersection over union of two components' predictions from which on they are one
_MEMORY = 0.8  # how much of what was stays in what is: objects do not come and go in a frame


class Counter:
    """Tells from frame to frame which components stand for objects; sharing pixels for a moment is no reason."""

    def __init__(self) -> None:
        self._share, self._same = torch.empty(0), torch.empty(0)

    def merged(self, x: Tensor, step: Step, prior: Any) -> Tensor:
        """The assignment gamma (K,H,W) with 0 for components without an object, and those of one object added up."""
        K = len(step.gamma)
        there = foreground(x, prior)
        owner = step.gamma.argmax(dim=0)[there]
        pixels = torch.bincount(owner, minlength=K).double()
        share = pixels / max(1, len(owner)) * (pixels >= _PIXELS)
        strong = 0.5 * (x - prior).abs().amax().clamp(min=0.2)
        shape = ((step.psi - prior).abs().amax(dim=1) > strong).flatten(1).double()
        both = shape @ shape.T
        area = shape.sum(dim=1)
        same = both / (area[:, None] + area[None, :] - both).clamp(min=1)
        if self._share.shape != share.shape:
            self._share, self._same = share, same
        self._share = _MEMORY * self._share + (1 - _MEMORY) * share
        self._same = _MEMORY * self._same + (1 - _MEMORY) * same
        return self._kept(step.gamma)

    def _kept(self, gamma: Tensor) -> Tensor:
        merged = torch.zeros_like(gamma)
        kept: list[int] = []
        for k in self._share.argsort(descending=True).tolist():
            twin = next((other for other in kept if self._same[k, other] > _SAME), None)
            if twin is not None:
                merged[twin] += gamma[k]
            elif self._share[k] >= _SHARE:
                merged[k] = gamma[k]
                kept.append(k)
        return merged if kept else gamma
