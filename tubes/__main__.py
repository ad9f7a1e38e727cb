"""`python -m tubes` is the command `tubes`."""

from tubes.cli import main

if __name__ == "__main__":
    main()
