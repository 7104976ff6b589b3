"""Rewrites the committed parity fixtures: tests/fixtures/parity/FAMILY/VARIANT.

    python tests/oracle/make_fixtures.py [FAMILY…]

The committed ones are a small part of what run.py compares live; see README.md for the format.
"""

import shutil
import sys
from pathlib import Path

from families import FAMILIES
from plans import PLANS
from reference import run_variant

ROOT = Path(__file__).resolve().parent.parent / "fixtures" / "parity"
LIMIT = 1_000_000


def main() -> None:
    for name in sys.argv[1:] or FAMILIES:
        family = FAMILIES[name]
        shutil.rmtree(ROOT / name, ignore_errors=True)
        for variant in family.variants():
            if not variant.committed:
                continue
            folder = ROOT / name / variant.name
            folder.mkdir(parents=True)
            run_variant(family, variant, [PLANS[plan] for plan in variant.committed], folder)
            size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
            print(f"{name}/{variant.name}: {size:,} bytes")
            if size > LIMIT:
                raise SystemExit(f"{folder} holds {size:,} bytes; a fixture may hold {LIMIT:,}")


if __name__ == "__main__":
    main()
