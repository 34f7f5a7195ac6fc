"""Decides that the contract has exactly the messages, numbers and types that peers rely on.

The tables are written out by hand and compared both ways: what is added to the contract is added
here too, in the same change, and nothing ever disappears. A field reads `number name type mark`:
no mark for a value without presence, `?` for one that can be absent, `*` for a repeated one and
`|` for a member of the message's oneof. Message fields need no `?`.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from cronoq_server._proto import (
    admin_pb2,
    errors_pb2,
    task_pb2,
    tasks_pb2,
    testing_pb2,
    workers_pb2,
)

CONTRACT = Path(__file__).resolve().parents[2] / "proto/cronoq/v1"
MODULES = (admin_pb2, errors_pb2, task_pb2, tasks_pb2, testing_pb2, workers_pb2)

MESSAGES = {
    "task.proto": """
Attempt: 1 number uint32, 2 worker string, 3 started_unix_ns int64, 4 ended_unix_ns int64 ?,
    5 outcome string, 6 message string
Dep: 1 target TaskRef, 2 cond EdgeCond
Empty:
Parent: 1 task TaskRef, 2 cond EdgeCond, 3 status TaskStatus
Progress: 1 data bytes, 2 fraction double ?
RetryPolicy: 1 max_attempts uint32, 2 initial_backoff_s double, 3 multiplier double,
    4 max_backoff_s double, 5 jitter bool
StatusEvent: 1 id uint64, 2 pool string, 3 key string, 4 status TaskStatus, 5 attempt uint32,
    6 at_unix_ns int64, 7 message string, 8 cursor bytes, 9 progress Progress
TaskDetail: 1 info TaskInfo, 2 spec TaskSpec, 3 attempts Attempt *, 4 parents Parent *,
    5 children uint64 *
TaskInfo: 1 id uint64, 2 status TaskStatus, 3 pool string, 4 key string, 5 kind string,
    6 attempt uint32, 7 max_attempts uint32, 8 created_unix_ns int64 ?,
    9 started_unix_ns int64 ?, 10 finished_unix_ns int64 ?, 11 message string,
    12 output_available bool, 13 tenant string, 14 priority Priority, 15 tags map<string,string>,
    16 labels map<string,string>, 17 next_run_unix_ns int64 ?, 18 progress Progress,
    19 waiting_for string *, 20 schedule string
TaskRef: 1 id uint64 |, 2 key string |
TaskResult: 1 id uint64, 2 status TaskStatus, 3 output bytes ?, 4 message string,
    5 output_available bool, 6 content_type string
TaskSpec: 1 payload bytes, 2 content_type string, 3 kind string, 4 pool string,
    5 priority Priority, 6 key string, 7 deadline_in_s double ?, 8 deadline_unix_ns int64 ?,
    9 start_in_s double ?, 10 start_unix_ns int64 ?, 11 tolerance_s double ?,
    12 on_miss MissPolicy, 13 duration_hint_s double ?, 14 timeout_s double ?,
    15 retry RetryPolicy, 16 deps Dep *, 17 resources map<string,uint32>,
    18 tags map<string,string>, 19 labels map<string,string>, 20 tenant string,
    21 trace_context map<string,string>, 22 delay_s double ?, 23 not_before_unix_ns int64 ?,
    24 expires_in_s double ?
""",
    "tasks.proto": """
BulkRequest: 1 filter TaskFilter, 2 action BulkAction, 3 limit uint32, 4 after uint64,
    5 dry_run bool
BulkResponse: 1 matched uint64, 2 changed uint64, 3 next_after uint64,
    4 unavailable_shards string *
CancelRequest: 1 task TaskRef
CancelResponse: 1 cancelled bool
DeleteRequest: 1 task TaskRef
DeleteResponse: 1 deleted bool
GetRequest: 1 task TaskRef
ListTasksRequest: 1 pools string *, 2 statuses TaskStatus *, 3 after uint64, 4 limit uint32,
    5 kinds string *, 6 keys string *, 7 tags map<string,string>, 8 tenants string *,
    9 schedule string, 10 newest_first bool
