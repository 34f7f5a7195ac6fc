//! Specs on the wire, there and back.

use super::*;
use crate::payload::JsonCodec;

fn pairs(name: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(name.to_owned(), value.to_owned())])
}

fn full_spec() -> TaskSpec {
    TaskSpec {
        kind: "bake".to_owned(),
        payload: Payload::new("bread"),
        content_type: "application/json;v=2".to_owned(),
        pool: "ovens".to_owned(),
        priority: Some(Priority::High),
        key: "k".to_owned(),
        deadline_in: Some(Duration::from_secs(9)),
        deadline_at: Some(UNIX_EPOCH + Duration::from_nanos(7)),
        start_in: Some(Duration::ZERO),
        start_at: Some(UNIX_EPOCH - Duration::from_nanos(7)),
        tolerance: Some(Duration::from_millis(1)),
        on_miss: Some(MissPolicy::Fail),
        duration_hint: Some(Duration::from_secs(2)),
        timeout: Some(Duration::from_secs(3)),
        retry: Some(RetryPolicy { max_attempts: 4, multiplier: 1.5, ..RetryPolicy::default() }),
        deps: vec![
            7.into(),
            "parent".into(),
            Dep { target: TaskRef::Id(8), cond: EdgeCond::OnFailure },
        ],
        resources: BTreeMap::from([("gas".to_owned(), 2)]),
        tags: pairs("tag", ""),
        labels: pairs("label", "x"),
        tenant: "t".to_owned(),
        trace_context: pairs("traceparent", "00-…"),
        delay: Some(Duration::from_secs(1)),
        not_before: Some(UNIX_EPOCH),
        expires_in: Some(Duration::from_secs(5)),
    }
}

/// Everything that a spec can say arrives and comes back (R23).
// Covers R23.
#[test]
fn specs_come_back_whole() {
    let spec = full_spec();
    let read = read_spec(write_spec(&spec, &JsonCodec).unwrap());
    assert_eq!(read.payload.as_bytes(), Some(&b"\"bread\""[..]));
    let named =
        |spec: &TaskSpec| format!("{:?}", TaskSpec { payload: Payload::nothing(), ..spec.clone() });
    assert_eq!(named(&read), named(&spec));
}

/// What is not said is absent on the wire, which means the server's default.
#[test]
fn what_is_not_said_is_absent() {
    let message = write_spec(&TaskSpec::of("k"), &JsonCodec).unwrap();
    let bare = proto::TaskSpec { kind: "k".to_owned(), ..proto::TaskSpec::default() };
    assert_eq!(message, bare);
}

/// Instants keep their nanoseconds, before 1970 too; what no wire can hold is refused.
#[test]
fn instants_are_exact() {
    for nanoseconds in [0, 1, -1, i64::MAX, -i64::MAX] {
        assert_eq!(unix_ns(instant_of(nanoseconds)).unwrap(), nanoseconds);
    }
    let beyond = UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX) * 1000);
    assert_eq!(unix_ns(beyond).unwrap_err().reason(), Some(ErrorReason::InvalidField));
}

/// Durations that no duration can hold count as none instead of ending the program.
#[test]
fn durations_from_the_wire_cannot_break_anything() {
    assert_eq!(duration_of(1.5), Duration::from_millis(1500));
    for seconds in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
        assert_eq!(duration_of(seconds), Duration::ZERO);
    }
}

/// A status of tomorrow is an error that names it, not a wrong status.
#[test]
fn unknown_statuses_are_errors() {
    assert_eq!(read_status(6).unwrap(), TaskStatus::Succeeded);
    assert!(read_status(99).unwrap_err().message().contains("99"));
}
