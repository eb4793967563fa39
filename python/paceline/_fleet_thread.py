"""A place in a fleet that a thread carries."""

import atexit
import selectors
import socket
import threading
from contextlib import suppress
from time import monotonic

from ._errors import FleetError
from ._fleet import FAULTS, LEAVES, SILENT, Place, address, no_store, redis, usual


class InThread(Place):
    """Carried by a thread."""

    connection = subscription = None

    def __init__(self, limiter, client, member):
        super().__init__(limiter, client, member)
        self.asked = threading.Event()
        self.refusal = None
        self.bell, self.rope = socket.socketpair()
        self.bell.setblocking(False)
        self.rope.setblocking(False)
        self.thread = threading.Thread(target=self.run, name="paceline fleet", daemon=True)

    @staticmethod
    def client(store):
        if isinstance(store, redis.Redis):
            return store
        if isinstance(store, str):
            return redis.Redis.from_url(address(store), **usual(redis.retry.Retry))
        raise no_store(store, "redis.Redis for `with`")

    def start(self):
        self.thread.start()
        atexit.register(self.leave)

    def join(self):
        self.start()
        try:
            self.asked.wait()
        except BaseException:
            self.leave()
            raise
        if self.refusal is not None:
            self.leave()
            raise self.refusal

    def leave(self):
        atexit.unregister(self.leave)
        place = self.limiter._fleet
        if place is not None and place is not self:
            # In a child of fork the limiter has another one.
            place.leave()
        elif self.thread.ident is not None:
            self.leaves = True
            self.wake()
            self.thread.join(LEAVES)

    def run(self):
        course, came, error = self.course(), None, None
        try:
            while True:
                try:
                    step, argument = course.send(came) if error is None else course.throw(error)
                except StopIteration:
                    return
                try:
                    came, error = step(argument), None
                except FAULTS as fault:
                    error = fault
        except FleetError as error:
            self.refusal = error
        except Exception as error:
            self.problem = f"nothing carries this place any more: {error!r}"
            raise
        finally:
            self.ended()
            self._close(None)
            self.bell.close()
            self.rope.close()
            self.asked.set()

    def _open(self, _):
        self.connection = self.client.connection_pool.get_connection()

    def _say(self, commands):
        answers = []
        for words in commands:
            self.connection.send_command(*words, check_health=False)
            if not self.connection.can_read(timeout=SILENT):
                raise redis.TimeoutError(f"it has not answered for {SILENT:g} s")
            answers.append(self.connection.read_response(disable_decoding=True))
        return answers

    def _listen(self, channel):
        self.subscription = self.client.pubsub()
        self.subscription.subscribe(channel)
        if self.subscription.get_message(timeout=SILENT) is None:
            raise redis.TimeoutError("it has not subscribed this process to its channel")

    def _wait(self, seconds):
        end = None if seconds is None else monotonic() + seconds
        while True:
            while self.subscription is not None and (message := self.subscription.get_message(timeout=0)) is not None:
                self.noticed(message)
            left = self.left(end)
            if left <= 0:
                return
            with selectors.DefaultSelector() as selector:
                selector.register(self.bell, selectors.EVENT_READ)
                if self.subscription is not None:
                    selector.register(self.subscription.connection._sock, selectors.EVENT_READ)
                selector.select(left)
            self._hush()

    def _hush(self):
        try:
            while self.bell.recv(1024):
                pass
        except BlockingIOError:
            pass

    def _close(self, _):
        subscription, connection = self.subscription, self.connection
        self.subscription = self.connection = None
        with suppress(*FAULTS):
            if subscription is not None:
                subscription.close()
            if connection is not None:
                connection.disconnect()
                self.client.connection_pool.release(connection)

    def wake(self):
        try:
            self.rope.send(b".")
        except OSError:
            pass  # it rings already, or the place was left

    def joined(self):
        self.asked.set()

    def in_child(self):
        """The place of a child of fork: another member, with no share yet."""
        return InThread(self.limiter, self.client, self.make)
