"""A MediaWiki for the tests: Debian's package, on SQLite, with the pages of
`tests.support.wiki.pages`.

It is installed once for all processes of a test session, into their common folder; this takes about
four seconds. Each process that needs a wiki copies the installation and serves the copy on a free
port of the loopback, by PHP's built-in web server, as the user who runs the tests. A server ends
with the thread that started it, whatever ends the thread.

    python -m tests.support.wiki        says what to install, if there is no MediaWiki on this machine
"""

from __future__ import annotations

import fcntl
import http.client
import os
import secrets
import shutil
import subprocess
import time
from contextlib import closing, suppress
from pathlib import Path

from tests.support.postgres import free_port
from tests.support.wiki.pages import as_dump

__all__ = ["MISSING", "WikiServer", "find_wiki"]

MISSING = (
    "MediaWiki is missing, which the wiki's tests run on: apt-get install --no-install-recommends "
    "mediawiki php-cli php-sqlite3 php-mbstring php-intl php-xml"
)
_HOME = Path("/usr/share/mediawiki")
_EXTENSIONS = ("sqlite3", "pdo_sqlite", "mbstring", "intl", "xml")
_SECONDS = 60.0
"""Longest time for a start, and for a request, in seconds."""
_SETTINGS = """
$wgServer = 'http://127.0.0.1:' . ( getenv( 'WIKI_PORT' ) ?: '80' );
$wgSQLiteDataDir = __DIR__;
$wgCacheDirectory = __DIR__;
$wgObjectCaches[CACHE_DB]['server']['dbDirectory'] = __DIR__;
$wgLocalisationCacheConf['storeServer']['dbDirectory'] = __DIR__;
$wgJobTypeConf['default']['server']['dbDirectory'] = __DIR__;
$wgJobRunRate = 0;
"""
"""Settings for any folder. The installer's settings name the folder of the installation."""


def find_wiki() -> bool:
    """True if this machine has MediaWiki, and PHP with the extensions that it needs."""
    php = shutil.which("php")
    if php is None or not (_HOME / "maintenance/install.php").exists():
        return False
    needed = " && ".join(f"extension_loaded('{name}')" for name in _EXTENSIONS)
    return subprocess.run([php, "-r", f"exit({needed} ? 0 : 1);"], check=False).returncode == 0


class WikiServer:
    """A wiki that is served until `stop`. `edit` changes only this copy."""

    def __init__(self, folder: Path, common: Path) -> None:
        """`folder`: folder of this server, which must not exist yet. `common`: folder of all
        processes of this test session.
        """
        if not find_wiki():
            raise RuntimeError(MISSING)
        shutil.copytree(_installed(common), folder)
        self._folder, self._port = folder, free_port()
        self.site = f"http://127.0.0.1:{self._port}"
        self.url = f"{self.site}/api.php"
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", "php", "-S", f"127.0.0.1:{self._port}", "-t", str(_HOME)],
                stdout=log, stderr=log, env=_environment(folder, self._port), start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def edit(self, title: str, text: str) -> None:
        """Make a new revision of a page."""
        environment = _environment(self._folder, self._port)
        _php("edit.php", "--user", "Admin", title, environment=environment, given=text)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _SECONDS
        while True:
            if self._answers():
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"MediaWiki did not start:\n{(self._folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_SECONDS)
        with closing(connection), suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/api.php?action=query&format=json")
            return connection.getresponse().status == 200
        return False


def _installed(common: Path) -> Path:
    """The installed wiki. The first process that needs it installs it."""
    made = common / "mediawiki"
    with (common / "mediawiki.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            unfinished = common / "mediawiki-unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            _install(unfinished)
            unfinished.rename(made)
    return made


def _install(folder: Path) -> None:
    environment = _environment(folder, 80)
    _php(
        "install.php", "--quiet", "--dbtype", "sqlite", "--dbpath", str(folder), "--dbname", "testwiki",
        "--scriptpath", "", "--server", "http://127.0.0.1", "--lang", "en", "--pass", secrets.token_urlsafe(16),
        "--confpath", str(folder), "--extensions", "TextExtracts", "--skins", "Vector", "TestWiki", "Admin",
        environment={name: value for name, value in environment.items() if name != "MW_CONFIG_FILE"},
    )  # fmt: skip
    with (folder / "LocalSettings.php").open("a") as settings:
        settings.write(_SETTINGS)
    (folder / "dump.xml").write_text(as_dump(), encoding="utf-8")
    _php(
        "importDump.php",
        "--quiet",
        "--no-updates",
        str(folder / "dump.xml"),
        environment=environment,
    )
    _php("rebuildtextindex.php", "--quiet", environment=environment)
    _php("initSiteStats.php", "--quiet", "--update", environment=environment)


def _environment(folder: Path, port: int) -> dict[str, str]:
    # one worker only: several workers of PHP's server would have separate caches
    kept = {name: value for name, value in os.environ.items() if name != "PHP_CLI_SERVER_WORKERS"}
    return kept | {"MW_CONFIG_FILE": str(folder / "LocalSettings.php"), "WIKI_PORT": str(port)}


def _php(script: str, *words: str, environment: dict[str, str], given: str = "") -> None:
    command = ["php", str(_HOME / "maintenance" / script), *words]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{script} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
