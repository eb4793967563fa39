"""A place in a fleet that a task of asyncio carries."""

import asyncio
from contextlib import suppress
from time import monotonic

from ._errors import FleetError
from ._fleet import CONNECTS, FAULTS, LEAVES, LONGEST, SILENT, Place, address, no_store, redis, usual


class InLoop(Place):
    """Carried by a task of asyncio."""

    connection = subscription = listener = None

    @staticmethod
    def client(store):
        if isinstance(store, redis.asyncio.Redis):
            return store
        if isinstance(store, str):
            return redis.asyncio.Redis.from_url(address(store), **usual(redis.asyncio.retry.Retry))
        raise no_store(store, "redis.asyncio.Redis for `async with`")

    async def join(self):
        self.loop = asyncio.get_running_loop()
        self.bell = asyncio.Event()
        self.asked = self.loop.create_future()
        self.task = self.loop.create_task(self.run(), name="paceline fleet")
        try:
            await self.asked
        except BaseException:
            await self.leave()
            raise

    async def leave(self):
        self.leaves = True
        self.bell.set()
        await asyncio.wait({self.task}, timeout=LEAVES)
        if not self.task.done():
            self.task.cancel()

    async def run(self):
        try:
            await self.carry()
        except FleetError as error:
            _fail(self.asked, error)
        except Exception as error:
            self.problem = f"nothing carries this place any more: {error!r}"
            raise
        finally:
            self.ended()
            await self._close(None)
            self.joined()

    async def carry(self):
        course, came, error = self.course(), None, None
        while True:
            try:
                step, argument = course.send(came) if error is None else course.throw(error)
            except StopIteration:
                return
            try:
                came, error = await step(argument), None
            except FAULTS as fault:
                error = fault
            except asyncio.CancelledError:
                # The loop ends: the others get what is left, as far as that takes no long time.
                if self.leaves:
                    raise
                self.leaves = True
                came, error = None, None if step == self._wait else ConnectionError("the loop has ended")

    async def _open(self, _):
        self.connection = await asyncio.wait_for(self.client.connection_pool.get_connection(), 2 * CONNECTS)

    async def _say(self, commands):
        return [await asyncio.wait_for(self._ask(words), SILENT) for words in commands]

    async def _ask(self, words):
        await self.connection.send_command(*words, check_health=False)
        return await self.connection.read_response(disable_decoding=True)

    async def _listen(self, channel):
        self.subscription = self.client.pubsub()
        await self.subscription.subscribe(channel)
        if await self.subscription.get_message(timeout=SILENT) is None:
            raise redis.TimeoutError("it has not subscribed this process to its channel")
        self.listener = self.loop.create_task(self.hear(self.subscription), name="paceline fleet, hints")

    async def hear(self, subscription):
        try:
            while True:
                self.noticed(await subscription.get_message(timeout=LONGEST))
        except FAULTS as error:
            self.cut = error
            self.bell.set()

    async def _wait(self, seconds):
        end = None if seconds is None else monotonic() + seconds
        while (left := self.left(end)) > 0:
            timer = self.loop.call_later(left, self.bell.set)
            try:
                await self.bell.wait()
            finally:
                timer.cancel()
                self.bell.clear()

    async def _close(self, _):
        listener, subscription, connection = self.listener, self.subscription, self.connection
        self.listener = self.subscription = self.connection = None
        if listener is not None:
            listener.cancel()
            await asyncio.wait({listener})
        with suppress(*FAULTS):
            if subscription is not None:
                await subscription.aclose()
            if connection is not None:
                await connection.disconnect(nowait=True)
                await self.client.connection_pool.release(connection)

    def wake(self):
        if asyncio._get_running_loop() is self.loop:
            self.bell.set()
            return
        try:
            self.loop.call_soon_threadsafe(self.bell.set)
        except RuntimeError:
            pass  # the loop is closed, and with it ended the task

    def joined(self):
        if not self.asked.done():
            self.asked.set_result(None)

    def in_child(self):
        return None


def _fail(future, error):
    if not future.done():
        future.set_exception(error)
