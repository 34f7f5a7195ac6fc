"""Decides which kinds of fault, known from systems like this one, tests have to hold down.

Each row says what goes wrong elsewhere and what is right here. Tests name the rows that they cover
by marks, which `tools/regression_marks.py` collects.
"""

from __future__ import annotations

from typing import NamedTuple


class FaultKind(NamedTuple):
    """One kind of fault: what goes wrong elsewhere, and what is right here."""

    number: str
    fault: str
    right: str


FAULT_KINDS = (
    FaultKind(
        "R1",
        "a leader believes in a leadership that the database has ended",
        "it stops at its next check or commit, and nothing is written under its epoch any more",
    ),
    FaultKind(
        "R2",
        "a lock that was taken without anybody hearing of it is never given back",
        "its connection is closed; the lock is taken once per connection",
    ),
    FaultKind(
        "R3",
        "a database becomes read-only and its connections stay",
        "the store is unavailable, every attempt connects anew, and works again when it can",
    ),
    FaultKind(
        "R4",
        "a restarted worker with the same name is taken for the one that died",
        "an attempt belongs to a session; a name identifies nothing",
    ),
    FaultKind(
        "R5",
        "two replicas recover the same rows",
        "recovery reads and writes under its own epoch, and stops when another one has begun",
    ),
    FaultKind(
        "R6",
        "a takeover in the same instant as a dispatch loses or doubles it",
        "each attempt number is dispatched once",
    ),
    FaultKind(
        "R7",
        "the lease stream ends, the rest of the connection lives: a worker that gets nothing",
        "the stream is opened again; without one a session has no capacity",
    ),
    FaultKind(
        "R8",
        "a link that drops everything without closing is never noticed",
        "keepalive notices within its interval and timeout",
    ),
    FaultKind(
        "R9",
        "a process ends before its last report is out",
        "it waits for the receipt within its drain time, else says what is unconfirmed",
    ),
    FaultKind(
        "R10",
        "heartbeats are the first thing to stop at shutdown",
        "they go on until the last report has its receipt",
    ),
    FaultKind(
        "R11",
        "a handler that computes starves the heartbeats",
        "they go on while handlers block",
    ),
    FaultKind(
        "R12",
        "a process that forks with a live channel hangs",
        "the child makes a channel of its own",
    ),
    FaultKind(
        "R13",
        "keepalive without margin: the server ends the connection for too many pings",
        "an interval that could do so is refused; who pings without margin loses that connection",
    ),
    FaultKind(
        "R14",
        "callers behind one address of several servers fail, or storm them, at every failover",
        "calls with keys and watches go on, each client makes a few connections a second at most",
    ),
    FaultKind(
        "R15",
        "servers that redirect in circles catch a worker for ever",
        "three hops, then back to the configured endpoint with backoff",
    ),
    FaultKind(
        "R16",
        "all workers come back at the same moment",
        "full jitter spreads them, and they are back soon",
    ),
    FaultKind(
        "R17",
        "one report that no store can hold fails a step that carries many",
        "it is cleaned; the others are not touched",
    ),
    FaultKind(
        "R18",
        "a payload that can't be decoded kills the worker, or is tried for ever",
        "that attempt fails for good with the reason, and the worker lives on",
    ),
    FaultKind(
        "R19",
        "a result over the limit is computed again and again",
        "it fails for good before it is sent, or where it arrives",
    ),
    FaultKind(
        "R20",
        "permits leak on one of the ways in which an attempt can end",
        "what is held is what runs, at every step",
    ),
    FaultKind(
        "R21",
        "a rate limit breaks the order of what it holds back",
        "classes first, then first come first served",
    ),
    FaultKind(
        "R22",
        "a dependant waits for ever for a parent that ended in an unforeseen way",
        "every way a parent can end decides every kind of edge, whenever it ends",
    ),
    FaultKind(
        "R23",
        "an option means one thing in one SDK and another, or nothing, in the next",
        "what is submitted in any language is stored alike, runs in any other and reads alike",
    ),
    FaultKind(
        "R24",
        "schedules fire twice, never, or an hour off when clocks change",
        "strictly rising instants by the rules of the schedule, in any zone",
    ),
    FaultKind(
        "R25",
        "the search for the next time of an impossible expression never ends",
        "such expressions are refused; every search is bounded",
    ),
    FaultKind(
        "R26",
        "a machine without zone files silently runs schedules in UTC",
        "zone data ships with the server; an unknown zone is refused",
    ),
    FaultKind(
        "R27",
        "a connection pooler hands the session that holds the lock to somebody else",
        "such a route is refused, with the name of the setting that gives a direct one",
    ),
    FaultKind(
        "R28",
        "what is written for somebody who does not read piles up",
        "lines are dropped and counted, watches end with a reason, connections are cut off",
    ),
    FaultKind(
        "R29",
        "a kind that nobody serves during a deploy is dropped",
        "it waits, visibly, and runs when somebody serves it",
    ),
    FaultKind(
        "R30",
        "a task put back has lost its settings",
        "the same spec with a fresh budget, as often as it is put back",
    ),
    FaultKind(
        "R31",
        "a cancelled thread runs on, unseen, beside the next task in its slot",
        "the slot is taken until the thread ends",
    ),
    FaultKind(
        "R32",
        "a backlog starves behind fresh work when its workers come back",
        "oldest first: the age of the oldest falls steadily",
    ),
    FaultKind(
        "R33",
        "the last progress before a failure is lost",
        "the next attempt sees it",
    ),
    FaultKind(
        "R34",
        "connections that never say anything pile up",
        "they are closed",
    ),
    FaultKind(
        "R35",
        "several limits on one task cost seconds",
        "they cost no further step",
    ),
    FaultKind(
        "R36",
        "a background loop dies and the leader serves on, half dead",
        "there is one loop, and an error in it ends the leadership",
    ),
)
