"""Run seeds by hand: `cd tests && python -m simulation.run --seeds 10000 --start 0`; one argument replays: `--start 4711`."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from simulation.checkers import everything
from simulation.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m simulation.run")
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    parser.add_argument("--keep-going", action="store_true", help="one line per failing seed, and go on")
    options = parser.parse_args()
    logging.disable(logging.ERROR)  # deliveries fail on purpose
    began, failed = time.monotonic(), 0
    for seed in range(options.start, options.start + options.seeds):
        print(f"seed {seed}", end="\r", flush=True)
        try:
            world = simulate(seed, everything())
        except Exception as error:
            failed += 1
            if options.keep_going:
                print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}")
                continue
            traceback.print_exc()
            return 1
        if options.trace:
            print("\n".join(world.trace))
    print(f"{options.seeds} seeds, {failed} failed, {options.seeds / (time.monotonic() - began):.1f} seeds/s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
