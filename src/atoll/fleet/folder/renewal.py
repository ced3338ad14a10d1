"""The server's certificate is renewed before it expires, if ``ca.key`` is there; otherwise its operator is told.

So is that of an authority that ends, since each node's owner must get the next one first.
"""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from atoll.fleet.folder.certificates import validity
from atoll.fleet.folder.init import renew_certificate
from atoll.support.errors import AtollError

# Before its end; at most a third of its life.
_RENEWED_BEFORE, _TOLD_BEFORE = timedelta(days=30), timedelta(days=180)


class Renewal:
    """Looks at the certificate in a fleet's folder whenever it is called."""

    def __init__(self, folder: Path, tell: Callable[[str], None]) -> None:
        """Watch this folder; `tell` receives what was done or, once a day, what must be done."""
        self._folder, self._tell = folder, tell
        self._told: date | None = None

    def __call__(self) -> None:
        """Renew the certificate, if it is time."""
        path, now = self._folder / "server.pem", datetime.now(UTC)
        if self._told == now.date():
            return
        begin, end = validity(self._folder / "ca.pem")
        if end - now < min(_TOLD_BEFORE, (end - begin) / 3):
            self._told = now.date()
            self._tell(f"warning: {self._folder / 'ca.pem'}: the authority ends on {end:%d %B %Y}; see the runbook")
        begin, end = validity(path)
        if end - now > min(_RENEWED_BEFORE, (end - begin) / 3):
            return
        if (self._folder / "ca.key").exists():
            try:
                renew_certificate(self._folder, max(1, (end - begin).days))
                self._tell(f"{path}: would have expired on {end:%d %B %Y}, and has been renewed")
                return
            except AtollError as error:
                self._tell(f"warning: {error}")
        self._told = now.date()
        renew = f"atoll fleet renew --config {self._folder}, with ca.key back in the folder, makes a new one"
        self._tell(f"warning: {path}: the certificate expires on {end:%d %B %Y}; {renew}")
