"""The fast path on a GPU is held to the authors' numbers and to the plain path."""

import dataclasses

import pytest
import torch

from neural_em import randomness
from neural_em.model import NeuralEM, preset
from neural_em.model.fast import accelerate, linear
from neural_em.model.fast.graphs import GraphedStep
from neural_em.training import device as devices
from tests.model.test_fast import PRESETS
from tests.model.test_golden import CASES, authors_model, check, unrolled

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

BEYOND = ("bouncing-balls", "coloured-shapes", "coloured-gaussian", "sprites", "tetrominoes", "balls-in-windows")


def network(name):
    """A preset's, or one with Gaussian pixels in colour, or with windows round binary ones."""
    if name == "coloured-gaussian":
        return dataclasses.replace(preset("coloured-shapes"), distribution="gaussian", window=None, inter_weight=0.2)
    return dataclasses.replace(preset("bouncing-balls"), window=0.2) if name == "balls-in-windows" else preset(name)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_gpu_kernels_equal_the_authors_implementation(case, dtype):
    with torch.backends.cudnn.flags(allow_tf32=False):
        for twin in (accelerate, lambda model: model):
            golden, spec, model = authors_model(case)
            check(golden, spec, model, unrolled(golden, spec, model, twin, "cuda", dtype))


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


@pytest.mark.parametrize("stream", [0, 1, 2, 16])
@pytest.mark.parametrize("count", [0, 1, 784, 5000])
def test_the_kernel_draws_the_same_bits(stream, count):
    from neural_em.model.fast import kernels

    keys = randomness.keys(9, torch.arange(6)).view(2, 3)
    drawn = kernels.uniform(keys.cuda(), count, stream)
    assert torch.equal(drawn.cpu(), randomness.uniform(keys, count, stream))


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


def errors(config, B, dtype):
    """Of the loss, and the root mean square of all gradients': relative ones, beside float64, in TF32 or a dtype."""
    x = torch.rand(3, B, 1, config.height, config.width, generator=torch.Generator().manual_seed(5)).cuda()
    results = []
    for wide in (torch.float64, torch.float32):
        model = NeuralEM(config, seed=1).cuda()
        x_noisy, gamma = (each.to(wide) for each in model.draw(x, 3, randomness.keys(0, torch.arange(B))))
        model = model.to(wide)
        with devices.products("auto", x.device):
            network = accelerate(model, dtype) if wide == torch.float32 else model
            out = network.unroll(x.to(wide), 3, x_noisy=x_noisy, gamma=gamma)
            out.loss.backward()
        results.append([out.loss.detach().double(), *(parameter.grad.double() for parameter in model.parameters())])
    loss, *gradients = ((ours - exact).norm() / exact.norm() for exact, ours in zip(*results, strict=True))
    return float(loss), float(torch.stack(gradients).square().mean().sqrt())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["flying-shapes", "flying-mnist"])
def test_whole_images_in_one_kernel_are_as_exact_as_layers(name, dtype, monkeypatch):
    """On a Hopper GPU, in bfloat16 or TF32; with more images than it has multiprocessors, and with fewer."""
    from neural_em.model.fast.kernels import images

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0")
    launched, launch = [], images.launch
    monkeypatch.setattr(images, "launch", lambda kernel, *given: (launched.append(kernel), launch(kernel, *given)))
    for B in (2, 50, 200):
        loss, gradients = errors(preset(name), B, dtype)
        with monkeypatch.context() as patched:
            patched.setattr(images, "usable", lambda *given: False)
            _, of_layers = errors(preset(name), B, dtype)
        assert loss <= 0.01
        assert gradients <= 2 * of_layers
    once = [name for name in images.NAMES if name.endswith("weights")]  # for all steps
    assert sorted(launched) == sorted(6 * [name for name in images.NAMES if name not in once] + 3 * once)


@pytest.mark.parametrize("name", ["flying-shapes", "bouncing-balls"])
def test_large_layers_in_16_bits_are_as_exact_as_tf32(name, monkeypatch):
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU with TF32")
    used, wanted = [], linear.in_halves
    monkeypatch.setattr(linear, "in_halves", lambda *given: used.append(wanted(*given)) or used[-1])
    loss, gradients = errors(preset(name), 20, None)
    assert used.count(True) == 2
    with monkeypatch.context() as patched:
        patched.setattr(linear, "in_halves", lambda *given: False)
        _, in_tf32 = errors(preset(name), 20, None)
    assert loss <= 0.01
    assert 0 < gradients <= 2 * in_tf32
