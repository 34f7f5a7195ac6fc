"""A worker in a fifth language: plain generated stubs, and the few rules that every worker needs.

The example of docs/guide/new-language.md; the language is Python without the SDK. `handle(lease)`
returns the field of a Report that says how an attempt ended, `tell(fact, …)` hears what happens.
"""

import queue
import random
import threading
import time

import grpc
from cronoq.v1 import workers_pb2 as pb
from cronoq.v1 import workers_pb2_grpc

FATAL = {
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "INVALID_ARGUMENT",
    "UNIMPLEMENTED",
    "FAILED_PRECONDITION",
}


class Worker:
    """One session over all its streams: leases, reports without receipt, heartbeats."""

    def __init__(self, options, kinds, handle, tell):
        self.options, self.kinds, self.handle, self.tell = options, kinds, handle, tell
        self.lock, self.slots = threading.RLock(), threading.Semaphore(options.get("slots", 1))
        self.running, self.unconfirmed, self.seen = {}, {}, set()
        self.token, self.number, self.beats, self.last_lease = b"", 0, 0, 0
        self.ttl, self.outbox, self.stopping, self.over = 30.0, None, False, threading.Event()

    def run(self):
        """Connects again and again, with full jitter, until it is stopped or refused for good."""
        threading.Thread(target=self.beat, daemon=True).start()
        endpoint, hops, failures = self.options["endpoint"], 0, 0
        while not self.may_end():
            code, target, registered = self.follow(endpoint)
            hops, failures = (0, 0) if registered else (hops, failures)
            if target and hops < 3:  # RR-09, RR-10
                self.tell("redirected", endpoint=target, refused="")
                endpoint, hops = target.partition("//")[2].rstrip("/"), hops + 1
                continue
            if target:  # RR-16
                self.tell("redirected", endpoint=target, refused="too many in a row")
            elif code in FATAL:  # RR-06
                self.tell("gave_up", code=code, message=code)
                break
            endpoint = endpoint if registered else self.options["endpoint"]  # RR-17, RR-19
            bound = self.options.get("backoff_initial", 0.1) * 2**failures
            hops, failures = 0, failures + 1
            time.sleep(random.random() * min(bound, self.options.get("backoff_max", 5.0)))  # RR-03
        self.over.set()

    def may_end(self):
        with self.lock:
            return self.stopping and not (self.running or self.unconfirmed)

    def follow(self, endpoint):
        """Follows one stream to its end; tells its code, a redirect, and if it was accepted."""
        with grpc.insecure_channel(endpoint) as channel:  # RR-08
            outbox, registered = queue.SimpleQueue(), False
            outbox.put(self.register())  # WP-01
            call = workers_pb2_grpc.WorkersStub(channel).Work(iter(outbox.get, None))
            try:
                for message in call:
                    if message.HasField("registered"):
                        registered = True
                        self.accepted(message.registered, outbox)
                        self.tell("connected", endpoint=f"http://{endpoint}")
                    else:
                        self.take(message)
            except grpc.RpcError:
                pass  # The call knows its code.
            self.outbox = None
            outbox.put(None)
            if registered:
                self.tell("disconnected", endpoint=f"http://{endpoint}", reason="")
            headers = {**dict(call.initial_metadata()), **dict(call.trailing_metadata())}
            return call.code().name, headers.get("cronoq-shard-endpoint"), registered

    def register(self):
        register = pb.Register(
            slots=self.options.get("slots", 1),
            worker_name="fifth",
            protocol_version=4,
            sdk="fifth/0.0.1",
            kinds=sorted(self.kinds),
        )
        with self.lock:
            if self.token:  # WP-30
                leases = [*self.running, *(lease for _, lease in self.unconfirmed.values())]
                register.resume.CopyFrom(pb.Resume(session_token=self.token, leases=leases))
        return pb.WorkerMessage(register=register)

    def accepted(self, answer, outbox):
        with self.lock:
            self.token, self.outbox = answer.session_token, outbox
            self.ttl = answer.lease_ttl_s or 30.0
            for lease in set(self.running) - set(answer.adopted):  # WP-32
                del self.running[lease]
            for number, (message, _) in self.unconfirmed.items():  # WP-33
                if number > answer.reports_seen:
                    outbox.put(message)
            if self.stopping:
                outbox.put(pb.WorkerMessage(set_slots=pb.SetSlots(slots=0)))  # WP-40

    def take(self, message):
        for lease in message.leases.leases:
            if lease.lease in self.seen:  # WP-12
                continue
            with self.lock:
                self.seen.add(lease.lease)
                self.last_lease = max(self.last_lease, lease.lease)
                self.running[lease.lease] = lease
            if self.stopping:
                self.report(lease, nack=pb.Nack(lease=lease.lease, reason="stopping"))  # WP-41
            else:
                threading.Thread(target=self.run_handler, args=(lease,), daemon=True).start()
        with self.lock:
            for number in [n for n in self.unconfirmed if n <= message.receipt.reports]:
                del self.unconfirmed[number]  # WP-22
        self.end_if_done()

    def run_handler(self, lease):
        with self.slots:  # WP-11
            how = self.handle(lease)
        self.report(lease, **how)

    def report(self, lease, **how):
        with self.lock:
            if self.running.pop(lease.lease, None) is None:
                return
            self.number += 1  # WP-21
            reports = pb.Reports(number=self.number, reports=[pb.Report(**how)])
            self.unconfirmed[self.number] = pb.WorkerMessage(reports=reports), lease.lease
            if self.outbox:
                self.outbox.put(self.unconfirmed[self.number][0])

    def beat(self):
        """Names every lease that runs, every third of their time (WP-23)."""
        while not self.over.wait(self.ttl / 3):
            with self.lock:
                if self.outbox and self.running:
                    self.beats += 1
                    beat = {"number": self.beats, "last_lease": self.last_lease}
                    beats = pb.Heartbeats(leases=list(self.running), **beat)
                    self.outbox.put(pb.WorkerMessage(heartbeats=beats))

    def stop(self):
        with self.lock:
            self.stopping = True
            if self.outbox:
                self.outbox.put(pb.WorkerMessage(set_slots=pb.SetSlots(slots=0)))  # WP-40
        self.end_if_done()
        self.over.wait()

    def end_if_done(self):
        """Half-closes once nothing is owed; the server ends the stream (WP-44)."""
        with self.lock:
            if self.outbox and self.may_end():
                self.outbox.put(None)
                self.outbox = None
