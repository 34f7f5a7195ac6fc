"""Decides which kinds of fault, known from systems like this one, are held down by which tests.

Each row says what goes wrong elsewhere, what is right here, and names tests as `path::function`.
A named test that does not exist fails the page `docs/spec/faults.md`.
"""

from __future__ import annotations

from typing import NamedTuple

ENGINE = "tests/engine/"
SDK = "sdk-python/tests/"
STORES = "tests/stores/"
SUITE = "server/src/cronoq_server/testing/store_suite/leadership.py"


class FaultKind(NamedTuple):
    """One kind of fault and the tests against it."""

    number: str
    fault: str
    right: str
    tests: tuple[str, ...]


FAULTS = "tests/e2e/test_faults.py::test_nothing_that_was_acknowledged_is_lost_or_done_twice"

FAULT_KINDS = (
    FaultKind(
        "R1",
        "a leader believes in a leadership that the database has ended",
        "it stops at its next check or commit, and nothing is written under its epoch any more",
        (
            f"{STORES}test_postgres_sessions.py::test_a_leader_without_its_lock_session_stops",
            f"{SUITE}::test_a_past_term_cannot_commit",
            f"{SUITE}::test_a_commit_and_a_takeover_never_both_succeed_unseen",
            FAULTS,
        ),
    ),
    FaultKind(
        "R2",
        "a lock that was taken without anybody hearing of it is never given back",
        "its connection is closed; the lock is taken once per connection",
        (
            f"{STORES}test_postgres_sessions.py::test_a_lock_whose_answer_is_lost_is_not_kept",
            f"{STORES}test_postgres_sessions.py"
            "::test_the_lock_is_taken_once_however_often_it_is_checked",
        ),
    ),
    FaultKind(
        "R3",
        "a database becomes read-only and its connections stay",
        "the store is unavailable, every attempt connects anew, and works again when it can",
        (
            f"{STORES}test_postgres_sessions.py::test_a_server_that_turned_read_only_is_unavailable",
            FAULTS,
        ),
    ),
    FaultKind(
        "R5",
        "two replicas recover the same rows",
        "recovery reads and writes under its own epoch, and stops when another one has begun",
        (
            f"{SUITE}::test_a_past_term_cannot_recover",
            "tests/e2e/test_schedules_failover.py"
            "::test_no_schedule_is_late_or_doubled_by_two_leaders_at_once",
        ),
    ),
    FaultKind(
        "R4",
        "a restarted worker with the same name is taken for the one that died",
        "an attempt belongs to a session; a name identifies nothing",
        (
            f"{ENGINE}test_attempts.py::test_worker_of_the_same_name_is_somebody_else",
            "tests/api/test_worker_stream.py::test_same_name_is_another_session",
        ),
    ),
    FaultKind(
        "R6",
        "a takeover in the same instant as a dispatch loses or doubles it",
        "each attempt number is dispatched once",
        ("tests/runtime/test_with_engine.py::test_each_attempt_number_is_dispatched_once",),
    ),
    FaultKind(
        "R7",
        "the lease stream ends, the rest of the connection lives: a worker that gets nothing",
        "the stream is opened again; without one a session has no capacity",
        (
            f"{SDK}test_worker.py::test_a_lease_stream_that_ends_is_opened_again",
            "tests/api/test_worker_stream.py::test_half_close_is_a_clean_end",
        ),
    ),
    FaultKind(
        "R8",
        "a link that drops everything without closing is never noticed",
        "keepalive notices within its interval and timeout",
        (f"{SDK}test_transport.py::test_a_half_open_connection_is_noticed_by_keepalive",),
    ),
    FaultKind(
        "R9",
        "a process ends before its last report is out",
        "it waits for the receipt within its drain time, else says what is unconfirmed",
        (
            f"{SDK}test_worker.py::test_a_report_cut_off_during_a_stop_is_delivered_on_a_new_stream",
            f"{SDK}test_worker.py::test_what_has_no_receipt_at_the_end_is_named_in_the_log",
            f"{SDK}test_processes.py::test_a_signal_lets_running_attempts_report",
        ),
    ),
    FaultKind(
        "R10",
        "heartbeats are the first thing to stop at shutdown",
        "they go on until the last report has its receipt",
        (f"{SDK}test_worker.py::test_heartbeats_go_on_until_the_last_receipt",),
    ),
    FaultKind(
        "R11",
        "a handler that computes starves the heartbeats",
        "they go on while handlers block",
        (f"{SDK}test_worker.py::test_heartbeats_go_on_while_a_handler_blocks",),
    ),
    FaultKind(
        "R12",
        "a process that forks with a live channel hangs",
        "the child makes a channel of its own",
        (
            f"{SDK}test_processes.py::test_a_forked_child_uses_the_client_it_inherited",
            f"{SDK}test_processes.py::test_handlers_may_fork_and_start_programs",
        ),
    ),
    FaultKind(
        "R13",
        "keepalive without margin: the server ends the connection for too many pings",
        "an interval that could do so is refused; who pings without margin loses that connection",
        (
            f"{SDK}test_reconnect.py::test_keepalive_below_ten_seconds_is_refused",
            "tests/api/test_connections.py::test_connection_that_only_pings_is_told_to_stop",
        ),
    ),
    FaultKind(
        "R14",
        "callers behind one address of several servers fail, or storm them, at every failover",
        "calls with keys and watches go on, each client makes a few connections a second at most",
        (
            FAULTS,
            f"{SDK}test_transport.py::test_a_connection_to_a_standby_is_left_for_another",
            f"{SDK}test_client.py::test_a_standby_is_asked_again_soon",
        ),
    ),
    FaultKind(
        "R15",
        "servers that redirect in circles catch a worker for ever",
        "three hops, then back to the configured endpoint with backoff",
        (f"{SDK}test_worker.py::test_a_redirect_loop_leads_back_to_the_configured_endpoint",),
    ),
    FaultKind(
        "R16",
        "all workers come back at the same moment",
        "full jitter spreads them, and they are back soon",
        (f"{SDK}test_reconnect.py::test_many_workers_come_back_soon_and_in_no_storm",),
    ),
    FaultKind(
        "R17",
        "one report that no store can hold fails a step that carries many",
        "it is cleaned; the others are not touched",
        (
            "tests/api/test_frames.py::test_poisonous_reports_are_cleaned_one_by_one",
            "tests/api/test_worker_stream.py::test_one_poisonous_report_spoils_no_other",
        ),
    ),
    FaultKind(
        "R18",
        "a payload that can't be decoded kills the worker, or is tried for ever",
        "that attempt fails for good with the reason, and the worker lives on",
        (f"{SDK}test_worker.py::test_a_poison_payload_fails_its_attempt_permanently",),
    ),
    FaultKind(
        "R19",
        "a result over the limit is computed again and again",
        "it fails for good before it is sent, or where it arrives",
        (
            f"{SDK}test_worker.py::test_an_output_too_large_fails_permanently",
            "tests/api/test_worker_stream.py::test_oversize_output_fails_without_retry",
        ),
    ),
    FaultKind(
        "R20",
        "permits leak on one of the ways in which an attempt can end",
        "what is held is what runs, at every step",
        (
            f"{ENGINE}test_resources.py::test_accounts_never_leak",
            "tests/sim/test_sim.py::test_no_promise_is_broken_in_any_world",
            "tests/sim/test_sim.py::test_oracle_sees_a_bug",
        ),
    ),
    FaultKind(
        "R21",
        "a rate limit breaks the order of what it holds back",
        "classes first, then first come first served",
        (f"{ENGINE}test_placement.py::test_limits_keep_the_order",),
    ),
    FaultKind(
        "R22",
        "a dependant waits for ever for a parent that ended in an unforeseen way",
        "every way a parent can end decides every kind of edge, whenever it ends",
        (
            f"{ENGINE}test_dependencies.py::test_child_goes_on_or_is_skipped",
            f"{ENGINE}test_dependencies.py::test_five_thousand_parents_hold_back_one_child",
            f"{ENGINE}test_dependencies.py::test_failover_in_the_middle_changes_nothing",
        ),
    ),
    FaultKind(
        "R24",
        "schedules fire twice, never, or an hour off when clocks change",
        "strictly rising instants by the rules of the schedule, in any zone",
        (
            f"{ENGINE}test_cron.py::test_due_instants_are_those_of_a_walk_through_real_time",
            f"{ENGINE}test_cron.py::test_going_on_inside_the_repeated_hour_repeats_nothing",
        ),
    ),
    FaultKind(
        "R25",
        "the search for the next time of an impossible expression never ends",
        "such expressions are refused; every search is bounded",
        (
            f"{ENGINE}test_cron_pattern.py::test_expression_without_any_date_is_refused",
            f"{ENGINE}test_cron_pattern.py::test_ten_thousand_random_expressions_end",
            f"{ENGINE}test_schedules.py::test_schedule_that_can_not_be_read_any_more_is_kept_and_never_due",
        ),
    ),
    FaultKind(
        "R26",
        "a machine without zone files silently runs schedules in UTC",
        "zone data ships with the server; an unknown zone is refused",
        (
            f"{ENGINE}test_zones.py::test_zones_do_not_depend_on_the_machine",
            f"{ENGINE}test_zones.py::test_unknown_zone_is_refused",
        ),
    ),
    FaultKind(
        "R27",
        "a connection pooler hands the session that holds the lock to somebody else",
        "such a route is refused, with the name of the setting that gives a direct one",
        (
            f"{STORES}test_postgres_sessions.py"
            "::test_a_pooler_is_refused_with_the_setting_that_helps",
            f"{STORES}test_postgres_sessions.py"
            "::test_a_direct_route_for_the_lock_is_used_for_commits_as_well",
        ),
    ),
    FaultKind(
        "R28",
        "what is written for somebody who does not read piles up",
        "lines are dropped and counted, watches end with a reason, connections are cut off",
        (
            "tests/test_telemetry.py::test_blocked_sink_costs_lines_and_nothing_else",
            "tests/runtime/test_watchers.py::test_one_that_catches_up_too_slowly_is_ended",
            "tests/api/test_http_connections.py::test_reader_that_does_not_read_is_cut_off",
        ),
    ),
    FaultKind(
        "R29",
        "a kind that nobody serves during a deploy is dropped",
        "it waits, visibly, and runs when somebody serves it",
        ("tests/api/test_worker_stream.py::test_unknown_kind_waits_until_somebody_serves_it",),
    ),
    FaultKind(
        "R30",
        "a task put back has lost its settings",
        "the same spec with a fresh budget, as often as it is put back",
        (
            f"{ENGINE}test_redrive.py::test_ended_task_runs_again_with_a_fresh_budget",
            f"{ENGINE}test_redrive.py::test_redrive_is_written_and_survives",
        ),
    ),
    FaultKind(
        "R31",
        "a cancelled thread runs on, unseen, beside the next task in its slot",
        "the slot is taken until the thread ends",
        (f"{SDK}test_worker.py::test_a_sync_handler_that_ignores_its_abort_keeps_its_slot",),
    ),
    FaultKind(
        "R32",
        "a backlog starves behind fresh work when its workers come back",
        "oldest first: the age of the oldest falls steadily",
        (f"{ENGINE}test_backlog.py::test_backlog_goes_before_fresh_work",),
    ),
    FaultKind(
        "R33",
        "the last progress before a failure is lost",
        "the next attempt sees it",
        (
            f"{ENGINE}test_attempts.py::test_last_progress_reaches_the_next_attempt",
            f"{SDK}test_worker.py::test_the_last_progress_reaches_the_server_before_the_failure",
        ),
    ),
    FaultKind(
        "R34",
        "connections that never say anything pile up",
        "they are closed",
        (
            "tests/api/test_listener.py::test_connections_that_say_nothing_are_closed",
            "tests/api/test_connections.py::test_connection_without_calls_is_closed",
            "tests/api/test_http_connections.py::test_silent_connection_is_closed",
            "tests/api/test_http_connections.py::test_two_thousand_silent_connections_bother_nobody",
            "tests/api/test_http_connections.py::test_connection_that_says_nothing_makes_room",
        ),
    ),
    FaultKind(
        "R35",
        "several limits on one task cost seconds",
        "they cost no further step",
        (f"{ENGINE}test_placement.py::test_three_limits_each_cost_no_extra_step",),
    ),
    FaultKind(
        "R36",
        "a background loop dies and the leader serves on, half dead",
        "there is one loop, and an error in it ends the leadership",
        (
            "tests/runtime/test_driver.py::test_a_broken_engine_takes_the_leadership_down",
            "tests/runtime/test_driver.py::test_a_broken_store_takes_the_leadership_down",
        ),
    ),
)
