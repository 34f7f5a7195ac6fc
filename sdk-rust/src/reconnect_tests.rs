//! Plays `conformance/vectors/reconnect.json`, and holds the constants to `defaults.toml`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::*;
use crate::endpoint::parse_configured;
use crate::errors::code_name;
use crate::options::{ClientOptions, KEEPALIVE_INTERVAL_MIN, MESSAGE_ROOM, WorkerOptions};

/// Expected times may differ by this much.
const TOLERANCE_MS: f64 = 0.001;

#[derive(Deserialize)]
struct Vectors {
    defaults: Defaults,
    vectors: Vec<Vector>,
}

#[derive(Deserialize)]
struct Defaults {
    tls: bool,
    has_token: bool,
    insecure_redirect_http: bool,
    backoff_initial_ms: u64,
    backoff_max_ms: u64,
    session_reset_ms: u64,
}

#[derive(Deserialize)]
struct Vector {
    name: String,
    rules: Vec<String>,
    config: Config,
    chance: Vec<f64>,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Config {
    endpoint: String,
    tls: Option<bool>,
    has_token: Option<bool>,
    insecure_redirect_http: Option<bool>,
}

#[derive(Deserialize)]
struct Step {
    at_ms: f64,
    event: GivenEvent,
    expect: Expected,
}

#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum GivenEvent {
    Started,
    Registered,
    Redirected { endpoint: String },
    Ended { code: String, not_leader: bool },
    Elapsed,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Expected {
    Connect { endpoint: String, may_send_token: bool, refused: bool },
    Wait { until_ms: f64, refused: bool },
    GiveUp { code: String },
    Stay,
}

fn conformance(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance").join(path)
}

fn moment(milliseconds: f64) -> Moment {
    Duration::from_secs_f64(milliseconds / 1000.0)
}

fn code_of(name: &str) -> Code {
    (0..17).map(Code::from).find(|code| code_name(*code) == name).expect("a status code")
}

fn event_of(given: &GivenEvent) -> Event {
    match given {
        GivenEvent::Started => Event::Started,
        GivenEvent::Registered => Event::Registered,
        GivenEvent::Elapsed => Event::Elapsed,
        GivenEvent::Redirected { endpoint } => Event::Redirected { endpoint: endpoint.clone() },
        GivenEvent::Ended { code, not_leader } => {
            Event::Ended { code: code_of(code), not_leader: *not_leader, message: String::new() }
        }
    }
}

fn matches(expected: &Expected, decision: &Decision) -> bool {
    match (expected, decision) {
        (
            Expected::Connect { endpoint, may_send_token, refused },
            Decision::Connect { endpoint: to, may_send_token: may, refused: why },
        ) => *endpoint == to.to_string() && may_send_token == may && *refused != why.is_empty(),
        (Expected::Wait { until_ms, refused }, Decision::Wait { until, refused: why }) => {
            let difference = until.as_secs_f64() * 1000.0 - until_ms;
            difference.abs() <= TOLERANCE_MS && *refused != why.is_empty()
        }
        (Expected::GiveUp { code }, Decision::GiveUp { code: given, .. }) => {
            code == code_name(*given)
        }
        (Expected::Stay, Decision::Stay) => true,
        _ => false,
    }
}

fn play(vector: &Vector, defaults: &Defaults) {
    let config = &vector.config;
    let has_tls = config.tls.unwrap_or(defaults.tls);
    let settings = ReconnectSettings {
        endpoint: parse_configured(&config.endpoint, has_tls).unwrap(),
        has_token: config.has_token.unwrap_or(defaults.has_token),
        insecure_redirect_http: config
            .insecure_redirect_http
            .unwrap_or(defaults.insecure_redirect_http),
        backoff_initial: Duration::from_millis(defaults.backoff_initial_ms),
        backoff_max: Duration::from_millis(defaults.backoff_max_ms),
        session_reset: Duration::from_millis(defaults.session_reset_ms),
    };
    let mut fractions = vector.chance.clone().into_iter();
    let chance = Box::new(move || fractions.next().expect("chance was asked once too often"));
    let mut policy = ReconnectPolicy::new(settings, chance);
    for (number, step) in vector.steps.iter().enumerate() {
        let decision = policy.decide(event_of(&step.event), moment(step.at_ms));
        assert!(
            matches(&step.expect, &decision),
            "{} ({:?}), step {number}: expected {:?}, got {decision:?}",
            vector.name,
            vector.rules,
            step.expect,
        );
    }
}

/// The policy decides in every vector as all languages do (RR-01 … RR-19).
#[test]
fn plays_every_vector() {
    let text = std::fs::read_to_string(conformance("vectors/reconnect.json")).unwrap();
    let vectors: Vectors = serde_json::from_str(&text).unwrap();
    assert!(vectors.vectors.len() > 50);
    vectors.vectors.iter().for_each(|vector| play(vector, &vectors.defaults));
}

/// Delays are drawn from all of a bound that grows up to its maximum (RR-03).
#[test]
fn backoff_is_bounded_for_any_number_of_failures() {
    let bound = |failures| {
        jittered(Duration::from_millis(100), Duration::from_secs(5), failures, 1.0).as_secs_f64()
    };
    assert!((bound(0) - 0.1).abs() < 1e-9);
    assert!((bound(3) - 0.8).abs() < 1e-9);
    assert!((bound(u32::MAX) - 5.0).abs() < 1e-9);
}

/// The constants are those of `conformance/defaults.toml`, which all SDKs share.
#[test]
fn constants_are_the_shared_ones() {
    let text = std::fs::read_to_string(conformance("defaults.toml")).unwrap();
    let shared: toml::Table = toml::from_str(&text).unwrap();
    let worker = WorkerOptions::default();
    let client = ClientOptions::default();
    let seconds = |value: Duration| toml::Value::Float(value.as_secs_f64());
    let count = |value: usize| toml::Value::Integer(i64::try_from(value).unwrap());
    let mut fatal: Vec<&str> = FATAL_CODES.iter().map(|code| code_name(*code)).collect();
    fatal.sort_unstable();
    let own = toml::Table::from_iter([
        (
            "worker".to_owned(),
            toml::Value::Table(toml::Table::from_iter([
                ("backoff_initial".to_owned(), seconds(worker.backoff.initial)),
                ("backoff_max".to_owned(), seconds(worker.backoff.maximum)),
                ("connect_timeout".to_owned(), seconds(worker.connect_timeout)),
                ("drain_timeout".to_owned(), seconds(worker.drain_timeout)),
                ("insecure_redirect_http".to_owned(), worker.insecure_redirect_http.into()),
                ("keepalive_interval".to_owned(), seconds(worker.keepalive.interval)),
                ("keepalive_interval_min".to_owned(), seconds(KEEPALIVE_INTERVAL_MIN)),
                ("keepalive_timeout".to_owned(), seconds(worker.keepalive.timeout)),
                ("session_reset".to_owned(), seconds(worker.session_reset)),
                ("slots".to_owned(), count(worker.slots as usize)),
            ])),
        ),
        (
            "reconnect".to_owned(),
            toml::Value::Table(toml::Table::from_iter([
                ("fatal_codes".to_owned(), fatal.into()),
                ("redirects_max".to_owned(), count(REDIRECTS_MAX as usize)),
                ("tries_max".to_owned(), count(TRIES_MAX)),
                ("tries_window_backoffs".to_owned(), count(TRIES_WINDOW_BACKOFFS as usize)),
            ])),
        ),
        (
            "session".to_owned(),
            toml::Value::Table(toml::Table::from_iter([
                ("beats_per_ttl".to_owned(), count(crate::session::BEATS_PER_TTL as usize)),
                ("lease_ttl_default".to_owned(), seconds(crate::session::LEASE_TTL_DEFAULT)),
                ("message_room_bytes".to_owned(), count(MESSAGE_ROOM)),
                ("progress_bytes_max".to_owned(), count(crate::attempt::PROGRESS_BYTES_MAX)),
                ("progress_interval".to_owned(), seconds(crate::session::PROGRESS_INTERVAL)),
                ("protocol_version".to_owned(), count(crate::session::PROTOCOL_VERSION as usize)),
                ("receipts_since".to_owned(), count(crate::session::RECEIPTS_SINCE as usize)),
                (
                    "reports_per_message_max".to_owned(),
                    count(crate::session::REPORTS_PER_MESSAGE_MAX),
                ),
            ])),
        ),
        (
            "client".to_owned(),
            toml::Value::Table(toml::Table::from_iter([
                ("backoff_initial".to_owned(), seconds(client.backoff.initial)),
                ("backoff_max".to_owned(), seconds(client.backoff.maximum)),
                ("connect_timeout".to_owned(), seconds(client.connect_timeout)),
                ("deadline".to_owned(), seconds(client.deadline)),
                ("keepalive_interval".to_owned(), seconds(client.keepalive.interval)),
                ("keepalive_timeout".to_owned(), seconds(client.keepalive.timeout)),
                ("max_message_bytes".to_owned(), count(client.max_message_bytes)),
                ("max_tasks_per_batch".to_owned(), count(client.max_tasks_per_batch)),
                ("max_wait".to_owned(), seconds(client.max_wait)),
                ("submits_in_flight".to_owned(), count(crate::coalesce::SUBMITS_IN_FLIGHT)),
            ])),
        ),
    ]);
    assert_eq!(own, shared);
}