ListTasksResponse: 1 tasks TaskInfo *, 2 next_after uint64, 3 unavailable_shards string *
RetryRequest: 1 task TaskRef
RetryResponse: 1 retried bool
StatusEvents: 1 events StatusEvent *, 2 cursor bytes
SubmitBatchRequest: 1 tasks TaskSpec *
SubmitBatchResponse: 1 tasks SubmitResponse *
SubmitManyRequest: 1 tasks TaskSpec *
SubmitManyResponse: 1 outcomes SubmitOutcome *
SubmitOutcome: 1 response SubmitResponse |, 2 error google.rpc.Status |
SubmitRequest: 1 task TaskSpec, 2 wait bool, 3 wait_timeout_s double ?
SubmitResponse: 1 id uint64, 2 duplicate bool, 3 result TaskResult
TaskFilter: 1 pools string *, 2 statuses TaskStatus *, 5 kinds string *, 6 keys string *,
    7 tags map<string,string>, 8 tenants string *, 9 schedule string
TaskResults: 1 results TaskResult *, 2 errors WaitError *
WaitError: 1 task TaskRef, 2 status google.rpc.Status
WaitManyRequest: 1 ids uint64 *, 2 keys string *, 3 timeout_s double ?, 4 without_output bool
WaitRequest: 1 task TaskRef, 2 timeout_s double ?
WatchRequest: 1 pools string *, 2 ids uint64 *, 3 keys string *, 4 all_transitions bool,
    5 after_cursor bytes, 6 bookmarks bool
""",
    "workers.proto": """
Abort: 1 lease uint64, 2 reason string
AbortBatch: 1 aborts Abort *
Cancelled: 1 lease uint64
Complete: 1 lease uint64, 2 output bytes, 3 content_type string
Fail: 1 lease uint64, 2 message string, 3 permanent bool, 4 retry_after_s double ?
GetOutputRequest: 1 lease uint64, 2 task_id uint64
Heartbeat: 1 lease uint64
Heartbeats: 1 leases uint64 *, 2 progress LeaseProgress *, 3 number uint64, 4 last_lease uint64
Lease: 1 lease uint64, 2 task_id uint64, 3 attempt uint32, 4 payload bytes,
    5 content_type string, 6 kind string, 7 key string, 8 tags map<string,string>,
    9 timeout_s double ?, 10 deadline_unix_ns int64 ?, 11 pool string, 12 priority Priority,
    13 lease_ttl_s double ?, 14 trace_context map<string,string>, 15 last_progress Progress,
    16 parents uint64 *
LeaseBatch: 1 leases Lease *
LeaseProgress: 1 lease uint64, 2 progress Progress
Nack: 1 lease uint64, 2 reason string
Output: 1 output bytes ?, 2 content_type string, 3 status TaskStatus
Receipt: 1 reports uint64, 2 heartbeats uint64
Register: 1 pool string, 2 slots uint32, 3 worker_name string, 4 protocol_version uint32,
    5 labels map<string,string>, 6 resume Resume, 7 sdk string, 8 kinds string *
Registered: 1 worker_id uint64, 2 lease_ttl_s double ?, 3 slots uint32,
    4 protocol_version uint32, 5 max_message_bytes uint32, 6 session_token bytes,
    7 adopted uint64 *, 8 reports_seen uint64
Report: 1 complete Complete |, 2 fail Fail |, 3 nack Nack |, 4 cancelled Cancelled |
Reports: 1 reports Report *, 2 number uint64
Resume: 1 session_token bytes, 2 leases uint64 *
ServerMessage: 1 registered Registered |, 2 lease Lease |, 3 abort Abort |,
    4 shutdown Shutdown |, 5 leases LeaseBatch |, 6 aborts AbortBatch |, 7 receipt Receipt |
SetSlots: 1 slots uint32
Shutdown: 1 reason string, 2 not_leader bool
WorkerMessage: 1 register Register |, 2 heartbeat Heartbeat |, 3 complete Complete |,
    4 fail Fail |, 5 set_slots SetSlots |, 6 nack Nack |, 7 cancelled Cancelled |,
    8 reports Reports |, 9 heartbeats Heartbeats |
""",
    "admin.proto": """
BackfillRecurringRequest: 1 name string, 2 from_unix_ns int64, 3 to_unix_ns int64,
    4 pool string ?, 5 dry_run bool
