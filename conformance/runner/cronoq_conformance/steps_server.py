"""Decides what the steps about servers do: scripted ones, real ones, and the way to them."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Mapping
from typing import Any

from cronoq_server._proto import tasks_pb2

from .cluster import ServerProcess
from .judge import in_order, mismatch, shown, spread_of_delays, tries_in_windows
from .scripted_server import Exchange, accepted, make_lease, make_status
from .stage import Failure, Stage, Step
from .steps_participant import check

Fields = Mapping[str, Any]

LEASES_PER_BATCH = 400
REPORTS = ("complete", "fail", "nack", "cancelled")


def exchange_of(stage: Stage, name: str) -> Exchange:
    """Returns a call that an earlier step took."""
    return stage.exchanges[name]


# --- streams of workers ---------------------------------------------------------------------------


async def stream(stage: Stage, peer: Any, fields: Fields) -> None:
    """Takes the next worker's stream and reads its registration; accepts it if told."""
    exchange = await stage.peers[peer].next_call("Work")
    stage.exchanges[fields.get("as", "s")] = exchange
    message = await exchange.next()
    if "register" not in message:
        raise Failure(f"the first message is {shown(message)}")
    exchange.register = message["register"]
    check(fields.get("register", {}), exchange.register)
    check(fields.get("headers", {}), exchange.headers)
    if "accept" in fields:
        await accept(stage, fields.get("as", "s"), {"with": fields["accept"]})


async def accept(stage: Stage, name: Any, fields: Fields) -> None:
    """Accepts a worker."""
    exchange = exchange_of(stage, name)
    said = dict(fields.get("with") or {})
    exchange.confirms_heartbeats = said.pop("confirm_heartbeats", True)
    await exchange.write({"registered": accepted(exchange.register, exchange.is_old, said)})


