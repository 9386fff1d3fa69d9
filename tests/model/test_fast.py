"""The fast path is held to the authors' numbers and to the plain path."""

import dataclasses

import numpy as np
import pytest
import torch

from neural_em import randomness
from neural_em.errors import NeuralEMError
from neural_em.model import ModelConfig, NeuralEM, preset
from neural_em.model.fast import FastNeuralEM, accelerate, linear
from neural_em.model.fast.convolutions import FastConvolution
from neural_em.model.fast.gathering import StepMemory, join
from neural_em.model.fast.graphs import GraphedStep
from neural_em.model.networks import Activation, Dense, initialise
from neural_em.training import device as devices
from tests.model.test_golden import CASES, authors_model, check, unrolled

PRESETS = ("static-shapes", "static-shapes-nem", "flying-shapes", "flying-mnist")
BEYOND = ("bouncing-balls", "coloured-shapes", "coloured-gaussian", "sprites", "tetrominoes", "balls-in-windows")


def network(name):
    """A preset's, or one with Gaussian pixels in colour, or with windows round binary ones."""
    if name == "coloured-gaussian":
        return dataclasses.replace(preset("coloured-shapes"), distribution="gaussian", window=None, inter_weight=0.2)
    return dataclasses.replace(preset("bouncing-balls"), window=0.2) if name == "balls-in-windows" else preset(name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_authors_implementation(case, dtype):
    golden, spec, model = authors_model(case)
    check(golden, spec, model, unrolled(golden, spec, model, accelerate, dtype=dtype))


def trained(model, network, x, steps, components=3):
    """Losses of so many steps of Adam through the given twin."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
    for step in range(steps):
        x_noisy, gamma = model.draw(x, components, randomness.keys(step, torch.arange(x.shape[1])))
        loss = network.unroll(x, components, x_noisy=x_noisy, gamma=gamma).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return torch.tensor(losses, dtype=torch.float64)


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize(("dtype", "steps", "tolerance"), [(torch.float64, 50, 1e-9), (torch.float32, 10, 1e-3)])
def test_trains_as_the_plain_path_does(name, dtype, steps, tolerance):
    config = preset(name)
    narrow = {"hidden": config.hidden // 8, "convolutions": tuple(c // 8 for c in config.convolutions)}
    config = dataclasses.replace(config, theta_size=32, **narrow)
    x = (torch.rand(3, 2, 1, config.height, config.width, generator=torch.Generator().manual_seed(5)) < 0.3).to(dtype)
    losses = []
    for twin in (lambda model: model, accelerate):
        model = NeuralEM(config, seed=1).to(dtype)
        losses.append(trained(model, twin(model), x, steps))
    assert losses[0][-1] < losses[0][0]
    torch.testing.assert_close(losses[1], losses[0], rtol=tolerance, atol=0)


def assert_one_model(twin, model):
    """Every parameter of one is the other's, under one name."""
    ours, theirs = dict(twin.named_parameters()), dict(model.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is parameter for name, parameter in theirs.items())
    assert list(twin.state_dict()) == list(model.state_dict())


@pytest.mark.parametrize("name", PRESETS)
def test_shares_its_parameters_with_the_plain_model(name):
    model = NeuralEM(preset(name))
    twin = accelerate(model)
    assert_one_model(twin, model)
    other = NeuralEM(preset(name), seed=5)
    twin.load_state_dict(other.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), other.parameters(), strict=True))
    assert_one_model(twin.double(), model)
    assert next(model.parameters()).dtype == torch.float64
    again = accelerate(twin)
    assert type(again) is FastNeuralEM
    assert_one_model(again, model)


