"""Downloads give the pinned file or none."""

import contextlib
import hashlib
import socket
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from reversal.common.download import DownloadError, fetch
from reversal.data import berglund

BODY = b"a pinned file\n" * 5000
DIGEST = hashlib.sha256(BODY).hexdigest()


class Server:
    """A local server that gives one of `answers` to each request, in order, and repeats the last one."""

    def __init__(self, *answers):
        self.answers, self.requests = list(answers), []

    def __enter__(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.requests.append(self.path)
                answer = server.answers.pop(0) if len(server.answers) > 1 else server.answers[0]
                answer(self)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()


def status(code, body=b"", **headers):
    def answer(request):
        request.send_response(code)
        for name, value in {"Content-Length": len(body), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    return answer


def truncated(request):
    request.send_response(200)
    request.send_header("Content-Length", len(BODY))
    request.end_headers()
    request.wfile.write(BODY[: len(BODY) // 2])


def reset(request):
    truncated(request)
    request.wfile.flush()
    # Closing without lingering sends a reset instead of an end.
    request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    request.connection.close()


whole = status(200, BODY)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def attempt(server, path, **options):
    fetch(f"{server.url}/file", path, DIGEST, **{"pause": 0.01, "attempts": 3, **options})


@pytest.mark.parametrize("failure", [truncated, reset, status(503), status(429)])
def test_a_broken_transfer_is_retried(tmp_path, failure):
    with Server(failure, failure, whole) as server:
        attempt(server, tmp_path / "sub" / "file")
    assert (tmp_path / "sub" / "file").read_bytes() == BODY
    assert len(server.requests) == 3
    assert [path.name for path in (tmp_path / "sub").iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("answer", "requests", "reason"),
    [
        (truncated, 3, "the transfer broke off after 35000 of 70000 bytes; gave up after 3 attempts"),
        (status(503), 3, "503 Service Unavailable; gave up after 3 attempts"),
        (status(404), 1, "404 Not Found"),
        (status(200, b"another"), 1, f"SHA-256 is {hashlib.sha256(b'another').hexdigest()}, expected {DIGEST}"),
    ],
)
def test_a_failed_download_gives_the_reason_and_leaves_no_file(tmp_path, answer, requests, reason):
    with Server(answer) as server, pytest.raises(DownloadError) as caught:
        attempt(server, tmp_path / "file")
    assert str(caught.value) == f"{server.url}/file: {reason}"
    assert len(server.requests) == requests
    assert list(tmp_path.iterdir()) == []


def test_the_error_of_an_unreachable_server_names_it(tmp_path):
    with Server(whole) as server:
        pass
    with pytest.raises(DownloadError, match=r"/file: the transfer broke off: .*refused.*; gave up after 3 attempts"):
        attempt(server, tmp_path / "file")


def test_a_silent_server_times_out(tmp_path):
    released = threading.Event()
    with Server(lambda _: released.wait(10)) as server, pytest.raises(DownloadError, match="timed out"):
        try:
            attempt(server, tmp_path / "file", attempts=1, timeout=0.2)
        finally:
            released.set()


def test_an_intact_file_is_not_downloaded_again(tmp_path):
    with Server(whole) as server:
        attempt(server, tmp_path / "file")
        attempt(server, tmp_path / "file")
        assert len(server.requests) == 1
        (tmp_path / "file").write_bytes(b"spoilt")
        attempt(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_failed_download_keeps_the_old_file(tmp_path):
    (tmp_path / "file").write_bytes(b"old")
    with Server(status(404)) as server, contextlib.suppress(DownloadError):
        attempt(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize(
    "url", ["http://example.org/x", "ftp://example.org/x", "file:///etc/hostname", "http://localhost/x"]
)
def test_only_https_is_allowed(tmp_path, url):
    with pytest.raises(DownloadError, match="refused; files are downloaded over https only"):
        fetch(url, tmp_path / "file", DIGEST)
    assert list(tmp_path.iterdir()) == []


def test_a_redirect_does_not_leave_https(tmp_path):
    redirect = status(302, Location="http://example.org/x")
    with Server(redirect) as server, pytest.raises(DownloadError, match="http://example.org/x: refused"):
        attempt(server, tmp_path / "file")
    with Server(status(302, Location="/elsewhere"), whole) as server:
        attempt(server, tmp_path / "file")
    assert server.requests == ["/file", "/elsewhere"]


def test_messages_hold_no_passwords_and_signatures(tmp_path):
    redirect = status(302, Location="http://user:canary@example.org/x?Signature=canary#canary")
    with Server(redirect) as server, pytest.raises(DownloadError, match="^http://example.org/x: refused; ") as caught:
        attempt(server, tmp_path / "file")
    assert "canary" not in str(caught.value)


def test_the_published_set_is_downloaded_file_by_file(tmp_path):
    files = {"version/rows.jsonl": DIGEST, "templates/p2d.txt": DIGEST}
    with Server(whole) as server:
        berglund.download(tmp_path, base_url=f"{server.url}/data", files=files)
        berglund.download(tmp_path, base_url=f"{server.url}/data", files=files)
    assert server.requests == ["/data/version/rows.jsonl", "/data/templates/p2d.txt"]
    assert all((tmp_path / name).read_bytes() == BODY for name in files)
