"""``python -m neural_em`` is the ``nem`` command."""

from neural_em.cli import main

if __name__ == "__main__":
    main()
