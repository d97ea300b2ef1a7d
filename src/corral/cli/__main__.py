"""`python -m corral.cli` is the same as `corral`."""

from corral.cli import main

main(prog_name="corral")