BackfillRecurringResponse: 1 created uint64, 2 next_unix_ns int64 ?
GetRecurringRequest: 1 name string, 2 pool string ?
ListPoolsResponse: 1 pools PoolSnapshot *, 2 unavailable_shards string *
ListRecurringResponse: 1 schedules RecurringInfo *, 2 unavailable_shards string *
ListResourcesResponse: 1 resources Resource *, 2 unavailable_shards string *
ListWorkersResponse: 1 workers WorkerInfo *, 2 unavailable_shards string *
PausePoolRequest: 1 pool string
PauseRecurringRequest: 1 name string, 2 paused bool, 3 pool string ?
PoolSnapshot: 1 name string, 2 capacity uint32, 3 busy uint32, 4 held uint32, 5 desired uint32,
    6 pending_by_class uint64 *, 7 reservations uint64, 8 dispatched uint64, 9 succeeded uint64,
    10 failed uint64, 11 priority_adherence double, 12 fixed_start_hit_rate double,
    13 utilization double, 14 schedule_efficiency double, 15 wait_p50_s double,
    16 wait_p90_s double, 17 wait_p99_s double, 18 cost double, 19 workers_connected uint64,
    20 groups WorkerGroup *, 21 paused bool, 22 oldest_ready_s double
PreviewRecurringRequest: 1 name string |, 2 spec RecurringRequest |, 3 count uint32,
    4 pool string ?
PreviewRecurringResponse: 1 at_unix_ns int64 *
RecurringDetail: 1 info RecurringInfo, 2 spec RecurringRequest, 3 skipped uint64,
    4 chain_broken bool
RecurringInfo: 1 name string, 2 cron string, 3 tz string, 4 pool string, 5 kind string,
    6 overlap Overlap, 7 next_unix_ns int64 ?, 8 last_task_id uint64 ?, 9 paused bool,
    10 gap Gap, 11 fold Fold, 12 catch_up CatchUp
RecurringRequest: 1 name string, 2 cron string, 3 tz string, 4 template TaskSpec,
    6 overlap Overlap, 7 gap Gap, 8 fold Fold, 9 catch_up CatchUp, 10 paused bool
RemoveRecurringRequest: 1 name string, 2 pool string ?
RemoveRecurringResponse: 1 removed bool
Resource: 1 name string, 2 kind string, 3 permits uint32, 4 rate double, 5 burst uint32,
    6 held uint64, 7 tokens double, 8 waiting uint64, 9 overridden bool, 10 per_value bool
ResumePoolRequest: 1 pool string
SetResourceRequest: 1 name string, 2 permits uint32 ?, 3 rate double ?, 4 burst uint32 ?
SnapshotResponse: 1 pools PoolSnapshot *, 2 live_tasks uint64, 3 running uint64,
    4 pending uint64, 5 totals Totals, 6 workers_connected uint64, 7 unavailable_shards string *,
    8 resources Resource *
Totals: 1 submitted uint64, 2 dispatched uint64, 3 succeeded uint64, 4 failed uint64,
    5 dead_lettered uint64, 6 cancelled uint64, 7 skipped uint64, 8 missed uint64, 9 shed uint64,
    10 retries uint64, 11 timeouts uint64, 12 lease_expiries uint64, 13 stale_completions uint64
TriggerRecurringRequest: 1 name string, 3 pool string ?
TriggerRecurringResponse: 1 task_id uint64
WorkerGroup: 1 labels map<string,string>, 2 capacity uint32, 3 busy uint32
WorkerInfo: 1 id uint64, 2 name string, 3 pool string, 4 labels map<string,string>,
    5 slots uint32, 6 busy uint32, 7 connected_unix_ns int64, 8 sdk string, 9 kinds string *
""",
    "testing.proto": """
