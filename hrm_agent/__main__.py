"""`python -m hrm_agent` is `hrm-agent`."""

import sys

from hrm_agent.cli.main import main

sys.exit(main())
