"""Neural EM as a scikit-learn estimator: images and sequences in, a cluster for every pixel out.

This is the only file that needs scikit-learn.
"""

import dataclasses
import hashlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from neural_em import randomness
from neural_em.errors import NeuralEMError, check_integer, check_number, refuse
from neural_em.evaluation.metrics import adjusted_mutual_info
from neural_em.model import BaseConfig, Model, build, preset
from neural_em.model.fast import accelerate
from neural_em.model.inference import batch_that_fits, best_start, infer
from neural_em.runs import fit
from neural_em.storage.pretrained import find_model
from neural_em.training import TrainingConfig
from neural_em.training import device as devices
from neural_em.training.display import shown

try:
    from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
    from sklearn.utils import check_array, check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise NeuralEMError("NeuralEMClustering needs scikit-learn: pip install 'neural-em[estimator]'") from None

_HELD_OUT, _START = 0x48454C, 0x535441  # tell the draws under one seed apart


class InputError(NeuralEMError, ValueError):
    """Input that cannot be used; a ``ValueError`` too, as scikit-learn's conventions ask for."""


class KindError(NeuralEMError, TypeError):
    """Input of a kind that cannot be used, such as a sparse matrix; a ``TypeError`` too."""


class _Inferred(NamedTuple):
    """What EM makes of B samples: of each, the start with the lowest loss."""

    loss: Tensor  # (B,), mean over the frames
    theta: Tensor  # (B,K,M), after the last frame
    gamma: Tensor  # (B,T,K,H,W)


