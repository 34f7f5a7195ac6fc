"""The engine: a pure state machine that decides everything, and does nothing itself.

House rules, for every module in this package:

1. `Engine.step` never raises for bad input: a refusal is a value with an `ErrorReason`. It raises
   only on a broken invariant, and then its leader stops.
2. Events in, mutations and effects out. Time passes only through `now`; `mono` never goes back.
   Chance comes only from the injected `Chance`, in whole numbers.
3. All state sits in `state`; every change of a status passes `Draft.transition` and with it the
   table in `lifecycle`.
4. Order is total: ties break by instant, then id. No iteration over a set, no `hash()`, no `id()`,
   no float as an instant. The same seed, events and instants give the same step, byte for byte.
5. Reads are events too: their answers are effects, so that no reader sees what a crash could undo.
6. What has a limit has a named constant.
7. No input or output, no await, no clock, no logging: the runtime logs from mutations and effects.
"""

from cronoq_server.engine.effects import (
    Admitted,
    CancelAttempt,
    Dispatch,
    Done,
    Dropped,
    Joined,
    Lease,
    NotJoined,
    Page,
    PoolView,
    Receipt,
    Result,
    Results,
    SnapshotView,
    StatusEvent,
    TaskDetail,
    TaskView,
    WorkerView,
)
from cronoq_server.engine.engine import Engine, Step
from cronoq_server.engine.events import (
    Cancel,
    CancelledByWorker,
    Completed,
    Event,
    Failed,
    Get,
    GetOutput,
    HeartbeatsRead,
    ListTasks,
    ListWorkers,
    Nacked,
    Report,
    Resume,
    SnapshotQuery,
    Submit,
    SubmitMode,
    Wait,
    WorkerJoined,
)
from cronoq_server.engine.lifecycle import InvariantError
from cronoq_server.engine.model import (
    MILLISECOND,
    SECOND,
    YEAR,
    Dependency,
    Duration,
    EdgeCondition,
    EngineSettings,
    ErrorReason,
    Instant,
    Overflow,
    Pairs,
    PastAttempt,
    PoolSettings,
    Progress,
    Refusal,
    ResourceSettings,
    RetryPolicy,
    Status,
    TaskFilter,
    TaskRef,
    TaskSpec,
)
from cronoq_server.engine.policies import Chance
from cronoq_server.engine.timers import NEVER

__all__ = [
    "Admitted",
    "Cancel",
    "CancelAttempt",
    "CancelledByWorker",
    "Chance",
    "Completed",
    "Dependency",
    "Dispatch",
    "Done",
    "Dropped",
    "Duration",
    "EdgeCondition",
    "Engine",
    "EngineSettings",
    "ErrorReason",
    "Event",
    "Failed",
    "Get",
    "GetOutput",
    "HeartbeatsRead",
    "Instant",
    "InvariantError",
    "Joined",
    "Lease",
    "ListTasks",
    "ListWorkers",
    "MILLISECOND",
    "NEVER",
    "Nacked",
    "NotJoined",
    "Overflow",
    "Page",
    "Pairs",
    "PastAttempt",
    "PoolSettings",
    "PoolView",
    "Progress",
    "Receipt",
    "Refusal",
    "Report",
    "ResourceSettings",
    "Result",
    "Results",
    "Resume",
    "RetryPolicy",
    "SECOND",
    "SnapshotQuery",
    "SnapshotView",
    "Status",
    "StatusEvent",
    "Step",
    "Submit",
    "SubmitMode",
    "TaskDetail",
    "TaskFilter",
    "TaskRef",
    "TaskSpec",
    "TaskView",
    "Wait",
    "WorkerJoined",
    "WorkerView",
    "YEAR",
]
