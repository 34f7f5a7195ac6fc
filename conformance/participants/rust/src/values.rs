//! Decides how JSON values of the participant protocol become values of the Rust SDK, and back.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cronoq::{
    CatchUp, ClientOptions, Dep, EdgeCond, Error, ErrorKind, Fold, Gap, MissPolicy, Overlap,
    Payload, Priority, Progress, RetryPolicy, ScheduleInfo, ScheduleSpec, StatusEvent, TaskDetail,
    TaskFilter, TaskInfo, TaskRef, TaskResult, TaskSpec, TaskStatus, WorkerOptions,
};
use serde_json::{Map, Value, json};

const BYTES_SHOWN_MAX: usize = 64 * 1024;

// --- what commands say -----------------------------------------------------------------------------

pub fn text_in(fields: &Value, name: &str) -> String {
    fields[name].as_str().unwrap_or_default().to_owned()
}

pub fn flag_in(fields: &Value, name: &str) -> bool {
    fields[name] == true
}

pub fn number_in(fields: &Value, name: &str) -> u32 {
    fields[name].as_u64().and_then(|number| number.try_into().ok()).unwrap_or_default()
}

pub fn seconds_in(fields: &Value, name: &str) -> Option<Duration> {
    fields[name].as_f64().map(Duration::from_secs_f64)
}

