"""The growth that the scaling benchmark reports."""

import numpy as np
import pytest

from benchmarks.scaling_plot import fitted_power, scaling_plot


def test_the_fitted_power_is_that_of_an_exact_law():
    sizes = np.array([3.0, 10.0, 50.0])
    assert fitted_power(sizes, 0.2 * sizes**1.7) == (pytest.approx(1.7), pytest.approx(0.2))
    grows = np.array([1.0, 2.0, 4.0, 8.0, 16.0])
    assert fitted_power(grows, np.maximum(grows, 4)) == (pytest.approx(1), pytest.approx(1))  # its last factor of four
    (axes,) = scaling_plot({"cubic": (sizes, sizes**3)}, "seconds").axes
    assert "3.00" in axes.get_legend().get_texts()[0].get_text()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
