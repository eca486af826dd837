"""How many examples the costly properties look at.

Where several tests hold the same rule, each looks at as many as a change can wait for; `TAKETURNS_TEST_EFFORT=10` looks
at ten times as many, for a night or before a release.
"""

import os

EFFORT = float(os.environ.get("TAKETURNS_TEST_EFFORT", "1"))


def examples(count: int) -> int:
    return max(1, round(count * EFFORT))
