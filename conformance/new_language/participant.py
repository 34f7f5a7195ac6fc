"""The fifth language's participant: what stands between its worker and the runner.

python participant.py GENERATED_STUBS
"""

import base64
import json
import queue
import sys
import threading

sys.path.insert(0, sys.argv[1])

from cronoq.v1 import workers_pb2 as pb
from worker import Worker

OUT = threading.Lock()
GATES = {}


def emit(fact, **fields):
    """Writes one fact."""
    with OUT:
        print(json.dumps({"fact": fact, **fields}), flush=True)


def gate(task_id):
    """Returns where the attempts of a task wait for their ending."""
    return GATES.setdefault(int(task_id), queue.SimpleQueue())


def handler(behaviours):
    """Returns a handler that does what a behaviour says."""

    def handle(lease):
        does = behaviours[lease.kind]
        fields = {"task_id": str(lease.task_id), "attempt": lease.attempt}
        emit("attempt_started", kind=lease.kind, **fields)
        if does["act"] == "block":
            does = gate(lease.task_id).get()
        emit("attempt_ended", **fields)
        return ending(does, lease)

    return handle


def ending(does, lease):
    """Returns the field of a Report that says how an attempt ended (WP-17)."""
    number = lease.lease
    message = does.get("message", "").replace("\0", "\ufffd")  # WP-19
    match does["act"]:
        case "echo":
            raw, kind = lease.payload, lease.content_type
        case "complete" if "output_b64" in does:
            raw, kind = base64.b64decode(does["output_b64"]), "application/octet-stream"
        case "complete":
            raw = json.dumps(does.get("output"), separators=(",", ":")).encode()
            kind = "application/json"
        case "cancel":
            return {"cancelled": pb.Cancelled(lease=number)}
        case "reject":
            return {"nack": pb.Nack(lease=number, reason=message)}
        case act:
            after = does.get("retry_after")
            is_permanent = act == "permanent"
            fail = pb.Fail(lease=number, message=message, permanent=is_permanent)
            if after is not None:
                fail.retry_after_s = after
            return {"fail": fail}
    return {"complete": pb.Complete(lease=number, output=raw, content_type=kind)}


class Commands:
    """The commands for workers."""

    def __init__(self):
        self.worker = None

    def do(self, command):
        """Does one command and answers it."""
        match command["do"]:
            case "start_worker":
                behaviours = command.get("handlers") or {"work": command["default_handler"]}
                kinds = command.get("handlers", {})
                self.worker = Worker(command["options"], kinds, handler(behaviours), emit)
                threading.Thread(target=self.worker.run, daemon=True).start()
            case "stop_worker":
                self.worker.stop()
            case "finish_attempt":
                gate(command["task_id"]).put(command["behaviour"])
        worker = self.worker
        ready = worker is not None and worker.outbox is not None and not worker.stopping
        emit("done", id=command["id"], ready=ready)


if __name__ == "__main__":
    emit("hello", language="fifth", sdk="0.0.1")
    commands = Commands()
    for line in sys.stdin:
        threading.Thread(target=commands.do, args=(json.loads(line),), daemon=True).start()