pub fn list_in<'a>(fields: &'a Value, name: &str) -> &'a [Value] {
    fields[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

pub fn id_of(text: &Value) -> u64 {
    text.as_str().and_then(|digits| digits.parse().ok()).expect("an id is decimal digits")
}

fn texts_in(fields: &Value, name: &str) -> Vec<String> {
    list_in(fields, name).iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn pairs_in(fields: &Value, name: &str) -> BTreeMap<String, String> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    fields[name].as_object().into_iter().flatten().filter_map(text).collect()
}

fn instant_in(fields: &Value, name: &str) -> Option<SystemTime> {
    let nanoseconds = fields[name].as_str()?.parse().expect("an instant is decimal digits");
    Some(UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}

pub fn bytes_in(fields: &Value, name: &str) -> Option<Vec<u8>> {
    if let Some(text) = fields[format!("{name}_b64")].as_str() {
        return Some(STANDARD.decode(text).expect("bytes are base64"));
    }
    let count = fields[format!("{name}_bytes")].as_u64()?;
    Some(vec![0; usize::try_from(count).expect("so many bytes")])
}

pub fn payload_in(fields: &Value, name: &str) -> Option<Payload> {
    let value = || fields.get(name).map(|value| Payload::new(value.clone()));
    bytes_in(fields, name).map(Payload::bytes).or_else(value)
}

pub fn target_in(fields: &Value) -> TaskRef {
    match fields["key"].as_str() {
        Some(key) => key.into(),
        None => id_of(&fields["id"]).into(),
    }
}

fn dep_of(fields: &Value) -> Dep {
    let target = target_in(fields);
    match EdgeCond::from_word(&text_in(fields, "cond")) {
        Some(cond) => Dep { target, cond },
        None => target.into(),
    }
}

/// A field that a `Duration` cannot hold: the language refuses it before the SDK could.
pub fn impossible_duration(task: &Value) -> Option<&'static str> {
    let durations =
        ["deadline_in", "start_in", "tolerance", "duration_hint", "timeout", "delay", "expires_in"];
    durations.into_iter().find(|name| task[name].as_f64().is_some_and(f64::is_sign_negative))
}

pub fn to_spec(fields: &Value) -> TaskSpec {
    let retry = fields.get("retry").map(|retry| RetryPolicy {
        max_attempts: number_in(retry, "max_attempts"),
        initial_backoff: seconds_in(retry, "initial_backoff").unwrap_or_default(),
        multiplier: retry["multiplier"].as_f64().unwrap_or_default(),
        max_backoff: seconds_in(retry, "max_backoff").unwrap_or_default(),
        jitter: retry["jitter"].as_bool().unwrap_or(RetryPolicy::default().jitter),
    });
    let amounts = fields["resources"].as_object().into_iter().flatten();
    let amounts = amounts.map(|(name, _)| (name.clone(), number_in(&fields["resources"], name)));
    TaskSpec {
        kind: text_in(fields, "kind"),
        payload: payload_in(fields, "payload").unwrap_or_default(),
        content_type: text_in(fields, "content_type"),
        pool: text_in(fields, "pool"),
        priority: Priority::from_word(&text_in(fields, "priority")),
        key: text_in(fields, "key"),
        deadline_in: seconds_in(fields, "deadline_in"),
        deadline_at: instant_in(fields, "deadline_at"),
        start_in: seconds_in(fields, "start_in"),
        start_at: instant_in(fields, "start_at"),
        tolerance: seconds_in(fields, "tolerance"),
        on_miss: MissPolicy::from_word(&text_in(fields, "on_miss")),
        duration_hint: seconds_in(fields, "duration_hint"),
        timeout: seconds_in(fields, "timeout"),
        retry,
        deps: list_in(fields, "deps").iter().map(dep_of).collect(),
        resources: amounts.collect(),
        tags: pairs_in(fields, "tags"),
        labels: pairs_in(fields, "labels"),
        tenant: text_in(fields, "tenant"),
        trace_context: pairs_in(fields, "trace_context"),
        delay: seconds_in(fields, "delay"),
        not_before: instant_in(fields, "not_before"),
        expires_in: seconds_in(fields, "expires_in"),
    }
}

pub fn to_filter(fields: &Value) -> TaskFilter {
    let statuses = texts_in(fields, "statuses");
    TaskFilter {
        pools: texts_in(fields, "pools"),
        statuses: statuses.iter().filter_map(|word| TaskStatus::from_word(word)).collect(),
        kinds: texts_in(fields, "kinds"),
        keys: texts_in(fields, "keys"),
        tags: pairs_in(fields, "tags"),
        tenants: texts_in(fields, "tenants"),
        schedule: text_in(fields, "schedule"),
    }
}

pub fn to_schedule(fields: &Value) -> ScheduleSpec {
    ScheduleSpec {
        name: text_in(fields, "name"),
        cron: text_in(fields, "cron"),
        template: to_spec(&fields["template"]),
        tz: fields["tz"].as_str().unwrap_or("UTC").to_owned(),
        overlap: Overlap::from_word(&text_in(fields, "overlap")),
        gap: Gap::from_word(&text_in(fields, "gap")),
        fold: Fold::from_word(&text_in(fields, "fold")),
        catch_up: CatchUp::from_word(&text_in(fields, "catch_up")),
        paused: flag_in(fields, "paused"),
    }
}

/// Sets the options that workers and clients share, where they are given.
macro_rules! set_options {
    ($options:ident, $fields:expr) => {{
        let given: &serde_json::Value = $fields;
        let seconds = |name| $crate::values::seconds_in(given, name);
        let text = |name: &str| given[name].as_str().map(str::to_owned);
        if let Some(endpoint) = text("endpoint") {
            $options.endpoint = endpoint;
        }
        $options.token = text("token");
        let files = ["tls_ca", "tls_cert", "tls_key"].map(|name| text(name).map(Into::into));
        if files.iter().any(Option::is_some) {
            let [ca, cert, key] = files;
            $options.tls = Some(cronoq::TlsOptions { ca, cert, key });
        }
        for (name, place) in [
            ("backoff_initial", &mut $options.backoff.initial),
            ("backoff_max", &mut $options.backoff.maximum),
            ("connect_timeout", &mut $options.connect_timeout),
            ("keepalive_interval", &mut $options.keepalive.interval),
            ("keepalive_timeout", &mut $options.keepalive.timeout),
        ] {
            *place = seconds(name).unwrap_or(*place);
        }
        if let Some(bytes) = given["max_message_bytes"].as_u64() {
            $options.max_message_bytes = usize::try_from(bytes).expect("so many bytes");
        }
    }};
}
pub(crate) use set_options;

pub fn set_worker_options(options: &mut WorkerOptions, fields: &Value) {
    options.pool = text_in(fields, "pool");
    options.name = text_in(fields, "name");
    options.labels = pairs_in(fields, "labels");
    options.insecure_redirect_http = flag_in(fields, "insecure_redirect_http");
    if fields["slots"].is_u64() {
        options.slots = number_in(fields, "slots");
    }
    options.drain_timeout = seconds_in(fields, "drain_timeout").unwrap_or(options.drain_timeout);
    options.session_reset = seconds_in(fields, "session_reset").unwrap_or(options.session_reset);
}

pub fn set_client_options(options: &mut ClientOptions, fields: &Value) {
    options.deadline = seconds_in(fields, "deadline").unwrap_or(options.deadline);
    options.max_wait = seconds_in(fields, "max_wait").unwrap_or(options.max_wait);
    if fields["max_tasks_per_batch"].is_u64() {
        options.max_tasks_per_batch = number_in(fields, "max_tasks_per_batch") as usize;
    }
}

// --- what facts tell -------------------------------------------------------------------------------

/// Adds bytes with their size, and without themselves when they are many.
pub fn sized(fields: &mut Value, name: &str, bytes: &[u8]) {
    fields[format!("{name}_size")] = bytes.len().into();
    if bytes.len() <= BYTES_SHOWN_MAX {
        fields[format!("{name}_b64")] = STANDARD.encode(bytes).into();
    }
}

pub fn told_instant(instant: SystemTime) -> String {
    let since = instant.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

fn told_seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

pub fn told_progress(progress: &Progress) -> Value {
    json!({"data_b64": STANDARD.encode(&progress.data), "fraction": progress.fraction})
}

fn told_target(target: &TaskRef) -> Value {
    match target {
        TaskRef::Id(id) => json!({"id": id.to_string()}),
        TaskRef::Key(key) => json!({"key": key}),
    }
}

/// The words of an enum's name, as the protocol has them.
fn snake(name: &str) -> String {
    let mut words = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !words.is_empty() {
            words.push('_');
        }
        words.extend(letter.to_lowercase());
    }
    words
}

pub fn told_error(error: &Error) -> Value {
    let family = match error.kind() {
        ErrorKind::InvalidOption => "option".to_owned(),
        kind => snake(&format!("{kind:?}")),
    };
    let kind = error.reason().map_or(family.clone(), |reason| reason.word().to_owned());
    let (message, details) = (error.message(), error.details());
    let mut fields =
        json!({"type": kind, "family": family, "message": message, "details": details});
    if let Some(failure) = error.task_failure() {
        fields["status"] = failure.status.word().into();
        fields["message"] = failure.message.clone().into();
    }
    fields
}

pub fn told_info(task: &TaskInfo) -> Value {
    json!({
        "task_id": task.id.to_string(), "status": task.status.word(), "pool": task.pool,
        "kind": task.kind, "key": task.key, "attempt": task.attempt,
        "max_attempts": task.max_attempts, "message": task.message,
        "output_available": task.output_available, "tenant": task.tenant,
        "priority": task.priority.word(), "tags": task.tags, "labels": task.labels,
        "waiting_for": task.waiting_for, "schedule": task.schedule,
        "created_at": task.created_at.map(told_instant),
        "started_at": task.started_at.map(told_instant),
        "finished_at": task.finished_at.map(told_instant),
        "next_run_at": task.next_run_at.map(told_instant),
        "progress": task.progress.as_ref().map(told_progress),
    })
}

pub fn told_result(result: &TaskResult) -> Value {
    let mut fields = json!({
        "task_id": result.id.to_string(), "status": result.status.word(),
        "content_type": result.content_type, "message": result.message,
        "output_available": result.output_available,
    });
    if let Some(output) = &result.output {
        sized(&mut fields, "output", output);
    }
    fields
}

pub fn told_event(event: &StatusEvent) -> Value {
    json!({
        "task_id": event.id.to_string(), "pool": event.pool, "key": event.key,
        "status": event.status.word(), "attempt": event.attempt, "at": told_instant(event.at),
        "message": event.message, "cursor_b64": STANDARD.encode(&event.cursor),
        "progress": event.progress.as_ref().map(told_progress),
    })
}

pub fn told_detail(detail: &TaskDetail) -> Value {
    let attempts = detail.attempts.iter().map(|attempt| {
        json!({
            "number": attempt.number, "worker": attempt.worker, "outcome": attempt.outcome,
            "started_at": told_instant(attempt.started_at), "message": attempt.message,
            "ended_at": attempt.ended_at.map(told_instant),
        })
    });
    let parents = detail.parents.iter().map(|parent| {
        let mut fields = told_target(&parent.target);
        fields["cond"] = parent.cond.word().into();
        fields["status"] = parent.status.map(TaskStatus::word).into();
        fields
    });
    json!({
        "task": told_info(&detail.task), "spec": told_spec(&detail.spec),
        "attempts": attempts.collect::<Vec<_>>(), "parents": parents.collect::<Vec<_>>(),
        "children": detail.children.iter().map(u64::to_string).collect::<Vec<_>>(),
    })
}

fn told_spec(spec: &TaskSpec) -> Value {
    let deps = spec.deps.iter().map(|dep| {
        let mut fields = told_target(&dep.target);
        fields["cond"] = dep.cond.word().into();
        fields
    });
    let retry = spec.retry.map(|retry| {
        json!({
            "max_attempts": retry.max_attempts, "multiplier": retry.multiplier,
            "initial_backoff": retry.initial_backoff.as_secs_f64(),
            "max_backoff": retry.max_backoff.as_secs_f64(), "jitter": retry.jitter,
        })
    });
    let mut fields = json!({
        "kind": spec.kind, "content_type": spec.content_type, "pool": spec.pool,
        "priority": spec.priority.map(Priority::word), "key": spec.key,
        "deadline_in": told_seconds(spec.deadline_in),
        "deadline_at": spec.deadline_at.map(told_instant),
        "start_in": told_seconds(spec.start_in), "start_at": spec.start_at.map(told_instant),
        "tolerance": told_seconds(spec.tolerance), "on_miss": spec.on_miss.map(MissPolicy::word),
        "duration_hint": told_seconds(spec.duration_hint), "timeout": told_seconds(spec.timeout),
        "retry": retry, "deps": deps.collect::<Vec<_>>(), "resources": spec.resources,
        "tags": spec.tags, "labels": spec.labels, "tenant": spec.tenant,
        "trace_context": spec.trace_context, "delay": told_seconds(spec.delay),
        "not_before": spec.not_before.map(told_instant),
        "expires_in": told_seconds(spec.expires_in),
    });
    sized(&mut fields, "payload", spec.payload.as_bytes().unwrap_or_default());
    // What the server does not say is left out.
    let is_said = |value: &Value| !value.is_null() && *value != "" && *value != json!([]);
    let said = fields.as_object().cloned().unwrap_or_default();
    said.into_iter().filter(|(_, value)| is_said(value)).collect::<Map<_, _>>().into()
}

pub fn told_schedule(schedule: &ScheduleInfo) -> Value {
    json!({
        "name": schedule.name, "cron": schedule.cron, "tz": schedule.tz, "pool": schedule.pool,
        "kind": schedule.kind, "overlap": schedule.overlap.word(), "gap": schedule.gap.word(),
        "fold": schedule.fold.word(), "catch_up": schedule.catch_up.word(),
        "paused": schedule.paused, "next_at": schedule.next_at.map(told_instant),
        "last_task_id": schedule.last_task_id.map(|id| id.to_string()),
    })
}
