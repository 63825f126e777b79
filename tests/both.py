"""`make test`: the unit and the integration tests at the same time, one core each.

Arguments go to both. The integration tests show themselves as they run; what the unit tests said follows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

NOTHING_TO_RUN = 5
PYTEST = (sys.executable, "-m", "pytest", "-m", "not bench")


def main() -> int:
    """Run both; return the worse exit code."""
    with tempfile.TemporaryFile() as said:
        unit = subprocess.Popen(
            # Two that write one cache at once would lose what the other wrote.
            [*PYTEST, "tests/unit", "-p", "no:cacheprovider", *sys.argv[1:]],
            stdout=said,
            stderr=subprocess.STDOUT,
        )
        try:
            integration = subprocess.run(
                [*PYTEST, "tests/integration", *sys.argv[1:]], check=False
            ).returncode
            codes = {unit.wait(), integration}
        except KeyboardInterrupt:
            unit.wait()
            return 130
        said.seek(0)
        sys.stdout.buffer.write(said.read())
        sys.stdout.flush()
    # One of them may have nothing to run: `-k` can choose tests of the other alone.
    return max(codes - {NOTHING_TO_RUN}, default=NOTHING_TO_RUN)


if __name__ == "__main__":
    sys.exit(main())
