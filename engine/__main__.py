"""`python -m engine`: run an engine from the command line."""

from engine import interrupts

if __name__ == "__main__":
    # Before everything else is imported, which takes a moment.
    interrupts.exit_at_once()

    from engine.cli import run

    run()