class NeuralEMClustering(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Groups the pixels of images or sequences into components, one for each object.

    The samples are sequences of frames (N,T,C,H,W) with values in [0, 1]; images have T = 1. EM makes several steps on
    an image, and one on each frame of a sequence. What is drawn for a sample, its noise and its starts,
    follows from its pixels and ``random_state``, so its result does not depend on the other samples.

    Args:
        n_components: K.
        preset: the network, a key of `neural_em.model.config.PRESETS` such as ``flying-mnist``, or a model config.
            It is built for the size of the frames that `fit` sees.
        steps: EM steps on an image, or on a sequence's first frame; ``None``: the preset's number, or one.
        n_init: random starts of each sample when predicting; the one with the lowest loss is kept.
        max_epochs: of training, at most.
        patience: stop after so many epochs without a better loss on the held-out samples.
        batch_size: samples of a training step.
        learning_rate: of Adam.
        validation_fraction: share of the samples held out to stop early; 0 to stop by the training loss.
        max_minutes: stop training after so many minutes.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        random_state: a seed or ``RandomState``: of weights, order, noise and starts.
        verbose: 1 shows the training.

    Attributes:
        model_: the trained model.
        history_: each epoch in numbers, as dictionaries.
        n_iter_: epochs trained.
        n_features_in_: numbers in a frame, C*H*W.
        seed_: what was drawn from ``random_state``.
    """

    def __init__(
        self, n_components: int = 5, *, preset: str | BaseConfig = "flying-shapes", steps: int | None = None,
        n_init: int = 1, max_epochs: int = 100, patience: int = 10, batch_size: int = 64, learning_rate: float = 0.001,
        validation_fraction: float = 0.1, max_minutes: float | None = None, device: str = "auto",
        random_state: Any = None, verbose: int = 0,
    ) -> None:  # fmt: skip
        self.n_components = n_components
        self.preset = preset
        self.steps = steps
        self.n_init = n_init
        self.max_epochs = max_epochs
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.validation_fraction = validation_fraction
        self.max_minutes = max_minutes
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def from_model(cls, model: str | os.PathLike[str] | Model, **parameters: Any) -> Self:
        """An estimator that needs no fitting.

        Args:
            model: a shipped model's name, a run folder, a weight file, or the model itself.
            parameters: as for the class; ``n_components`` is the number used in training, where the file tells it.
        """
        if isinstance(model, str | os.PathLike):
            card = find_model(model)
            parameters = {**({"n_components": card.components} if card.components else {}), **parameters}
            model = card.load()
        estimator = cls(preset=model.config, **parameters)
        estimator._adopt(model.to(devices.choose(estimator.device)), [])
        return estimator

    def fit(self, X: ArrayLike, y: Any = None) -> Self:
        """Trains a model on the samples X (N,T,C,H,W); y is not used."""
        frames = self._frames(X)
        self._check_parameters()
        seed = int(check_random_state(self.random_state).randint(1 << 31))
        N, _, C, H, W = frames.shape
        usual = self.preset if isinstance(self.preset, BaseConfig) else preset(self.preset)
        config = dataclasses.replace(usual, channels=C, height=H, width=W, steps=self.steps or usual.steps)
        model = build(config, seed).to(devices.choose(self.device))
        training = TrainingConfig(
            components=int(self.n_components), batch_size=int(self.batch_size), learning_rate=self.learning_rate,
            epochs=int(self.max_epochs), patience=int(self.patience), seed=seed, tensorboard=False,
        )  # fmt: skip
        order = randomness.permutation(randomness.keys(seed, _HELD_OUT), N)
        held_out = int(N * self.validation_fraction)
        x = torch.from_numpy(frames).transpose(0, 1)  # (T,N,C,H,W)
        validation = x[:, order[:held_out]] if held_out else None
        with shown(quiet=not self.verbose) as (show, _):
            outcome = fit(model, x[:, order[held_out:]], training, validation, None, [show], self.max_minutes)
        self._adopt(outcome.model, [dataclasses.asdict(row) for row in outcome.progress.rows], seed)
        return self

    def fit_predict(self, X: ArrayLike, y: Any = None) -> NDArray[np.int64]:
        """Trains on X and returns its labels; they are not kept, since there is one for each pixel."""
        return self.fit(X).predict(X)

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """The component of each pixel, 0 to K-1: (N,T,H,W)."""
        return np.concatenate([part.gamma.argmax(dim=2).cpu().numpy() for part in self._infer(X)])

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float32]:
        """The soft assignment gamma (N,T,K,H,W), which sums to 1 over the components."""
        return np.concatenate([part.gamma.float().cpu().numpy() for part in self._infer(X)])

    def transform(self, X: ArrayLike) -> NDArray[np.float32]:
        """Each component's vector theta after the last frame: (N,K,M)."""
        return np.concatenate([part.theta.float().cpu().numpy() for part in self._infer(X)])

    def score(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """How good the grouping is; more is better.

        Args:
            X: samples (N,T,C,H,W).
            y: true groups (N,T,H,W), where they are known; 0 is not scored.

        Returns:
            With y, the mean AMI at the last frame (normalised by the larger entropy); without, the negative loss per
            frame.
        """
        if y is None:
            return -float(np.mean(np.concatenate([part.loss.double().cpu().numpy() for part in self._infer(X)])))
        labels = self.predict(X)[:, -1]
        groups = np.asarray(y)
        if groups.ndim != 4 or len(groups) != len(labels) or groups.shape[2:] != labels.shape[1:]:
            raise InputError(f"y: expected groups (N,T,H,W) of the frames, got shape {groups.shape}")
        scores = adjusted_mutual_info(torch.from_numpy(groups[:, -1].astype(np.int64)), torch.from_numpy(labels))
        if bool(scores.isnan().all()):
            raise InputError("y: expected a group other than 0 in some last frame, got none")
        return float(scores.nanmean())

    def __sklearn_tags__(self) -> Any:
        """Frames are neither one- nor two-dimensional, and lie in [0, 1]."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.positive_only = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags

    def _adopt(self, model: Model, history: list[dict[str, Any]], seed: int | None = None) -> None:
        config = model.config
        self.model_, self.history_, self.n_iter_ = model, history, len(history)
        self.n_features_in_ = config.channels * config.height * config.width
        self.seed_ = int(check_random_state(self.random_state).randint(1 << 31)) if seed is None else seed

    def _check_parameters(self) -> None:
        for name in ("n_components", "n_init", "max_epochs", "patience", "batch_size"):
            check_integer(name, getattr(self, name), 1)
        if self.steps is not None:
            check_integer("steps", self.steps, 1)
        check_number("validation_fraction", self.validation_fraction, "a number from 0 up to, not including, 1", 0, 1)
        if self.validation_fraction == 1:
            refuse("validation_fraction", "a number below 1", self.validation_fraction)

    def _frames(self, X: ArrayLike) -> NDArray[np.float32]:
        """X as frames (N,T,C,H,W), or the reason why it is none."""
        try:
            frames = check_array(X, dtype=np.float32, allow_nd=True, ensure_2d=False, input_name="X", estimator=self)
        except (ValueError, TypeError) as error:
            kind = KindError if isinstance(error, TypeError) else InputError
            raise kind(f"X: {' '.join(str(error).split())}") from None
        frames = self._shaped(frames)
        if frames.ndim != 5 or 0 in frames.shape:
            raise InputError(f"X: expected frames (N,T,C,H,W), got shape {frames.shape}")
        low, high = float(frames.min()), float(frames.max())
        if low < 0 or high > 1:
            what = "Negative values in data" if low < 0 else "X"
            raise InputError(f"{what}: expected numbers from 0 to 1, got {low:g} to {high:g}")
        return np.ascontiguousarray(frames)

    def _shaped(self, X: NDArray[np.float32]) -> NDArray[np.float32]:
        """Room for data in another layout."""
        return X

    def _infer(self, X: ArrayLike) -> Iterator[_Inferred]:
        """All samples, a batch at a time."""
        check_is_fitted(self)
        frames = self._frames(X)
        self._check_parameters()
        size = (self.model_.config.channels, self.model_.config.height, self.model_.config.width)
        if frames.shape[2:] != size:
            raise InputError(
                f"X: expected frames of (C,H,W) {size}, which the model is made for, got {frames.shape[2:]}"
            )
        N, T, C, H, W = frames.shape
        model, like = accelerate(self.model_), next(self.model_.parameters())
        most = batch_that_fits(int(self.n_components) * self.n_init * T * C * H * W, like.device, N)
        for first in range(0, N, most):
            part = frames[first : first + most]
            with torch.inference_mode():
                x = torch.from_numpy(part).transpose(0, 1).to(like)
                yield self._best(model, x, _content_keys(part).to(x.device))

    def _best(self, model: Model, x: Tensor, content: Tensor) -> _Inferred:
        """EM on x (T,B,C,H,W) from each start; of each sample, the start with the lowest loss."""
        seeds = (randomness.keys(self.seed_, _START, start, device=x.device) for start in range(self.n_init))
        found = [self._run(model, x, randomness.fold(seed, content)) for seed in seeds]
        best, sample = best_start(torch.stack([each.loss for each in found])), torch.arange(x.shape[1], device=x.device)
        return _Inferred(*(torch.stack(parts)[best, sample] for parts in zip(*found, strict=True)))

    def _run(self, model: Model, x: Tensor, keys: Tensor) -> _Inferred:
        settle = self.steps or (model.config.steps if len(x) == 1 else 1)
        frames = torch.cat([x[:1].expand(settle, -1, -1, -1, -1), x])
        gammas, losses = [], []
        for t, step in enumerate(infer(model, frames, self.n_components, keys, check=False)):
            if t >= settle - 1:  # the first frame's result is that of its last step
                gammas.append(step.state.gamma[:, :, 0])
                losses.append(step.info.total)
        return _Inferred(torch.stack(losses).mean(dim=0), step.state.theta, torch.stack(gammas, dim=1))


def _content_keys(frames: NDArray[np.float32]) -> Tensor:
    """A 64-bit number (B,) for each sample, made of its pixels: the sample's own, wherever it stands."""
    digests = (hashlib.blake2b(sample.tobytes(), digest_size=8).digest() for sample in frames)
    return torch.tensor([int.from_bytes(digest, "little", signed=True) for digest in digests])
