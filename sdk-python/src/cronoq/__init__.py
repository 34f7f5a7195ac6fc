"""Client and worker for a cronoq server.

client = Client("127.0.0.1:7070")      submit, wait, list, watch, cancel
worker = Worker(endpoint=…, slots=4)   runs handlers for tasks
App(); @app.task …                     functions whose calls are tasks, over both
cronoq.blocking.Client                 the same client for programs without an event loop
cronoq.errors                          every error, as a tree
cronoq.testing                         run a handler without a server
"""

from ._endpoint import EndpointError
from ._pages import TaskPages
from ._payload import Codec, JsonCodec, MsgpackCodec, Transform, TransformingCodec, ZlibTransform
from ._version import __version__
from .app import App, AppHandle, BlockingApp, Cron, TaskFunction
from .attempt import Attempt, Cancel, Interceptor, Permanent, Reject, Retryable
from .client import Client, TaskHandle, TaskOptions
from .errors import CronoqError, ErrorReason, GaveUpError, PayloadError, TaskFailedError
from .options import (
    Backoff,
    ClientOptions,
    Keepalive,
    OnSubmit,
    Seconds,
    Submission,
    TlsOptions,
    WorkerOptions,
)
from .spec import (
    NO_PAYLOAD,
    BulkAction,
    CatchUp,
    Dep,
    EdgeCond,
    Fold,
    Gap,
    MissPolicy,
    Overlap,
    Priority,
    RetryPolicy,
    ScheduleSpec,
    TaskFilter,
    TaskSpec,
    TaskStatus,
    new_key,
)
from .views import (
    AttemptRecord,
    BulkOutcome,
    ParentRecord,
    Progress,
    StatusEvent,
    TaskDetail,
    TaskInfo,
    TaskResult,
)
from .worker import Worker

__all__ = [
    "ScheduleSpec",
    "Overlap",
    "Gap",
    "Fold",
    "CatchUp",
    "NO_PAYLOAD",
    "App",
    "AppHandle",
    "Attempt",
    "AttemptRecord",
    "Backoff",
    "BlockingApp",
    "BulkAction",
    "BulkOutcome",
    "Cancel",
    "Client",
    "ClientOptions",
    "Codec",
    "Cron",
    "CronoqError",
    "Dep",
    "EdgeCond",
    "EndpointError",
    "ErrorReason",
    "GaveUpError",
    "Interceptor",
    "OnSubmit",
    "Submission",
    "JsonCodec",
    "Keepalive",
    "MissPolicy",
    "MsgpackCodec",
    "ParentRecord",
    "PayloadError",
    "Permanent",
    "Priority",
    "Progress",
    "Reject",
    "RetryPolicy",
    "Retryable",
    "Seconds",
    "StatusEvent",
    "TaskDetail",
    "TaskFailedError",
    "TaskFilter",
    "TaskFunction",
    "TaskHandle",
    "TaskInfo",
    "TaskOptions",
    "TaskPages",
    "TaskResult",
    "TaskSpec",
    "TaskStatus",
    "TlsOptions",
    "Transform",
    "TransformingCodec",
    "Worker",
    "WorkerOptions",
    "ZlibTransform",
    "__version__",
    "new_key",
]
