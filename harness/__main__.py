"""`python -m harness` is `nowedge`."""

from harness.cli import main

if __name__ == "__main__":
    main()