async def tell(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends any message."""
    await exchange_of(stage, name).write(fields["message"])


async def lease(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends leases: as one batch, or one by one to where the old protocol is spoken."""
    exchange = exchange_of(stage, name)
    leases = [make_lease(said) for said in fields["leases"]]
    if exchange.is_old or fields.get("single"):
        for each in leases:
            await exchange.write({"lease": each})
    else:
        await exchange.write({"leases": {"leases": leases}})


async def reports(stage: Stage, name: Any, fields: Fields) -> None:
    """Reads as many reports as are expected, over the messages that they come in."""
    exchange = exchange_of(stage, name)
    expected = fields["expect"]
    found: list[Any] = []
    numbers: list[int] = []
    while len(found) < len(expected):
        message = await exchange.next()
        if "reports" in message:
            numbers.append(message["reports"]["number"])
            found.extend(message["reports"].get("reports", ()))
            if fields.get("confirm", True):
                await exchange.write({"receipt": {"reports": numbers[-1]}})
        elif exchange.is_old and any(kind in message for kind in REPORTS):
            found.append(message)
        else:
            raise Failure(f"{shown(message)} came instead of a report")
    check({"unordered": expected}, found)
    check(fields.get("numbers", {}), numbers)
    stage.saved[fields.get("as", "reports")] = {"numbers": numbers, "found": found}


async def count_reports(stage: Stage, name: Any, fields: Fields) -> None:
    """Reads so many reports, each like a pattern; judges the messages that they came in."""
    exchange = exchange_of(stage, name)
    numbers: list[int] = []
    most = found = 0
    while found < fields["count"]:
        message = await exchange.next()
        here = message.get("reports", {}).get("reports", [])
        check({"each": fields["like"]}, here)
        found += len(here)
        most = max(most, len(here))
        numbers.append(message["reports"]["number"])
        await exchange.write({"receipt": {"reports": numbers[-1]}})
    check(list(range(1, len(numbers) + 1)), numbers)
    check(fields.get("messages", {}), len(numbers))
    check(fields.get("most", {}), most)
    check(fields.get("largest", {}), max(exchange.sizes))


async def reports_and_slots(stage: Stage, name: Any, fields: Fields) -> None:
    """Reads reports and SetSlots(0), in either order."""
    exchange = exchange_of(stage, name)
    found: list[Any] = []
    slots = 0
    while len(found) < len(fields["expect"]) or not slots:
        message = await exchange.next()
        if "set_slots" in message:
            check({"set_slots": {"slots": 0}}, message)
            slots += 1
        else:
            found.extend(message["reports"]["reports"])
            await exchange.write({"receipt": {"reports": message["reports"]["number"]}})
    check(fields["expect"], found)


async def lease_of(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends one lease whose fields are given as one value."""
    await lease(stage, name, {"leases": [{"lease": 1, **fields["lease"]}]})


async def many_leases(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends so many leases, in batches."""
    numbers = range(1, fields["count"] + 1)
    for first in range(0, len(numbers), LEASES_PER_BATCH):
        batch = numbers[first : first + LEASES_PER_BATCH]
        await lease(stage, name, {"leases": [{"lease": number} for number in batch]})


async def large_leases(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends so many leases with large payloads, each in a message of its own, without waiting."""
    for number in range(1, fields["count"] + 1):
        said = {"payload": bytes(fields["size"]), "content_type": "application/octet-stream"}
        await lease(stage, name, {"leases": [{"lease": number, **said}]})


async def hears(stage: Stage, name: Any, fields: Fields) -> None:
    """Reads the next message that is no heartbeat."""
    check(fields["like"], await exchange_of(stage, name).next())


async def beat(stage: Stage, name: Any, fields: Fields) -> None:
    """Reads heartbeats up to one like this."""
    found = await exchange_of(stage, name).beat(fields.get("like", {}))
    if fields.get("confirm"):
        number = found["heartbeats"]["number"]
        await exchange_of(stage, name).write({"receipt": {"heartbeats": number}})
    stage.saved[fields.get("as", "beat")] = found


async def heard(stage: Stage, name: Any, fields: Fields) -> None:
    """Compares everything that a stream has brought so far."""
    log = exchange_of(stage, name).log
    if "order" in fields:
        problem = in_order(fields["order"], log)
        if problem:
            raise Failure(problem)
    for pattern in fields.get("never", ()):
        bad = [message for message in log if not mismatch(pattern, message)]
        if bad:
            raise Failure(f"there is {shown(bad[0])}")
    if "count" in fields:
        of = [message for message in log if not mismatch(fields["count"]["like"], message)]
        check(fields["count"]["is"], len(of))


async def half_closed(stage: Stage, name: Any, _: Fields) -> None:
    """Waits until the participant has ended its side in order."""
    await exchange_of(stage, name).half_closed()


async def over(stage: Stage, name: Any, _: Fields) -> None:
    """Waits until a call is over, however."""
    await exchange_of(stage, name).over()


async def still_open(stage: Stage, name: Any, _: Fields) -> None:
    """Fails if a call is over."""
    if exchange_of(stage, name).is_over:
        raise Failure("the call is over")


async def end(stage: Stage, name: Any, fields: Fields) -> None:
    """Ends a call, with an error if a code is given."""
    exchange_of(stage, name).end(fields)


async def refuse(stage: Stage, peer: Any, fields: Fields) -> None:
    """Ends the next streams so, one after another."""
    for _ in range(fields.get("times", 1)):
        exchange = await stage.peers[peer].next_call("Work")
        exchange.end(fields)


async def delays(stage: Stage, peer: Any, fields: Fields) -> None:
    """Ends stream after stream and judges the delays between them."""
    instants: list[tuple[float, float]] = []
    for _ in range(fields["count"]):
        exchange = await stage.peers[peer].next_call("Work")
        exchange.end({"code": "UNAVAILABLE"})
        await exchange.over()
        assert exchange.ended_at is not None
        instants.append((exchange.arrived_at, exchange.ended_at))
    pairs = itertools.pairwise(instants)
    waited = [following[0] - this[1] for this, following in pairs]
    initial = fields["initial"]
    # What a busy machine may add to each: the load is the processes that wait for a processor.
    slack = 0.3 + 0.1 * os.getloadavg()[0] / (os.cpu_count() or 1)
    problem = spread_of_delays(waited, initial, fields["bound"], slack)
    problem = problem or tries_in_windows([at for at, _ in instants], 10 * initial, 4)
    if problem:
        raise Failure(f"{problem}; delays {[round(delay, 3) for delay in waited]}")


async def streams(stage: Stage, peer: Any, fields: Fields) -> None:
    """Compares how many streams a peer has seen."""
    check(fields["total"], stage.peers[peer].count("Work"))


# --- other calls ----------------------------------------------------------------------------------


async def call(stage: Stage, peer: Any, fields: Fields) -> None:
    """Takes the next call of a method; answers or refuses it if told."""
    exchange = await stage.peers[peer].next_call(fields["method"])
    name = fields.get("as", "c")
    stage.exchanges[name] = exchange
    request = await exchange.next()
    stage.saved[name] = request
    check(fields.get("request", {}), request)
    check(fields.get("headers", {}), exchange.headers)
    if "answer" in fields:
        await answer(stage, name, {"with": fields["answer"]})
    if "refuse" in fields:
        exchange.end(fields["refuse"])


async def refuse_calls(stage: Stage, peer: Any, fields: Fields) -> None:
    """Refuses call after call of a method until an earlier command has its answer."""
    given_up: asyncio.Future[Any] = stage.answers[fields["until"]]
    while True:
        coming: asyncio.Future[Any] = asyncio.ensure_future(
            stage.peers[peer].next_call(fields["method"])
        )
        await asyncio.wait({coming, given_up}, return_when=asyncio.FIRST_COMPLETED)
        if not coming.done():
            coming.cancel()
            return
        coming.result().end(fields["refuse"])


async def answer(stage: Stage, name: Any, fields: Fields) -> None:
    """Answers a call."""
    exchange = exchange_of(stage, name)
    await exchange.write(fields.get("with", {}))
    exchange.end({})


async def submits(stage: Stage, peer: Any, fields: Fields) -> None:
    """Answers requests for submission until so many tasks have come; judges how they came."""
    method = fields.get("method", "SubmitMany")
    keys: list[str] = []
    requests = most_open = most = 0
    while len(keys) < fields["count"]:
        exchange = await stage.peers[peer].next_call(method)
        most_open = max(most_open, 1 + stage.peers[peer].waiting(method))
        request = await exchange.next()
        requests += 1
        tasks = request["tasks"] if "tasks" in request else [request["task"]]
        most = max(most, len(tasks))
        first = len(keys) + 1
        keys += [task.get("key", "") for task in tasks]
        numbered = [{"id": first + place} for place in range(len(tasks))]
        if fields.get("in_order"):
            numbered = [{"id": task["key"]} for task in tasks]
            if [int(each["id"]) for each in numbered] != list(
                range(int(numbered[0]["id"]), int(numbered[0]["id"]) + len(tasks))
            ):
                raise Failure(f"a request has the tasks {shown(keys[first - 1 :])}")
        if "tasks" not in request:
            await exchange.write(numbered[0])
        elif method == "SubmitMany":
            await exchange.write({"outcomes": [{"response": each} for each in numbered]})
        else:
            await exchange.write({"tasks": numbered})
        exchange.end({})
    check(fields.get("requests", {}), requests)
    check(fields.get("most", {}), most)
    check(fields.get("in_flight", {}), most_open)


async def submit_many_outcomes(stage: Stage, peer: Any, fields: Fields) -> None:
    """Answers one SubmitMany: an id, or a code with its reason, for each task."""
    exchange = await stage.peers[peer].next_call("SubmitMany")
    await exchange.next()
    outcomes = tasks_pb2.SubmitManyResponse()
    for said in fields["outcomes"]:
        outcome = outcomes.outcomes.add()
        if "id" in said:
            outcome.response.id = said["id"]
        else:
            outcome.error.CopyFrom(make_status(said["code"], "refused", said["reason"], {}))
    await exchange.write_message(outcomes)
    exchange.end({})


async def wait_error(stage: Stage, name: Any, fields: Fields) -> None:
    """Tells a WaitMany stream that one of its tasks cannot be waited for."""
    message = tasks_pb2.TaskResults()
    error = message.errors.add()
    error.task.id = fields["task"]
    error.status.CopyFrom(make_status(fields["code"], "refused", fields["reason"], {}))
    await exchange_of(stage, name).write_message(message)


async def result_of(stage: Stage, name: Any, fields: Fields) -> None:
    """Tells a WaitMany stream how task 1 ended."""
    result = {"id": 1, "output_available": True, **fields["result"]}
    await exchange_of(stage, name).write({"results": [result]})


async def calls(stage: Stage, peer: Any, fields: Fields) -> None:
    """Compares how many calls of a method a peer has seen."""
    check(fields["total"], stage.peers[peer].count(fields["method"]))


# --- peers, proxies, clusters ---------------------------------------------------------------------


async def stop_peer(stage: Stage, name: Any, _: Fields) -> None:
    """Closes a peer's port and connections."""
    await stage.peers[name].stop()


async def start_peer(stage: Stage, name: Any, _: Fields) -> None:
    """Opens a peer's port again."""
    await stage.peers[name].start()


async def go_away(stage: Stage, name: Any, _: Fields) -> None:
    """Sends GOAWAY, lets open calls go on, and takes new ones on the same port."""
    stage.tasks.append(stage.peers[name].go_away())


async def proxy(stage: Stage, name: Any, fields: Fields) -> None:
    """Changes what a proxy does."""
    of = stage.proxies[name]
    if "mode" in fields:
        of.set_mode(fields["mode"])
    if fields.get("cut"):
        of.cut()
    if "cut_after" in fields:
        of.cut_after(fields["cut_after"])
    if "delay" in fields:
        of.delay = fields["delay"]


async def connections(stage: Stage, name: Any, fields: Fields) -> None:
    """Waits until a proxy has accepted so many connections."""
    await stage.proxies[name].accepted(fields["at_least"])


def replica_of(stage: Stage, name: str) -> ServerProcess:
    """Returns a real server by its name: r0, r1 …, or those of shards, left0, left1 …."""
    assert stage.cluster is not None
    return stage.cluster.named[name]


async def kill(stage: Stage, name: Any, fields: Fields) -> None:
    """Ends a real server with a signal, SIGKILL if none is named."""
    await replica_of(stage, name).end(signal.Signals[fields.get("with", "SIGKILL")])


async def kill_later(stage: Stage, name: Any, fields: Fields) -> None:
    """Sends a real server a signal, without waiting for its end."""
    end = replica_of(stage, name).end(signal.Signals[fields["with"]])
    stage.tasks.append(asyncio.ensure_future(end))


async def leads(stage: Stage, name: Any, _: Fields) -> None:
    """Waits until a real server leads."""
    await replica_of(stage, name).says("server_ready")


async def restart(stage: Stage, name: Any, _: Fields) -> None:
    """Starts a real server that has ended."""
    await replica_of(stage, name).start()


STEPS: dict[str, Step] = {
    "stream": stream,
    "accept": accept,
    "tell": tell,
    "lease": lease,
    "reports": reports,
    "hears": hears,
    "count_reports": count_reports,
    "reports_and_slots": reports_and_slots,
    "lease_of": lease_of,
    "many_leases": many_leases,
    "large_leases": large_leases,
    "beat": beat,
    "heard": heard,
    "half_closed": half_closed,
    "over": over,
    "still_open": still_open,
    "end": end,
    "refuse": refuse,
    "delays": delays,
    "streams": streams,
    "call": call,
    "refuse_calls": refuse_calls,
    "answer": answer,
    "submits": submits,
    "submit_many_outcomes": submit_many_outcomes,
    "wait_error": wait_error,
    "result_of": result_of,
    "calls": calls,
    "stop_peer": stop_peer,
    "start_peer": start_peer,
    "go_away": go_away,
    "proxy": proxy,
    "connections": connections,
    "kill": kill,
    "kill_later": kill_later,
    "leads": leads,
    "restart": restart,
}
