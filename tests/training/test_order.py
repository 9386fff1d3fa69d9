"""The order of samples and their keys: pure functions of seed and epoch."""

from __future__ import annotations

import torch

from neural_em.training import order


def test_an_epoch_sees_every_sample_once() -> None:
    """With nothing left over, an epoch is a permutation."""
    indices, keys = order.plan(seed=3, epoch=0, size=96, batch_size=8)
    assert indices.shape == keys.shape == (12, 8)
    assert sorted(indices.flatten().tolist()) == list(range(96))
    assert indices.flatten().tolist() != list(range(96))


def test_what_does_not_fill_a_batch_is_left_out() -> None:
    """50,000 samples in batches of 64 are the paper's 781 steps; a small set is one small batch."""
    assert order.steps_of(50_000, 64) == (781, 64)
    assert order.steps_of(5, 64) == (1, 5)
    assert order.plan(0, 0, 10, 4)[0].unique().numel() == 8


def test_epochs_and_seeds_differ_and_repeat() -> None:
    """The same arguments give the same plan; another epoch or seed gives another order and other keys."""
    (indices, keys), again = order.plan(0, 0, 100, 10), order.plan(0, 0, 100, 10)
    assert torch.equal(indices, again[0])
    assert torch.equal(keys, again[1])
    for other, other_keys in (order.plan(0, 1, 100, 10), order.plan(1, 0, 100, 10)):
        assert not torch.equal(indices, other)
        assert not set(keys.flatten().tolist()) & set(other_keys.flatten().tolist())


def test_a_key_belongs_to_the_sample_not_to_its_batch() -> None:
    """In one epoch, a sample has the same key whatever the batch size."""
    by_sample = []
    for batch_size in (5, 20):
        indices, keys = order.plan(7, 2, 100, batch_size)
        by_sample.append(dict(zip(indices.flatten().tolist(), keys.flatten().tolist(), strict=True)))
    assert by_sample[0] == by_sample[1]
    assert len(set(by_sample[0].values())) == 100


def test_fresh_data_never_repeat() -> None:
    """Epoch e draws on samples e * size and up."""
    seen = torch.cat([order.plan(0, epoch, 20, 5, fresh=True)[0].flatten() for epoch in range(3)])
    assert sorted(seen.tolist()) == list(range(60))


def test_fixed_batches_are_the_same_neighbours_in_another_order() -> None:
    """30 samples in batches of 4 are seven batches; the last two samples are left out."""
    neighbours = {(first, first + 1, first + 2, first + 3) for first in range(0, 28, 4)}
    orders = set()
    for epoch in range(5):
        indices, keys = order.plan(0, epoch, 30, 4, fixed=True)
        assert {tuple(batch) for batch in indices.tolist()} == neighbours
        shuffled, their_keys = order.plan(0, epoch, 30, 4)
        by_sample = dict(zip(shuffled.flatten().tolist(), their_keys.flatten().tolist(), strict=True))
        ours = dict(zip(indices.flatten().tolist(), keys.flatten().tolist(), strict=True))
        assert all(by_sample[sample] == ours[sample] for sample in by_sample.keys() & ours.keys())
        orders.add(tuple(indices[:, 0].tolist()))
    assert len(orders) == 5
    later, _ = order.plan(0, 3, 30, 4, fresh=True, fixed=True)
    assert torch.equal(later, order.plan(0, 3, 30, 4, fixed=True)[0] + 90)


def test_validation_keys_are_fixed() -> None:
    """They depend on the sample alone, and on neither the batch nor anything else."""
    keys = order.validation_keys(torch.arange(10))
    assert torch.equal(keys[4:], order.validation_keys(torch.arange(4, 10)))
    assert keys.unique().numel() == 10


def test_fresh_validation_keys_are_of_a_seed_and_an_epoch() -> None:
    """No two of them share one, nor do they with the fixed ones."""
    ways = [None, (0, 0), (0, 1), (1, 0), (1, 1)]
    keys = torch.cat([order.validation_keys(torch.arange(10), way) for way in ways])
    assert keys.unique().numel() == 50
    assert torch.equal(keys[24:30], order.validation_keys(torch.arange(4, 10), (0, 1)))
