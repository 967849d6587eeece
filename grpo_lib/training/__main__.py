import sys

from grpo_lib.training.cli import main

sys.exit(main())
