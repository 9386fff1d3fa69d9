"""The objects in the user's own images and video."""

from neural_em.segment.clip import SCORES, Segmentation, Segmented, segment
from neural_em.segment.config import MAX_COMPONENTS, SegmentConfig, usual_channels
from neural_em.segment.pixels import Step
from neural_em.segment.stream import Stream

__all__ = ["MAX_COMPONENTS", "SCORES", "SegmentConfig", "Segmentation", "Segmented", "Step", "Stream", "segment",
           "usual_channels"]  # fmt: skip
