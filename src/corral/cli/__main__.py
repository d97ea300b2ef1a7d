"""`python -m corral.cli`: the same as `corral`."""

from corral.cli import main

main(prog_name="corral")
