"""Keyed random numbers, against SplitMix64 written out in Python's own integers and against statistics."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from neural_em import randomness

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
SEEDS = [0, 1, 2, 12345, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**70 + 5]


def mix(bits: int) -> int:
    """SplitMix64's output function as published: unsigned 64-bit arithmetic."""
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def reference_key(seed: int, *words: int) -> int:
    key = mix(seed & MASK)
    for word in words:
        key = mix(((key ^ (word & MASK)) + GOLDEN) & MASK)
    return key


def reference_uniform(key: int, count: int, stream: int = 0) -> list[float]:
    start = mix(((key + stream + 1) * GOLDEN) & MASK)
    pairs = (count + 1) // 2
    words = [mix((start + step * GOLDEN) & MASK) for step in range(1, pairs + 1)]
    high, low = [word >> 40 for word in words], [(word >> 8) & 0xFFFFFF for word in words]
    return [bits / 2**24 for bits in (high + low)[:count]]


def test_the_reference_is_splitmix64() -> None:
    """The first numbers from seed 1234567 as commonly published for this generator."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [mix((1234567 + step * GOLDEN) & MASK) for step in range(1, 5)] == published


@pytest.mark.parametrize("seed", SEEDS)
def test_keys_equal_the_reference(seed: int) -> None:
    for words in [(), (0,), (1, 2), (3, -7, 2**40)]:
        assert int(randomness.keys(seed, *words)) & MASK == reference_key(seed, *words)


def test_keys_broadcast_over_tensor_words() -> None:
    index, epoch = torch.arange(5), torch.arange(3).reshape(3, 1)
    keys = randomness.keys(7, index, epoch)
    assert keys.shape == (3, 5)
    assert keys.dtype == torch.int64
    for e in range(3):
        for i in range(5):
            assert int(keys[e, i]) & MASK == reference_key(7, i, e)


def test_keys_are_distinct_and_order_matters() -> None:
    keys = randomness.keys(0, torch.arange(300).reshape(-1, 1), torch.arange(300))
    assert keys.unique().numel() == keys.numel()
    assert int(randomness.keys(0, 1, 2)) != int(randomness.keys(0, 2, 1))
    assert int(randomness.keys(0, 1)) != int(randomness.keys(1, 0))


@pytest.mark.parametrize("count", [0, 1, 2, 5, 64])
@pytest.mark.parametrize("stream", [0, 1, 9])
def test_uniform_equals_the_reference_exactly(count: int, stream: int) -> None:
    for seed in SEEDS:
        drawn = randomness.uniform(randomness.keys(seed, 3), count, stream)
        assert drawn.dtype == torch.float32
        assert drawn.tolist() == reference_uniform(reference_key(seed, 3), count, stream)


@pytest.mark.parametrize("shape", [(), (1,), (4, 3), (0,)])
def test_shapes(shape: tuple[int, ...]) -> None:
    key = randomness.keys(0, torch.zeros(shape, dtype=torch.int64))
    assert randomness.uniform(key, 7).shape == (*shape, 7)
    assert randomness.normal(key, 7).shape == (*shape, 7)
    assert randomness.integers(key, 7, 10).shape == (*shape, 7)


@pytest.mark.parametrize(("samples", "count"), [(300, 1001), (70000, 3), (1, 200001), (2, 131072)])
def test_a_sample_does_not_depend_on_its_batch(samples: int, count: int) -> None:
    """Sizes on either side of the internal block of 65,536 numbers, against each sample alone and against chunks."""
    key = randomness.keys(5, torch.arange(samples))
    whole = randomness.uniform(key, count)
    for i in {0, 1, samples // 2, samples - 1} - {samples}:
        assert torch.equal(whole[i], randomness.uniform(key[i], count))
    chunks = [randomness.uniform(part, count) for part in key.split(max(1, samples // 3))]
    assert torch.equal(torch.cat(chunks), whole)
    order = randomness.permutation(randomness.keys(1), samples)
    assert torch.equal(randomness.uniform(key[order], count), whole[order])


def test_the_global_generator_is_neither_read_nor_moved() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = randomness.normal(randomness.keys(0, torch.arange(4)), 10)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(randomness.normal(randomness.keys(0, torch.arange(4)), 10), first)


def test_uniform_is_uniform_within_and_across_samples() -> None:
    drawn = randomness.uniform(randomness.keys(11, torch.arange(2000)), 100)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for numbers in (drawn.flatten(), drawn[:, 0], drawn[:, 99], drawn[0]):
        counts = torch.histc(numbers, bins=10, min=0, max=1)
        assert stats.chisquare(counts.numpy()).pvalue > 1e-3
    # the lowest of the 24 bits are as random as the highest
    low = (drawn.flatten().double() * 2**24).to(torch.int64) % 16
    assert stats.chisquare(torch.bincount(low, minlength=16).numpy()).pvalue > 1e-3


@pytest.mark.parametrize("pair", ["samples", "streams", "positions", "halves", "seeds"])
def test_neighbours_are_independent(pair: str) -> None:
    """Chi-square of an 8 x 8 table of two neighbouring draws: 49 degrees of freedom where they are independent."""
    keys = randomness.keys(3, torch.arange(40000))
    one = randomness.uniform(keys, 4)
    other = {
        "samples": one.roll(1, dims=0)[:, 0],
        "streams": randomness.uniform(keys, 4, stream=1)[:, 0],
        "positions": one[:, 1],
        "halves": one[:, 2],  # the other half of the same 64-bit word
        "seeds": randomness.uniform(randomness.keys(4, torch.arange(40000)), 4)[:, 0],
    }[pair]
    cells = (one[:, 0] * 8).long() * 8 + (other * 8).long()
    table = torch.bincount(cells, minlength=64).reshape(8, 8)
    assert stats.chi2_contingency(table.numpy()).pvalue > 1e-3


def test_normal_is_standard_normal() -> None:
    drawn = randomness.normal(randomness.keys(2, torch.arange(1000)), 101)
    assert torch.isfinite(drawn).all()
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3
    # both halves of the transform, and their independence
    assert stats.kstest(drawn[:, :51].flatten().numpy(), "norm").pvalue > 1e-3
    assert stats.kstest(drawn[:, 51:].flatten().numpy(), "norm").pvalue > 1e-3
    assert abs(stats.pearsonr(drawn[:, 0].numpy(), drawn[:, 51].numpy()).statistic) < 0.1


def test_integers_are_uniform_and_below_high() -> None:
    key = randomness.keys(8, torch.arange(3000))
    for high in (1, 2, 3, 9, 22):
        drawn = randomness.integers(key, 20, high)
        assert drawn.dtype == torch.int64
        counts = torch.bincount(drawn.flatten(), minlength=high)
        assert counts.numel() == high
        if high > 1:
            assert stats.chisquare(counts.numpy()).pvalue > 1e-3


def test_integers_take_a_bound_for_each_number() -> None:
    high = torch.tensor([1, 2, 1000])
    drawn = randomness.integers(randomness.keys(8, torch.arange(3000)), 3, high)
    assert drawn.amin(dim=0).tolist()[:2] == [0, 0]
    assert (drawn < high).all()
    assert drawn[:, 1].unique().tolist() == [0, 1]
    assert drawn[:, 2].max() > 900


@pytest.mark.parametrize("length", [0, 1, 2, 1000])
def test_permutation_is_one(length: int) -> None:
    order = randomness.permutation(randomness.keys(1), length)
    assert order.sort().values.tolist() == list(range(length))


def test_permutations_are_all_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for epoch in range(2400):
        order = tuple(randomness.permutation(randomness.keys(1, epoch), 4).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


@pytest.mark.gpu
def test_a_gpu_draws_the_same_numbers() -> None:
    index = torch.arange(500)
    cpu, gpu = randomness.keys(9, index), randomness.keys(9, index, device="cuda")
    assert gpu.device.type == "cuda"
    assert torch.equal(gpu.cpu(), cpu)
    assert torch.equal(randomness.uniform(gpu, 333, 2).cpu(), randomness.uniform(cpu, 333, 2))
    assert torch.equal(randomness.integers(gpu, 333, 9).cpu(), randomness.integers(cpu, 333, 9))
    assert torch.equal(randomness.permutation(gpu[0], 999).cpu(), randomness.permutation(cpu[0], 999))
    torch.testing.assert_close(randomness.normal(gpu, 333).cpu(), randomness.normal(cpu, 333), rtol=1e-5, atol=1e-6)
