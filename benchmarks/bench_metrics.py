"""Times the batched scores against scikit-learn called image by image.

10,000 label maps of 28 x 28 pixels: shapes on an unscored background with an assignment that is right for four
pixels in five, and labels drawn at random. scikit-learn is timed on the first images only and given per image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import best_of
from neural_em.evaluation import adjusted_mutual_info, adjusted_rand_index

IMAGES, SIDE = 10_000, 28
ORACLE_IMAGES = 300
CASES = [("shapes", 3, 3), ("shapes", 4, 5), ("shapes", 5, 5), ("random", 3, 3), ("random", 5, 5)]
COLUMNS = {
    "score": "score", "maps": "maps", "groups": "groups", "components": "components", "device": "device",
    "ours": "microseconds", "scikit-learn": "sklearn_microseconds", "times faster": "speedup", "error": "error",
}  # fmt: skip


def main() -> dict[str, Any]:
    """The times, as rows of a table: microseconds an image, how many times faster, largest difference."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows = []
    for kind, objects, components in CASES:
        groups, assignment = label_maps(kind, objects, components)
        for score, (ours, oracle) in scores().items():
            per_image, expected = time_oracle(oracle, groups, assignment)
            for device in devices:
                maps = groups.to(device), assignment.to(device)
                seconds, found = best_of(lambda ours=ours, maps=maps: ours(*maps), device, 11)  # type: ignore[misc]
                rows.append({
                    "score": score, "maps": kind, "groups": objects, "components": components, "device": device,
                    "microseconds": 1e6 * seconds / IMAGES, "sklearn_microseconds": 1e6 * per_image,
                    "speedup": per_image * IMAGES / seconds,
                    "error": float((found[:ORACLE_IMAGES].cpu() - expected).abs().max()),
                })  # fmt: skip
    return {"images": IMAGES, "pixels": SIDE * SIDE, "threads": torch.get_num_threads(), "rows": rows}


def table(result: dict[str, Any]) -> str:
    """The rows as text."""
    lines = [
        f"{result['images']} images of {result['pixels']} pixels, {result['threads']} CPU threads; in microseconds"
    ]
    lines.append("  ".join(f"{name:>12}" for name in COLUMNS))
    lines += ["  ".join(f"{_text(row[name]):>12}" for name in COLUMNS.values()) for row in result["rows"]]
    return "\n".join(lines)


def _text(value: float | str) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def scores() -> dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Any, Any], float]]]:
    """Ours and scikit-learn's function for each score."""
    from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

    return {
        "ami": (adjusted_mutual_info, lambda a, b: adjusted_mutual_info_score(a, b, average_method="max")),
        "ari": (adjusted_rand_index, adjusted_rand_score),
    }


def label_maps(kind: str, objects: int, components: int) -> tuple[Tensor, Tensor]:
    """Groups and assignment (N,28,28) int64."""
    generator = torch.Generator().manual_seed(objects * 10 + components)
    found = torch.randint(0, components, (IMAGES, SIDE, SIDE), generator=generator)
    if kind == "random":
        return torch.randint(0, objects + 1, (IMAGES, SIDE, SIDE), generator=generator), found
    groups = torch.zeros(IMAGES, SIDE, SIDE, dtype=torch.int64)
    place = torch.arange(SIDE)
    for label in range(1, objects + 1):  # rectangles the size of the shapes, the later above the earlier
        top, left, height, width = (
            torch.randint(low, high, (IMAGES, 1), generator=generator)
            for low, high in ((0, 21), (0, 17), (5, 8), (5, 12))
        )
        rows = (place >= top) & (place < top + height)
        columns = (place >= left) & (place < left + width)
        groups[rows[:, :, None] & columns[:, None, :]] = label
    right = torch.rand(groups.shape, generator=generator) < 0.8
    return groups, torch.where(right & (groups > 0), (groups - 1) % components, found)


def time_oracle(oracle: Callable[[Any, Any], float], groups: Tensor, assignment: Tensor) -> tuple[float, Tensor]:
    """Seconds an image, the best of two passes, and the scores (n,)."""
    pairs = [
        (true[true > 0].numpy(), found[true > 0].numpy())
        for true, found in zip(groups[:ORACLE_IMAGES], assignment[:ORACLE_IMAGES], strict=True)
    ]
    best, expected = best_of(lambda: [oracle(true, found) for true, found in pairs], "cpu", 2)
    return best / len(pairs), torch.tensor(expected, dtype=torch.float64)


if __name__ == "__main__":
    print(table(main()))
