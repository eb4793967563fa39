"""A server on this machine whose answers a test has written down."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Answer:
    def __init__(self, status=200, body=None, headers=None, stream=None, cut=False):
        self.status = status
        self.body = json.dumps({} if body is None else body).encode() if not isinstance(body, bytes) else body
        self.headers = {"content-type": "application/json", **(headers or {})}
        self.stream = stream
        self.cut = cut


@contextmanager
def serving(*answers, usual=None, arrivals=None):
    """Gives the address and the list of requests, each `(method, path, headers, body)`. After `answers` comes `usual`. `arrivals`: a list for
    the time and the path of each."""
    left, requests, lock = list(answers), [], threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            with lock:
                requests.append((self.command, self.path, dict(self.headers), body))
                if arrivals is not None:
                    arrivals.append((time.monotonic(), self.path))
                answer = left.pop(0) if left else usual
            if answer is None:
                self.close_connection = True
                self.connection.close()
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.stream is None:
                self.send_header("content-length", str(len(answer.body) + (5 if answer.cut else 0)))
                self.end_headers()
                self.wfile.write(answer.body)
                self.close_connection = self.close_connection or answer.cut
            else:
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                for part in answer.stream:
                    if part is None:
                        self.close_connection = True
                        self.connection.close()
                        return
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

        do_GET = do_POST

        def log_message(self, *_):
            pass

        def handle(self):
            try:
                super().handle()
            except (OSError, ValueError):
                pass  # a client has gone, or the test has closed the connection

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", requests
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


THROTTLED = Answer(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, {"retry-after-ms": "20"})
CHAT = Answer(
    200,
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11},
    },
)


def events(*objects, end=b"data: [DONE]\n\n"):
    return [b"data: " + json.dumps(each).encode() + b"\n\n" for each in objects] + [end]
