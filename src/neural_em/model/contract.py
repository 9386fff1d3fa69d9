"""What the rest of the package asks of a model, and which model each config is built as."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from neural_em.errors import refuse
from neural_em.model.config import MODELS, BaseConfig, ModelConfig
from neural_em.model.distributions import PixelDistribution
from neural_em.model.em import Info, NeuralEM, State, Unrolled
from neural_em.model.tagger import Tagger, TaggerConfig


class Model(Protocol):
    """An `nn.Module` with a `BaseConfig`; `UnrolledModel` and `NeuralEM` say what each method does."""

    training: bool

    def __init__(self, config: Any, seed: int = 0) -> None: ...
    @property
    def config(self) -> BaseConfig: ...
    @property
    def distribution(self) -> PixelDistribution: ...
    def frames(self, x: Tensor, steps: int | None, check: bool = True) -> Tensor: ...
    def draw(self, x: Tensor, components: int, keys: Tensor, steps: int | None = None) -> tuple[Tensor, Tensor]: ...
    def start(self, x: Tensor, components: int, gamma: Tensor | None = None,
              generator: torch.Generator | None = None) -> State: ...  # fmt: skip
    def step(self, state: State, x_noisy: Tensor, x_next: Tensor, check: bool = True,
             losses: bool = True) -> tuple[State, Info]: ...  # fmt: skip
    def run(self, state: State, x: Tensor, x_noisy: Tensor, weights: Tensor,
            watched: Sequence[bool] | None = None) -> Unrolled: ...  # fmt: skip
    def unroll(self, x: Tensor, components: int, steps: int | None = None, x_noisy: Tensor | None = None,
               gamma: Tensor | None = None, generator: torch.Generator | None = None, check: bool = True,
               watch: bool = True) -> Unrolled: ...  # fmt: skip
    def predict(self, state: State, rounded: bool = True) -> Tensor: ...
    def reassign(self, state: State) -> State: ...
    def draw_noise(self, x: Tensor, keys: Tensor, first: int = 0) -> Tensor: ...
    def add_noise(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor: ...
    def step_weights(self, steps: int, like: Tensor) -> Tensor: ...
    def weighted_steps(self, steps: int) -> list[bool]: ...

    # as every `nn.Module` has them
    def parameters(self) -> Iterator[nn.Parameter]: ...
    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any: ...
    def requires_grad_(self, requires_grad: bool = True) -> Self: ...
    def to(self, *arguments: Any, **options: Any) -> Self: ...
    def train(self, mode: bool = True) -> Self: ...
    def eval(self) -> Self: ...


# a sibling of `NeuralEM` is a config class with a kind of its own, a model class and a line here
MODELS[ModelConfig] = NeuralEM
MODELS[TaggerConfig] = Tagger


def build(config: BaseConfig, seed: int = 0) -> Model:
    """The model that the config describes, its weights drawn under the seed."""
    if type(config) not in MODELS:
        refuse("config", f"one of {', '.join(each.__name__ for each in MODELS)}", f"a {type(config).__name__}")
    first = BaseConfig.class_for({"kind": config.kind})
    if first is not type(config):
        refuse("model.kind", f"a kind of {type(config).__name__}'s own", f"{config.kind!r}, that of {first.__name__}")
    return MODELS[type(config)](config, seed)
