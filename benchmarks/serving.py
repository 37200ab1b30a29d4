"""The service under load, killed, with many tenants, with hostile clients and on a full disk.

    python benchmarks/serving.py kills --count 300
    python benchmarks/serving.py compared --count 2000
    python benchmarks/serving.py tenants --count 1000
    python benchmarks/serving.py hostile --count 50000
    python benchmarks/serving.py disk
    python benchmarks/serving.py clock

Each prints JSON and ends with 1 if something is wrong. Load and clients are on this machine. docs/serve.md has the
figures.
"""

from __future__ import annotations

import argparse
import json
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "study", choices=("kills", "sustained", "compared", "bare", "disk", "clock", "hostile", "tenants")
    )
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--examples", type=int, default=5, help="of schemathesis, for each operation")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory", default="1GB")
    parser.add_argument("--durability", default="sync")
    given = parser.parse_args()
    flags = ("--durability", given.durability)
    match given.study:
        case "kills":
            from serving_kills import kill_service

            found = kill_service(given.count, seed=given.seed, flags=flags)
        case "sustained":
            from serving_load import sustained

            found = sustained(given.count, connections=given.connections, rate=given.rate, flags=flags)
        case "compared":
            from serving_load import compared

            found = compared(given.count, connections=given.connections, flags=flags)
        case "bare":
            from serving_load import bare

            found = bare(given.count)
        case "disk":
            from serving_disk import full_disk

            found = full_disk()
        case "clock":
            from serving_disk import clock_jumps

            found = clock_jumps()
        case "hostile":
            from serving_hostile import hostile

            found = hostile(given.count, seed=given.seed, generated=given.examples)
        case "tenants":
            from serving_tenants import many_tenants

            found = many_tenants(given.count, rounds=given.rounds, memory=given.memory)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found.get("faults")))


if __name__ == "__main__":
    main()