@pytest.mark.parametrize("size", [(1, 1, 1), (3, 13, 10), (2, 5, 28)])
def test_any_frame_size(size):
    C, H, W = size
    for name in PRESETS:
        config = dataclasses.replace(preset(name), channels=C, height=H, width=W)
        model = NeuralEM(config, seed=2).double()
        x = torch.rand(3, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        x_noisy, gamma = model.draw(x, 4, randomness.keys(0, torch.arange(2)))
        both = [twin.unroll(x, 4, x_noisy=x_noisy, gamma=gamma) for twin in (model, accelerate(model))]
        for ours, theirs in zip(both[1], both[0], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("by_products", [True, False])
@pytest.mark.parametrize("size", [(1, 28, 28), (1, 13, 10), (3, 12, 16)])
def test_gradients_of_convolutions_either_way(by_products, size, monkeypatch):
    """As on ARM and as elsewhere, whatever this processor is."""
    monkeypatch.setattr(FastConvolution, "by_products", by_products)
    C, H, W = size
    narrow = {"theta_size": 5, "hidden": 6, "convolutions": (3, 4)}
    config = dataclasses.replace(preset("flying-shapes"), channels=C, height=H, width=W, **narrow)
    model = NeuralEM(config, seed=2).double()
    x = torch.rand(4, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    found = []
    for twin in (model, accelerate(model)):
        model.zero_grad()
        twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss.backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        ours, theirs = (twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma) for twin in (accelerate(model), model))
    torch.testing.assert_close(ours.psi, theirs.psi, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("on_arm", [True, False])
@pytest.mark.parametrize("rows", [1, 8, 100])
def test_products_of_few_rows_either_way(on_arm, rows, monkeypatch):
    """As on ARM and as elsewhere, whatever this processor is."""
    monkeypatch.setattr(linear, "ON_ARM", on_arm)
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (torch.rand(size, dtype=torch.float64, generator=random) for size in ((rows, 1024), (3, 1024), 3))
    found = linear.FastDense.product(x, weight, bias)
    np.testing.assert_allclose(found.numpy(), x.numpy() @ weight.numpy().T + bias.numpy(), rtol=1e-12)
    assert found.is_contiguous()


class Foreign(torch.nn.Module):
    """An encoder of layers that the fast path does not know, with one among them that it does."""

    def __init__(self):
        super().__init__()
        inner = torch.nn.Sequential(Dense(64, 32), Activation(32, "elu"))
        first = torch.nn.Conv2d(1, 16, 4, stride=4, bias=False)
        self.layers = torch.nn.Sequential(first, torch.nn.ELU(), torch.nn.Flatten(), inner)
        initialise(self, torch.Generator().manual_seed(0))

    def forward(self, x):
        return self.layers(x)


def test_layers_it_does_not_know_stay_as_they_are():
    model = NeuralEM(ModelConfig(height=8, width=8, theta_size=8, convolutions=(), hidden=32))
    model.m_step.encoder = Foreign()
    model = model.double()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    twins = (model, accelerate(model))
    losses = [twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss for twin in twins]
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert theirs.abs().max() > 0  # every layer takes part
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("deeper", [{"hidden": 12}, {"convolutions": (2, 2)}, {"layer_norm": True, "hidden": 12}])
def test_the_gradient_step_through_a_deeper_decoder(deeper):
    """Its step is a gradient itself, so that training differentiates the decoder twice."""
    sizes = {"height": 8, "width": 8, "theta_size": 6, "convolutions": (), "hidden": 0}
    model = NeuralEM(ModelConfig(m_step="gradient", **(sizes | deeper)), seed=1).double()
    x = torch.rand(4, 2, 1, 8, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64).round()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    losses = [twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss for twin in (model, accelerate(model))]
    gradients = [torch.autograd.grad(loss, list(model.parameters())) for loss in losses]
    torch.testing.assert_close(losses[1], losses[0])
    for ours, theirs in zip(gradients[1], gradients[0], strict=True):
        assert theirs.abs().max() > 0
        torch.testing.assert_close(ours, theirs)
    with pytest.raises(NeuralEMError, match=r"^dtype=.*bfloat16 is not for a model that keeps some of its plain"):
        accelerate(model, torch.bfloat16)


def test_joins_without_a_copy_only_what_lies_together():
    rows = StepMemory(3)
    like = torch.zeros(1)
    taken = [rows.take((2, 4), like).copy_(torch.full((2, 4), float(i))) for i in range(3)]
    joined = join(taken)
    assert joined.data_ptr() == taken[0].data_ptr()
    torch.testing.assert_close(joined, torch.cat(taken))
    torch.testing.assert_close(join(taken[::-1]), torch.cat(taken[::-1]))
    images = [torch.rand(2, 3, 4, 5) for _ in range(2)]
    torch.testing.assert_close(join(images), torch.cat(images))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_gpu_kernels_equal_the_authors_implementation(case, dtype):
    with torch.backends.cudnn.flags(allow_tf32=False):
        for twin in (accelerate, lambda model: model):
            golden, spec, model = authors_model(case)
            check(golden, spec, model, unrolled(golden, spec, model, twin, "cuda", dtype))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("name", "prior"),
    [(name, 0.0) for name in (*PRESETS, *BEYOND)] + [(name, 0.1) for name in (*PRESETS, *BEYOND[:-1])],
)
def test_the_gpu_kernels_equal_the_plain_path_in_float64(name, prior):
    config = dataclasses.replace(network(name), prior=prior)
    size = (config.channels, config.height, config.width)
    x = torch.rand(4, 3, *size, generator=torch.Generator().manual_seed(5)).double().cuda()
    results = []
    for twin in (lambda model: model, accelerate):
        model = NeuralEM(config, seed=1).double().cuda()
        x_noisy, gamma = model.draw(x, 5, randomness.keys(0, torch.arange(3)))
        out = twin(model).unroll(x, 5, x_noisy=x_noisy, gamma=gamma)
        out.loss.backward()
        results.append([*(part.detach() for part in out), *(parameter.grad for parameter in model.parameters())])
    for ours, theirs in zip(*reversed(results), strict=True):
        assert (ours - theirs).abs().max() <= 1e-10 * theirs.abs().max()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["static-shapes-nem", "flying-shapes", *BEYOND])
def test_single_steps_on_a_gpu_equal_the_plain_ones(name):
    """They are replayed from a CUDA graph, which must follow every change of the weights and of what it is given."""
    model = NeuralEM(network(name), seed=1).double().cuda()
    twin, (C, H, W) = accelerate(model), (model.config.channels, model.config.height, model.config.width)
    for seed, components in ((0, 3), (1, 3), (2, 2)):
        x = torch.rand(5, 2, C, H, W, generator=torch.Generator().manual_seed(seed)).double().cuda()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
            start = model.start(x[0], components, generator=torch.Generator("cuda").manual_seed(seed))
            ours = theirs = start
            kept = []
            for t in range(4):
                theirs, losses = model.step(theirs, x[t], x[t + 1], check=False)
                with torch.inference_mode() if seed == 1 else torch.no_grad():
                    ours, others = twin.step(ours, x[t], x[t + 1], check=False)
                kept.append((ours, theirs))
                torch.testing.assert_close(others, losses, rtol=1e-9, atol=1e-12)
        for ours, theirs in kept:  # an earlier step's state is not overwritten by the next one
            torch.testing.assert_close(ours[:3], theirs[:3], rtol=1e-9, atol=1e-12)
    assert [type(graph) for graph in twin.graphs.values()] == [GraphedStep] * 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["static-shapes-nem", "flying-shapes", *BEYOND])
