"""What is timed: every ``bench_*.py`` here has a ``main()`` that returns its measurements by name."""
