"""`python -m samestep` is the command `samestep`."""

from samestep.cli import main

if __name__ == "__main__":
    main()
