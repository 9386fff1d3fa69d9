"""Models as files: one safetensors file that carries its own config; nothing is ever unpickled."""

from neural_em.storage.weights import load, save

__all__ = ["load", "save"]
