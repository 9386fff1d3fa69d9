"""What several tests of the model share."""

import pytest
import torch


@pytest.fixture
def one_thread():
    """Layers this small are ten times slower on threads that wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
