"""A client: submits tasks for hello_worker.py and waits for their results.

python submit_and_wait.py [ENDPOINT]
"""

from __future__ import annotations

import asyncio
import sys

from cronoq import Client, TaskFailedError, TaskSpec, TaskStatus, new_key

ENDPOINT = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7070"


async def main() -> None:
    """One task, a failing one, many at once, and one that is cancelled."""
    async with Client(ENDPOINT) as client:
        greeting = await client.submit("greet", "world")
        print(await greeting.result(str))

        # With a key, submitting again after a lost answer returns the same task.
        bill = await client.submit("bill", {"customer": "ann", "cents": 995}, key=new_key())
        print(await bill.result(dict))

        refused = await client.submit("bill", {"customer": "bob", "cents": -1})
        try:
            await refused.result()
        except TaskFailedError as error:
            print(error)

        handles = await client.submit_many(TaskSpec("square", n) for n in range(1000))
        tasks = [handle for handle in handles if not isinstance(handle, Exception)]
        squares = [client.decode(found, int) for found in await client.wait_many(tasks)]
        print(f"{len(squares)} squares, together {sum(squares)}")

        counting = await client.submit("count", 100)
        async for event in client.watch(ids=[counting.id], all_transitions=True):
            print(f"count is {event.status.name.lower()}")
            if event.status is TaskStatus.RUNNING:
                await counting.cancel()
            if event.status.is_terminal:
                break


asyncio.run(main())
