"""Program that says what to install if there is no MediaWiki on this machine."""

import sys

from tests.support.wiki.server import MISSING, find_wiki

sys.exit(0 if find_wiki() else MISSING)
