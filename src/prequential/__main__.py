"""`python -m prequential`, which `torchrun` needs."""

from prequential.cli import main

if __name__ == "__main__":
    main()
