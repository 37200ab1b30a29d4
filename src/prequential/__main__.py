"""`python -m prequential`, which `torchrun` needs."""

from prequential.cli.app import main

if __name__ == "__main__":
    main()
