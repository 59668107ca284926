"""One file from the first of its addresses that delivers it, continued where it was cut.

Python's own HTTP client is used: retries have to know how much of the file has arrived, so that the
retries of a larger library would not do.
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

from fedjax_lab.data.catalog import File
from fedjax_lab.errors import MACHINE

TIMEOUT = 60.0  # seconds without a byte
TRIES = 5  # in a row that bring nothing new, at each address
FIRST_WAIT = 1.0  # seconds, doubled after each such try
LONGEST_WAIT = 300.0  # seconds that a server may ask for
BLOCK = 2**18  # bytes
BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
PART = ".part"  # the suffix of a file that is not whole
AGENT = "fedjax-lab"


class Unavailable(Exception):
    """None of the addresses delivers the file."""


class Refused(Exception):
    """An address does not deliver the file, now and later."""


class Wrong(Exception):
    """What has arrived is not the file."""


class Interrupted(Exception):
    """The connection has failed, or the server is busy: it may work later."""

    def __init__(self, reason: str, wait: float = 0.0):
        super().__init__(reason)
        self.wait = wait  # seconds that the server asks for


def download(
    file: File, path: Path, arrived: Callable[[int], object], tell: Callable[[str], object]
) -> str:
    """Fetches a file to `path`, which has that name only when its checksum has been verified.

    What an earlier call has left in `path`.part is continued.

    Args:
      file: its addresses are tried in their order.
      path: where to; its folder is made.
      arrived: called with the number of bytes that are there, which may also fall.
      tell: called with a line about each attempt that failed.

    Returns:
      The address that delivered it.

    Raises:
      Unavailable: with a reason for each address.
      OSError: what arrived cannot be written.
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
    """Whether a file of the right size has the right checksum."""
    algorithm, _, digits = file.checksum.partition(":")
    with path.open("rb") as content:
        digest = hashlib.file_digest(
            content, partial(hashlib.new, algorithm, usedforsecurity=False)
        )
    return digest.hexdigest() == digits


def _persist(address, file, part, arrived, tell):
    """Receives the file and verifies it; tries again after failures that may pass."""
    failures, most, restarted = 0, _length(part), False
    while True:
        before = _length(part)
        try:
            _receive(address, file, part, arrived)
            if not matches(file, part):
                raise Wrong("it has other bytes: the checksum does not match")
            return
        except Wrong as error:
            part.unlink(missing_ok=True)
            if restarted or not before:  # else what was there before may be to blame
                raise Refused(str(error)) from error
            failures, most, restarted, wait, reason = 0, 0, True, 0.0, str(error)
        except Interrupted as error:
            failures = 0 if _length(part) > most else failures + 1
            most = max(most, _length(part))
            if failures >= TRIES or error.wait > LONGEST_WAIT:
                raise Refused(str(error)) from error
            backoff = FIRST_WAIT * 2 ** max(0, failures - 1) * random.uniform(0.75, 1.25)
            wait, reason = max(error.wait, backoff), str(error)
        tell(f"{address}: {reason}; again in {wait:.0f} s")
        time.sleep(wait)


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _receive(address: str, file: File, part: Path, arrived: Callable[[int], object]) -> None:
    """Asks for the bytes that are missing in `part` and appends them."""
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
                    raise Wrong(f"it has more than the {size} bytes that are expected")
                out.write(block)
                arrived(there)
    if there < size:
        raise Interrupted(f"the connection was cut after {there} of {size} bytes")


@contextlib.contextmanager
def _answer(address: str, begin: int, part: Path) -> Iterator[http.client.HTTPResponse]:
    """The answer of a server that is asked for the bytes from `begin` on."""
    headers = {"User-Agent": AGENT, "Accept-Encoding": "identity"}
    if begin:
        headers["Range"] = f"bytes={begin}-"
    with _network_errors():
        try:
            answer = urllib.request.urlopen(
                urllib.request.Request(address, headers=headers), timeout=TIMEOUT
            )
        except urllib.error.HTTPError as error:
            if error.code == 416:  # there are no such bytes
                part.unlink(missing_ok=True)
            _refused(error)
    with answer:
        if not isinstance(answer, http.client.HTTPResponse):
            raise Refused("it leads to something else than HTTP")
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
    """Interrupted where the server is busy or cannot continue, otherwise Refused."""
    what = f"HTTP {error.code} {http.client.responses.get(error.code, '')}".strip()
    if error.code in BUSY:
        wait = _seconds(error.headers.get("Retry-After", ""))
        raise Interrupted(f"{what}, wait {wait:.0f} s" if wait else what, wait) from error
    if error.code == 416:
        raise Interrupted(what) from error
    nowhere = ", a redirect that leads nowhere" if 300 <= error.code < 400 else ""
    raise Refused(what + nowhere) from error


def _seconds(text: str) -> float:
    """The seconds to wait that a header Retry-After asks for: a number of them or a date."""
    if text.strip().isdecimal():
        return float(text)
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0


def _begin(answer: http.client.HTTPResponse, asked: int, size: int) -> tuple[int, int]:
    """The place of an answer's first byte, and the size of the whole file.

    size: what it should be; 0: not known, so that the answer has to say it. Refused where it does
        not, or where the file has another size.
    """
    begin, total = 0, answer.headers.get("Content-Length") or ""
    if answer.status == 206:
        pattern = r"bytes (\d{1,18})-\d+/(\d{1,18}|\*)"
        match = re.fullmatch(pattern, answer.headers.get("Content-Range", ""))
        if match is None or int(match[1]) != asked:
            raise Refused("it answers with other bytes than those that were asked for")
        begin, total = asked, match[2]
    told = int(total) if total.isdecimal() else size
    if not (size or total.isdecimal()):
        raise Refused("it does not say how many bytes it has")
    if size and told != size:
        raise Refused(f"it has {told} bytes, not the {size} that are expected")
    return begin, told


def _blocks(answer: IO[bytes]) -> Iterator[bytes]:
    """What arrives, until the end or until the connection is cut."""
    while True:
        with _network_errors():
            block = answer.read1(BLOCK)  # type: ignore[attr-defined]
        if not block:
            return
        yield block
