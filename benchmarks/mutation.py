"""Do the tests notice a wrong line? Mutants of the packages that compute, by cosmic-ray.

    pip install cosmic-ray pytest-cov                       # not part of the development extra
    python benchmarks/mutation.py                           # 60 mutants a package: hours of CPU
    python benchmarks/mutation.py --package graph --sample 100 --seed 2
    python benchmarks/mutation.py --json run.json           # every mutant, its outcome, its change
    python benchmarks/mutation.py --again run.json          # the survivors of that run, once more

A mutant is one small change of one place: a comparison moved to the other side of its edge, a
number doubled, a condition negated. It is killed if a test that runs its line fails, or runs out of
time; it survives if all of them pass. Nothing is changed in the checkout: each worker has a copy of
its own under ``--scratch``. What is mutated is said in ``mutation/mutants.py``, which tests run in
``mutation/covering.py``. Survivors, with the reason, are listed in ``CONTRIBUTING.md``.
"""

from __future__ import annotations

import sys

from mutation.main import main

if __name__ == "__main__":
    sys.exit(main())
