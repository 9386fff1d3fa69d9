"""Where and with what a measurement was made, so that it can be compared and repeated."""

from __future__ import annotations

from typing import Any

import torch

from neural_em.runs.environment import describe


def environment() -> dict[str, Any]:
    """What a run folder records, with PyTorch's build; ``NEM_COMMIT`` names the commit where there is no git."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    made = describe(device, torch.get_float32_matmul_precision())
    return {**made, "torch": torch.__version__}
