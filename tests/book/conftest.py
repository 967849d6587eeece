"""The tools of the project are importable from the tests of the book."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
