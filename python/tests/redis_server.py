"""Redis servers of a test, on ports of their own."""

import socket
import subprocess
import tempfile
import time


class RedisServer:
    """`redis-server` on a free port of this machine, without anything saved, or a sentinel with that file. Ends with its block."""

    def __init__(self, *options, sentinel=None):
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.command = ["redis-server", *([str(sentinel), "--sentinel"] if sentinel else ["--save", ""]), *options]
        self.process = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def begin(self):
        self.folder = tempfile.TemporaryDirectory()
        listens = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", self.folder.name]
        self.process = subprocess.Popen([*self.command, *listens], stdout=subprocess.DEVNULL)
        while True:
            assert self.process.poll() is None, "redis-server ends at once"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=10).close()
                return self
            except ConnectionError:
                time.sleep(0.01)

    def stop(self):
        """As a crash would."""
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def ask(self, *words):
        answer = subprocess.run(["redis-cli", "-p", str(self.port), *words], capture_output=True, text=True, check=True)
        return answer.stdout.strip()

    def members(self, account):
        return int(self.ask("HLEN", f"pl:{{{account}}}:m"))

    __enter__ = begin

    def __exit__(self, *error):
        self.stop()