AdvanceRequest: 1 seconds double
""",
    "errors.proto": "",
}

RESERVED = {"RecurringRequest": {5}}

# Values from 1 on; 0 is <ENUM>_UNSPECIFIED.
ENUMS = {
    "BulkAction": "CANCEL RETRY",
    "CatchUp": "LATEST NONE ALL",
    "EdgeCond": "ON_SUCCESS ON_COMPLETE ON_FAILURE",
    "Fold": "FIRST LAST BOTH",
    "Gap": "RUN_AFTER SKIP",
    "MissPolicy": "RUN_LATE SKIP FAIL",
    "Overlap": "SKIP ALLOW QUEUE QUEUE_ON_SUCCESS",
    "Priority": "CRITICAL HIGH NORMAL LOW",
    "TaskStatus": "BLOCKED SCHEDULED READY RUNNING RETRYING SUCCEEDED FAILED DEAD_LETTERED "
    "CANCELLED SKIPPED MISSED SHED",
    "ErrorReason": "INVALID_FIELD FIELD_CONFLICT TOO_LARGE CYCLE DUPLICATE_KEY_IN_BATCH "
    "BATCH_TOO_LARGE RESOURCE_UNKNOWN RESOURCE_EXCEEDS_CAPACITY CROSS_SHARD_DEPENDENCY "
    "CROSS_SHARD_BATCH CROSS_SHARD_RESOURCE CRON_INVALID CRON_NEVER_FIRES ZONE_UNKNOWN "
    "UNAUTHENTICATED ROLE_NOT_ALLOWED POOL_NOT_ALLOWED LABEL_NOT_ALLOWED TENANT_NOT_ALLOWED "
    "KEY_IN_USE TASK_UNKNOWN POOL_UNKNOWN DEPENDENCY_UNKNOWN SCHEDULE_UNKNOWN "
    "RESOURCE_NOT_FOUND RESERVATION_CONFLICT WRONG_SHARD KEY_AMBIGUOUS DEPENDENCY_IMPOSSIBLE "
    "NOT_TERMINAL QUEUE_FULL SHED_NONE TOO_MANY_REQUESTS TOO_MANY_STREAMS RATE_LIMITED "
    "NOT_LEADER STOPPING STORE_UNAVAILABLE SHARD_UNAVAILABLE WAIT_TIMEOUT WATCH_TOO_SLOW "
    "CURSOR_UNKNOWN UNSUPPORTED IDS_EXHAUSTED INTERNAL",
}

SERVICES = {
    "Admin": """
AddRecurring: RecurringRequest -> Empty
BackfillRecurring: BackfillRecurringRequest -> BackfillRecurringResponse
GetRecurring: GetRecurringRequest -> RecurringDetail
ListPools: Empty -> ListPoolsResponse
ListRecurring: Empty -> ListRecurringResponse
ListResources: Empty -> ListResourcesResponse
ListWorkers: Empty -> ListWorkersResponse
PausePool: PausePoolRequest -> Empty
PauseRecurring: PauseRecurringRequest -> Empty
PreviewRecurring: PreviewRecurringRequest -> PreviewRecurringResponse
RemoveRecurring: RemoveRecurringRequest -> RemoveRecurringResponse
ResumePool: ResumePoolRequest -> Empty
SetResource: SetResourceRequest -> Resource
Snapshot: Empty -> SnapshotResponse
TriggerRecurring: TriggerRecurringRequest -> TriggerRecurringResponse
""",
    "Tasks": """
Bulk: BulkRequest -> BulkResponse
Cancel: CancelRequest -> CancelResponse
Delete: DeleteRequest -> DeleteResponse
Describe: GetRequest -> TaskDetail
Get: GetRequest -> TaskInfo
ListTasks: ListTasksRequest -> ListTasksResponse
Retry: RetryRequest -> RetryResponse
Submit: SubmitRequest -> SubmitResponse
SubmitBatch: SubmitBatchRequest -> SubmitBatchResponse
SubmitMany: SubmitManyRequest -> SubmitManyResponse
Wait: WaitRequest -> TaskResult
WaitMany: WaitManyRequest -> stream TaskResults
Watch: WatchRequest -> stream StatusEvent
WatchBatches: WatchRequest -> stream StatusEvents
""",
    "Testing": """
Advance: AdvanceRequest -> Empty
Settle: Empty -> Empty
""",
    "Workers": """
