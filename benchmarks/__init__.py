"""What is timed: every ``bench_*.py`` here has a ``main()`` that returns its measurements by name."""

import neural_em.cli  # noqa: F401  sets what the `nem` command sets before PyTorch is loaded
