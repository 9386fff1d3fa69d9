"""Scenes and files as sequences of frames with their true groups; knows no model."""

from neural_em.data.balls import bouncing_balls
from neural_em.data.coloured import ColouredShapesConfig, SpritesConfig
from neural_em.data.config import KINDS, DataConfig, load_split
from neural_em.data.dataset import Batch, Dataset
from neural_em.data.digits import flying_mnist
from neural_em.data.fitting import Fitting
from neural_em.data.generated import generate
from neural_em.data.hdf5 import load_hdf5
from neural_em.data.own import FileConfig
from neural_em.data.shapes import flying_shapes, static_shapes
from neural_em.data.sources import Source, open_source

__all__ = [
    "KINDS", "Batch", "ColouredShapesConfig", "DataConfig", "Dataset", "FileConfig", "Fitting", "Source",
    "SpritesConfig", "bouncing_balls", "flying_mnist", "flying_shapes", "generate", "load_hdf5", "load_split",
    "open_source", "static_shapes",
]  # fmt: skip