GetOutput: GetOutputRequest -> Output
Work: stream WorkerMessage -> stream ServerMessage
""",
}

Field = tuple[int, str, str]


def contract_files() -> list[descriptor_pb2.FileDescriptorProto]:
    """The contract as the generated code carries it."""
    files = []
    for module in MODULES:
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        files.append(file)
    return files


def tabled_messages(table: str) -> dict[str, dict[str, Field]]:
    """Read a table of messages: name to field name to number, type and mark."""
    messages = {}
    for line in re.sub(r",\n\s+", ", ", table.strip()).splitlines():
        name, _, fields = line.partition(":")
        parsed = {}
        for field in re.split(r", (?=\d)", fields.strip()) if fields.strip() else []:
            number, word, kind, *mark = field.split(" ")
            assert word not in parsed, f"{name}.{word} stands in the table twice"
            parsed[word] = (int(number), kind, "".join(mark))
        assert name not in messages, f"{name} stands in the table twice"
        messages[name] = parsed
    return messages


def short(type_name: str) -> str:
    """A type as the tables name it: those of the contract without their package."""
    return type_name.removeprefix(".cronoq.v1.").removeprefix(".")


def type_word(field: descriptor_pb2.FieldDescriptorProto) -> str:
    """The type of a field as the tables write it."""
    word = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
    return short(field.type_name) if field.type_name else word.removeprefix("TYPE_").lower()


def described_field(
    field: descriptor_pb2.FieldDescriptorProto, maps: dict[str, str]
) -> tuple[str, Field]:
    """One field of a descriptor, as the tables put it."""
    kind = type_word(field)
    if kind in maps:
        return field.name, (field.number, maps[kind], "")
    if field.label == field.LABEL_REPEATED:
        mark = "*"
    elif field.proto3_optional:
        mark = "?"
    else:
        mark = "|" if field.HasField("oneof_index") else ""
    return field.name, (field.number, kind, mark)


def described_messages(
    file: descriptor_pb2.FileDescriptorProto,
) -> Iterator[tuple[str, dict[str, Field]]]:
    """The messages of a file, as the tables put them; maps instead of their entry messages."""
    for message in file.message_type:
        maps = {}
        for nested in message.nested_type:
            assert nested.options.map_entry, f"{message.name}.{nested.name} is nested"
            key, value = (type_word(field) for field in nested.field)
            maps[f"{message.name}.{nested.name}"] = f"map<{key},{value}>"
        yield message.name, dict(described_field(field, maps) for field in message.field)


@pytest.mark.parametrize("file", contract_files(), ids=lambda file: file.name)
def test_messages_are_those_of_the_table(file: descriptor_pb2.FileDescriptorProto) -> None:
    """Every message and field has its number, type and presence, and there are no others."""
    assert file.package == "cronoq.v1"
    assert file.name.startswith("cronoq/v1/")
    expected = tabled_messages(MESSAGES[file.name.removeprefix("cronoq/v1/")])
    assert expected == dict(described_messages(file))


def test_a_message_has_at_most_one_oneof_of_its_own() -> None:
    """The mark of a oneof's member needs no name, because no message has two of them."""
    for file in contract_files():
        for message in file.message_type:
            optional = sum(field.proto3_optional for field in message.field)
            assert len(message.oneof_decl) - optional <= 1, message.name


def test_numbers_that_were_given_up_stay_reserved() -> None:
    """A number of a field that is gone is never given to another one."""
    found = {
        message.name: {n for span in message.reserved_range for n in range(span.start, span.end)}
        for file in contract_files()
        for message in file.message_type
        if message.reserved_range
    }
    assert found == RESERVED


def test_enums_are_those_of_the_table() -> None:
    """Every enum has its values, in order and prefixed by its name, and there are no others."""
    found = {
        enum.name: {value.name: value.number for value in enum.value}
        for file in contract_files()
        for enum in file.enum_type
    }
    expected = {}
    for name, words in ENUMS.items():
        prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
        values = ["UNSPECIFIED", *words.split()]
        expected[name] = {f"{prefix}_{word}": number for number, word in enumerate(values)}
    assert expected == found


def test_services_are_those_of_the_table() -> None:
    """Every service has its methods with their messages and streams, and there are no others."""
    found = {
        service.name: {
            f"{method.name}: "
            f"{'stream ' * method.client_streaming}{short(method.input_type)} -> "
            f"{'stream ' * method.server_streaming}{short(method.output_type)}"
            for method in service.method
        }
        for file in contract_files()
        for service in file.service
    }
    assert {name: set(table.strip().splitlines()) for name, table in SERVICES.items()} == found


def test_every_file_of_the_contract_is_looked_at() -> None:
    """No file of the contract escapes the tables."""
    written = {f"cronoq/v1/{path.name}" for path in CONTRACT.glob("*.proto")}
    assert written == {file.name for file in contract_files()}
    assert written == {f"cronoq/v1/{name}" for name in MESSAGES}
