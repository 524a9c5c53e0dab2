"""Run the model: `python -m tests.model --scenario change_of_age --seeds 200`, or `--seed 7` alone with its trace.

Text hashes differ from process to process, and with them the order of sets: so that a seed means the same everywhere, the
process starts itself again with PYTHONHASHSEED=0.
"""

import os
import sys

from tests.model.commands import main

if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.model", *sys.argv[1:]])
    sys.exit(main(sys.argv[1:]))
