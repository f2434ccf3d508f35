"""Downloads of pinned files: over https only, each checked against its SHA-256."""

import hashlib
import http.client
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from .errors import UserError
from .files import atomic, sha256


class DownloadError(UserError):
    """A failed download; the message is one line with the address and the reason."""

    def __init__(self, message):
        super().__init__(without_secrets(message))


class _BrokenTransfer(Exception):
    """A failure that may not happen again at the next attempt."""


def fetch(url, path, digest, *, attempts=5, pause=1.0, timeout=30.0):
    """Download `url` to `path`, whose SHA-256 must be `digest`; a file that is there already, with that hash, is kept.

    A broken transfer is tried again, `attempts` times in all, after `pause`, 2 `pause`, 4 `pause`, … seconds.
    """
    require_safe(url)
    if Path(path).is_file() and sha256(path) == digest:
        return
    for attempt in range(attempts):
        try:
            return _transfer(url, path, digest, timeout)
        except _BrokenTransfer as broken:
            if attempt + 1 == attempts:
                raise DownloadError(f"{url}: {broken}; gave up after {attempts} attempts") from None
        time.sleep(pause * 2**attempt)


def _transfer(url, path, digest, timeout):
    received = hashlib.sha256()
    with atomic(path) as file:
        for piece in _body(url, timeout):
            received.update(piece)
            file.write(piece)
        if received.hexdigest() != digest:
            raise DownloadError(f"{url}: SHA-256 is {received.hexdigest()}, expected {digest}")


def _body(url, timeout):
    """Yield the bytes at `url` in pieces, or raise an error that says why not all arrived."""
    try:
        with _opener.open(url, timeout=timeout) as response:
            promised, got = response.headers["Content-Length"], 0
            while piece := response.read(1 << 20):
                got += len(piece)
                yield piece
        # When reading in pieces, http.client does not notice a truncated body.
        if promised is not None and got != int(promised):
            raise _BrokenTransfer(f"the transfer broke off after {got} of {promised} bytes")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code >= 500 or error.code in (408, 429):
            raise _BrokenTransfer(f"{error.code} {error.reason}") from None
        raise DownloadError(f"{url}: {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _BrokenTransfer(f"the transfer broke off: {error}") from None


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req, fp, code, msg, headers, newurl):
        require_safe(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_opener = urllib.request.build_opener(_SafeRedirects)


def without_secrets(message):
    """A message without the parts of addresses that may hold a password or a signature."""
    return re.sub(r"(https?://)(?:[^/\s@]*@)?([^\s?#]*)(?:[?#]\S*?(?=[:;,.]?(?:\s|$)))?", r"\1\2", message)


def require_safe(url):
    """Raise an error for an address that is neither https nor on this machine."""
    address = urlsplit(url)
    if address.scheme != "https" and (address.scheme, address.hostname) != ("http", "127.0.0.1"):
        raise DownloadError(f"{url}: refused; files are downloaded over https only")
