"""A local web server whose responses have the requested faults."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """A server with files by path, and with the faults of the next requests of a path.

    A fault is one of: ("cut", number), a connection that ends after this many bytes of the body;
    ("status", code, headers); ("to", path), a redirect; ("send", bytes), other bytes instead of
    the file; ("range", text), another Content-Range; ("stall", seconds), a pause before the body;
    ("slow", seconds), a pause before each of ten pieces.
    """

    def __init__(self):
        self.files, self.faults, self.requests = {}, {}, []
        self.ranges = True
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def starts(self, path):
        """The first byte that each request of a path asked for."""
        return [start for at, start in self.requests if at == path]

    @contextlib.contextmanager
    def running(self) -> Iterator["Server"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def _handler(server):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                answer(server, self)

            def log_message(self, *args):
                pass

        return Handler


def answer(server, request):
    """Answers one request."""
    match = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
    start = int(match[1]) if match else 0
    server.requests.append((request.path, start))
    faults = server.faults.get(request.path)
    kind, *how = faults.pop(0) if faults else ("",)
    content = how[0] if kind == "send" else server.files.get(request.path)
    if kind == "status":
        return head(request, how[0], how[1] if how[1:] else {})
    if kind == "to":
        return head(request, 302, {"Location": how[0]})
    if content is None:
        return head(request, 404, {})
    start = start if server.ranges else 0
    if start > len(content):
        return head(request, 416, {})
    headers = {"Content-Length": len(content) - start}
    if start:
        text = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers["Content-Range"] = how[0] if kind == "range" else text
    head(request, 206 if start else 200, headers)
    body = content[start:]
    if kind == "stall":
        time.sleep(how[0])
    if kind == "cut":
        body = body[: how[0]]
    pieces = 10 if kind == "slow" else 1
    size = -(-len(body) // pieces) or 1
    with contextlib.suppress(OSError):  # the client may close the connection
        for begin in range(0, len(body), size):
            time.sleep(how[0] if kind == "slow" else 0)
            request.wfile.write(body[begin : begin + size])
            request.wfile.flush()
    request.close_connection = True


def head(request, code, headers):
    """Sends the status and the headers of a response."""
    request.send_response(code)
    for name, value in headers.items():
        request.send_header(name, str(value))
    request.end_headers()
