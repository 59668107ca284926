"""Downloads one file from the first address that delivers it, and continues interrupted downloads.

It uses Python's HTTP client, because retries must know how much of the file has arrived; the
retries of larger libraries do not.
"""

import contextlib
import email.utils
import hashlib
import http.client
import os
import random
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, NoReturn

from fedjax_lab.data.fetching.catalog import File
from fedjax_lab.errors import MACHINE

TIMEOUT = 60.0  # seconds without a byte
TRIES = 5  # consecutive attempts without progress, at each address
FIRST_WAIT = 1.0  # seconds, doubled after each attempt without progress
LONGEST_WAIT = 300.0  # seconds that a server may request
BLOCK = 2**18  # bytes
BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
PART = ".part"  # the suffix of an incomplete file
AGENT = "fedjax-lab"


class Unavailable(Exception):
    """Raised when no address delivers the file."""


class Refused(Exception):
    """Raised when an address does not deliver the file and a retry would not help."""


class Wrong(Exception):
    """Raised when the received bytes are not the expected file."""


class Interrupted(Exception):
    """Raised when the connection fails or the server is busy, so that a retry may succeed."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait  # seconds that the server requests


def download(
    file: File, path: Path, arrived: Callable[[int], object], tell: Callable[[str], object]
) -> str:
    """Downloads a file to `path`, which appears only after its checksum has been verified.

    The partial file `path`.part of an earlier call is continued.

    Args:
      file: the file; its addresses are tried in order.
      path: the destination; its folder is created.
      arrived: called with the number of bytes received so far, which may decrease.
      tell: called with a line about each failed attempt.

    Returns:
      The address that delivered the file.

    Raises:
      Unavailable: no address delivers the file; the message has a reason for each address.
      OSError: the received bytes cannot be written.
    """
    part, reasons = path.with_name(path.name + PART), []
    for address in file.addresses:
        try:
            _persist(address, file, part, arrived, tell)
        except Refused as error:
            reasons.append(f"{address}: {error}")
            tell(reasons[-1])
            continue
        with part.open("rb+") as content:
            os.fsync(content.fileno())
        os.replace(part, path)
        return address
    raise Unavailable("; ".join(reasons))


def matches(file: File, path: Path) -> bool:
    """Whether a file has the right checksum; its size is not compared."""
    algorithm, _, digits = file.checksum.partition(":")
    with path.open("rb") as content:
        digest = hashlib.file_digest(
            content, partial(hashlib.new, algorithm, usedforsecurity=False)
        )
    return digest.hexdigest() == digits


def _persist(address, file, part, arrived, tell):
    """Receives the file and verifies it; retries after temporary failures."""
    failures, most, restarted = 0, _length(part), False
    while True:
        before = _length(part)
        try:
            _receive(address, file, part, arrived)
            if not matches(file, part):
                raise Wrong("the checksum does not match")
            return
        except Wrong as error:
            part.unlink(missing_ok=True)
            if restarted or not before:  # otherwise the earlier partial file may be the cause
                raise Refused(str(error)) from error
            failures, most, restarted, wait, reason = 0, 0, True, 0.0, str(error)
        except Interrupted as error:
            failures = 0 if _length(part) > most else failures + 1
            most = max(most, _length(part))
            if failures >= TRIES or error.wait > LONGEST_WAIT:
                raise Refused(str(error)) from error
            backoff = FIRST_WAIT * 2 ** max(0, failures - 1) * random.uniform(0.75, 1.25)
            wait, reason = max(error.wait, backoff), str(error)
        tell(f"{address}: {reason}; retrying in {wait:.0f} s")
        time.sleep(wait)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(address: str, file: File, part: Path, arrived: Callable[[int], object]) -> None:
    """Requests the bytes that are missing in `part` and appends them."""
    there = _length(part)
    if file.size and there == file.size:
        return
    if file.size and there > file.size:
        part.unlink()
        there = 0
    with _answer(address, there, part) as answer:
        there, size = _begin(answer, there, file.size)
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("ab") as out:
            out.truncate(there)
            arrived(there)
            for block in _blocks(answer):
                there += len(block)
                if there > size:
                    raise Wrong(f"it has more than the expected {size} bytes")
                out.write(block)
                arrived(there)
    if there < size:
        raise Interrupted(f"the connection was cut after {there} of {size} bytes")


@contextlib.contextmanager
def _answer(address: str, begin: int, part: Path) -> Iterator[http.client.HTTPResponse]:
    """The response of a server to a request for the bytes from `begin` on."""
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    with _network_errors():
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(address, headers=headers), timeout=TIMEOUT
            )
        except urllib.error.HTTPError as error:
            if error.code == 416:  # the requested range does not exist
                part.unlink(missing_ok=True)
            _refused(error)
    with answer:
        if not isinstance(answer, http.client.HTTPResponse):
            raise Refused("the address does not lead to an HTTP server")
        yield answer


@contextlib.contextmanager
def _network_errors() -> Iterator[None]:
    try:
        yield
    except (http.client.HTTPException, OSError) as error:
        if isinstance(error, OSError) and error.errno in MACHINE:
            raise
        reason = getattr(error, "reason", None) or error
        what = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise Interrupted(what) from error


def _refused(error: urllib.error.HTTPError) -> NoReturn:
    """Raises Interrupted if the server is busy or cannot continue the file, otherwise Refused."""
    what = f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip()
    if error.code in BUSY:
        wait = _seconds(error.headers.get("Retry-After", ""))
        raise Interrupted(f"{what}, wait {wait:.0f} s" if wait else what, wait) from error
    if error.code == 416:
        raise Interrupted(what) from error
    nowhere = ", a redirect that cannot be followed" if 300 <= error.code < 400 else ""
    raise Refused(what + nowhere) from error


def _seconds(text: str) -> float:
    """The seconds in a Retry-After header, which holds a number of seconds or a date."""
    if text.strip().isdecimal():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


def _begin(answer: http.client.HTTPResponse, asked: int, size: int) -> tuple[int, int]:
    """The position of the first byte of a response, and the size of the whole file.

    size: the expected size; 0: unknown, so that the response must state it. Raises Refused if it
        does not, or if the file has another size.
    """
    begin, total = 0, answer.headers.get("Content-Length") or ""
    if answer.status == 206:
        pattern = r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)"
        match = re.fullmatch(pattern, answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise Refused("the server sent another range of bytes than requested")
        begin, total = asked, match[2]
    stated = int(total) if total.isdecimal() else size
    if not (size or total.isdecimal()):
        raise Refused("the server does not state the size of the file")
    if size and stated != size:
        raise Refused(f"it has {stated} bytes, not the expected {size}")
    return begin, stated


def _blocks(answer: IO[bytes]) -> Iterator[bytes]:
    """The received blocks, until the end of the file or until the connection is lost."""
    while True:
        with _network_errors():
            block = answer.read1(BLOCK)  # type: ignore[attr-defined]
        if not block:
            return
        yield block