def test_whole_sequences_without_gradients_are_replayed_step_by_step(name):
    model = NeuralEM(network(name), seed=1).double().cuda()
    twin, (C, H, W) = accelerate(model), (model.config.channels, model.config.height, model.config.width)
    x = torch.rand(5, 2, C, H, W, generator=torch.Generator().manual_seed(3)).double().cuda()
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2, device="cuda")))
    for _ in range(2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(0.9)
            theirs, ours = (each.unroll(x, 3, x_noisy=x_noisy, gamma=gamma) for each in (model, twin))
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    (graph,) = twin.graphs.values()
    assert isinstance(graph, GraphedStep)
    twin.unroll(x, 3, x_noisy=x_noisy, gamma=gamma).loss.backward()  # with gradients it is one piece again
    assert len(twin.graphs) == 1
    assert not twin.running


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("twin", [lambda model: model, accelerate])
def test_losses_that_nobody_watches_change_nothing(name, twin):
    """Steps without weight in the loss need no losses: the rest is the same, to the last bit of the gradients."""
    model = NeuralEM(dataclasses.replace(preset(name), loss_steps=(0.0, 1.0, 0.5)), seed=4).double()
    C, H, W = model.config.channels, model.config.height, model.config.width
    x = torch.rand(4, 2, C, H, W, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(2)))
    results = []
    for watch in (True, False):
        model.zero_grad()
        out = twin(model).unroll(x, 3, x_noisy=x_noisy, gamma=gamma, watch=watch)
        out.loss.backward()
        results.append(
            [out.loss, out.psi[-1], out.gamma[-1], out.total[1:], *(p.grad.clone() for p in model.parameters())]
        )
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("stream", [0, 1, 2, 16])
@pytest.mark.parametrize("count", [0, 1, 784, 5000])
def test_the_kernel_draws_the_same_bits(stream, count):
    from neural_em.model.fast import kernels

    keys = randomness.keys(9, torch.arange(6)).view(2, 3)
    drawn = kernels.uniform(keys.cuda(), count, stream)
    assert torch.equal(drawn.cpu(), randomness.uniform(keys, count, stream))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", [*PRESETS, *BEYOND])
def test_bfloat16_points_the_same_way(name):
    """Loss within 1 %, all gradients nearly parallel to those of float32; what users see stays float32."""
    config = network(name)
    size = (config.channels, config.height, config.width)
    x = (torch.rand(4, 8, *size, generator=torch.Generator().manual_seed(5)) < 0.3).cuda()
    results = []
    for dtype in (None, torch.bfloat16):
        model = NeuralEM(config, seed=1).cuda()
        x_noisy, gamma = model.draw(x.float(), 3, randomness.keys(0, torch.arange(8)))
        out = accelerate(model, dtype).unroll(x.float(), 3, x_noisy=x_noisy, gamma=gamma)
        out.loss.backward()
        assert out.psi.dtype == out.gamma.dtype == out.loss.dtype == torch.float32
        results.append((out, [parameter.grad for parameter in model.parameters()]))
    (exact, gradients), (coarse, others) = results
    assert not torch.equal(exact.psi, coarse.psi)
    torch.testing.assert_close(coarse.loss, exact.loss, rtol=0.01, atol=0)
    for ours, theirs in zip(others, gradients, strict=True):
        assert ours.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.97


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["flying-shapes", "flying-mnist"])
def test_whole_images_in_one_kernel_are_what_the_layers_make_of_them(name, dtype, monkeypatch):
    """On a Hopper GPU, in bfloat16 or TF32; with more images than it has multiprocessors, and with fewer."""
    from neural_em.model.fast.kernels import images

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    config, launched, launch = preset(name), [], images.launch
    monkeypatch.setattr(images, "launch", lambda kernel, *given: (launched.append(kernel), launch(kernel, *given)))
    for B in (2, 50, 200):
        x = torch.rand(3, B, 1, config.height, config.width, generator=torch.Generator().manual_seed(5)).cuda()
        results = []
        for usable in (images.usable, lambda *given: False):
            with devices.products("auto", x.device), monkeypatch.context() as patched:
                patched.setattr(images, "usable", usable)
                model = NeuralEM(config, seed=1).cuda()
                x_noisy, gamma = model.draw(x, 3, randomness.keys(0, torch.arange(B)))
                out = accelerate(model, dtype).unroll(x, 3, x_noisy=x_noisy, gamma=gamma)
                out.loss.backward()
            results.append((out.loss.detach(), [parameter.grad for parameter in model.parameters()]))
        (loss, gradients), (other, others) = results
        torch.testing.assert_close(loss, other, rtol=0.01, atol=0)
        for ours, theirs in zip(gradients, others, strict=True):
            assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.97
    assert sorted(launched) == sorted(6 * images.NAMES)
