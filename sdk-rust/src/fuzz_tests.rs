//! Properties of everything that the SDK parses, each held against a rule of its own, and the
//! vectors that all SDKs share. Some hundreds of cases, or as many as fit in `CRONOQ_FUZZ_S`
//! seconds, made from `CRONOQ_FUZZ_SEED`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use base64::Engine as _;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use prost::Message as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tonic_types::pb;

use crate::convert::{duration_of, instant_of, unix_ns};
use crate::endpoint::{parse_configured, parse_redirect};
use crate::errors::{ErrorKind, ErrorReason};
use crate::payload::{
    JsonCodec, MsgpackCodec, Transform, TransformingCodec, ZlibTransform, decode, encode,
};
use crate::transport::status_error;

const CASES: u32 = 300;

/// Holds a property, or panics with the smallest case that breaks it.
fn hold<S: Strategy>(
    name: &str,
    strategy: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let until = number("CRONOQ_FUZZ_S").map(|s| Instant::now() + Duration::from_secs(s));
    let begin = number("CRONOQ_FUZZ_SEED").unwrap_or(1);
    let mut cases = 0u64;
    for round in 0u64.. {
        // A runner counts the cases that it has had: one that goes on would try no more.
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&begin.to_le_bytes());
        seed[8..16].copy_from_slice(&round.to_le_bytes());
        let config = Config { cases: CASES, failure_persistence: None, ..Config::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let mut runner = TestRunner::new_with_rng(config, rng);
        runner.run(strategy, &property).unwrap_or_else(|fault| panic!("{name}: {fault}"));
        cases += u64::from(CASES);
        if until.is_none_or(|until| Instant::now() >= until) {
            break;
        }
    }
    if until.is_some() {
        println!("{name}: {cases} cases");
    }
}

#[derive(Deserialize)]
struct File<V> {
    vectors: Vec<V>,
}

fn vectors<V: DeserializeOwned>(name: &str) -> Vec<V> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../conformance/vectors/");
    let text = std::fs::read_to_string(format!("{folder}{name}")).unwrap();
    let file: File<V> = serde_json::from_str(&text).unwrap();
    assert!(file.vectors.len() >= 100);
    file.vectors
}

fn bytes_of(base64: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(base64).unwrap()
}

/// One of `kept` with some bytes changed, taken out or put in.
fn damaged(kept: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let damage = (any::<prop::sample::Index>(), 0usize..4, vec(any::<u8>(), 0..3));
    (select(kept), vec(damage, 0..4)).prop_map(|(mut content, damages)| {
        for (at, length, put) in damages {
            let at = at.index(content.len() + 1);
            let end = (at + length).min(content.len());
            content.splice(at..end, put);
        }
        content
    })
}

// --- endpoints -------------------------------------------------------------------------------------

/// What a text means by the rule (RR-13), and whether it is loopback (RR-15).
fn ruled(text: &str, ports: [u32; 2]) -> Option<(String, bool)> {
    let lower = text.to_ascii_lowercase();
    let (scheme, rest) = lower.split_once("://")?;
    let default = match scheme {
        "http" => ports[0],
        "https" => ports[1],
        _ => return None,
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port, is_loopback) = if let Some(inner) = rest.strip_prefix('[') {
        let (address, port) = inner.split_once(']')?;
        let is_one = ruled_groups(address)? == [0, 0, 0, 0, 0, 0, 0, 1];
        (format!("[{address}]"), port, is_one)
    } else {
        let (host, _) = rest.split_once(':').unwrap_or((rest, ""));
        let is_letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = host.trim_end_matches('.');
        if named.is_empty() || named.starts_with('.') || named.contains("..") {
            return None;
        }
        if !host.chars().all(is_letter) {
            return None;
        }
        let is_local = host == "localhost" || ruled_quad(host).is_some_and(|quad| quad[0] == 127);
        (host.to_owned(), &rest[host.len()..], is_local)
    };
    let digits = if port.is_empty() { port } else { port.strip_prefix(':')? };
    let significant = digits.trim_start_matches('0');
    let is_number = digits.chars().all(|c| c.is_ascii_digit()) && significant.len() <= 5;
    let port = match digits {
        "" => default,
        _ => significant.parse().ok().filter(|port| is_number && *port <= 65_535)?,
    };
    Some((format!("{scheme}://{host}:{port}"), is_loopback))
}

/// Four decimal numbers without zeros before them.
fn ruled_quad(text: &str) -> Option<[u16; 4]> {
    let read = |part: &str| part.parse::<u8>().ok().filter(|byte| byte.to_string() == part);
    let found: Option<Vec<u16>> = text.split('.').map(|part| read(part).map(u16::from)).collect();
    found?.try_into().ok()
}

/// The eight groups of an IPv6 address.
fn ruled_groups(text: &str) -> Option<Vec<u16>> {
    let mut whole = text.to_owned();
    if text.contains('.') {
        let at = text.rfind(':')? + 1;
        let [a, b, c, d] = ruled_quad(&text[at..])?;
        whole = format!("{}{:x}:{:x}", &text[..at], a << 8 | b, c << 8 | d);
    }
    let groups = |half: &str| -> Option<Vec<u16>> {
        if half.is_empty() {
            return Some(Vec::new());
        }
        let is_hex = |part: &&str| {
            (1..=4).contains(&part.len()) && part.chars().all(|c| c.is_ascii_hexdigit())
        };
        half.split(':')
            .map(|part| Some(part).filter(is_hex).and_then(|p| u16::from_str_radix(p, 16).ok()))
            .collect()
    };
    let Some((head, tail)) = whole.split_once("::") else {
        return groups(&whole).filter(|found| found.len() == 8);
    };
    let (left, right) = (groups(head)?, groups(tail)?);
    let missing = 8usize.checked_sub(left.len() + right.len()).filter(|missing| *missing > 0)?;
    Some([left, vec![0; missing], right].concat())
}

#[derive(Deserialize)]
struct EndpointVector {
    text: String,
}

const PARTS: [&str; 36] = [
    "http",
    "https",
    "HTTP",
    "ftp",
    "://",
    "http://",
    "https://",
    ":",
    "@",
    "/",
    "?",
    "#",
    ".",
    "localhost",
    "queue",
    "127.0.0.1",
    "127.1",
    "128.0.0.1",
    "[",
    "]",
    "::1",
    "::",
    ":1",
    ":0",
    "1:2:3:4:5:6:7:8",
    "1.2.3.4",
    "ffff",
    ":65535",
    ":65536",
    ":080",
    "\u{212a}",
    "%2e",
    "-",
    "_",
    "Ab",
    "[::1]",
];

/// Any text is an endpoint by the rule, or refused by it.
// Covers R15.
#[test]
fn endpoints() {
    let kept = vectors::<EndpointVector>("endpoints.json");
    let kept = kept.into_iter().map(|vector| vector.text.into_bytes()).collect();
    let texts = prop_oneof![
        vec(prop_oneof![6 => select(&PARTS[..]).prop_map(str::to_owned), 1 => ".{0,3}"], 0..7)
            .prop_map(|parts| parts.concat()),
        damaged(kept).prop_map(|content| String::from_utf8_lossy(&content).into_owned()),
    ];
    hold("rust-endpoints", &(texts, any::<bool>()), |(text, has_tls)| {
        let found = parse_redirect(&text).ok();
        let told = found.as_ref().map(|found| (found.to_string(), found.is_loopback()));
        prop_assert_eq!(&told, &ruled(&text, [80, 443]), "redirect {:?}", text);
        if let Some(found) = found {
            prop_assert_eq!(parse_redirect(&found.to_string()).ok(), Some(found));
        }
        let scheme = if has_tls { "https" } else { "http" };
        let whole = if text.contains("://") { text.clone() } else { format!("{scheme}://{text}") };
        let expected = ruled(&whole, [7070, 7070]).map(|(told, _)| told);
        let expected = expected.filter(|told| !has_tls || told.starts_with("https:"));
        let found = parse_configured(&text, has_tls).ok().map(|found| found.to_string());
        prop_assert_eq!(found, expected, "configured {:?}", text);
        Ok(())
    });
}

// --- payloads --------------------------------------------------------------------------------------

const MAX_BYTES: usize = 64;
const ZLIB: ZlibTransform = ZlibTransform { min_bytes: 1, max_bytes: MAX_BYTES };
const JSON_TYPE: &str = "application/json";
const MSGPACK_TYPE: &str = "application/msgpack";
const ZLIB_TYPE: &str = "application/octet-stream;transform=zlib";

#[derive(Deserialize)]
struct PayloadVector {
    codec: String,
    content_type: String,
    payload: String,
    read: String,
    #[serde(default)]
    value: Json,
}

fn packing(codec: &str) -> TransformingCodec {
    let transforms: Vec<std::sync::Arc<dyn Transform>> = vec![std::sync::Arc::new(ZLIB)];
    match codec {
        "msgpack" => TransformingCodec::new(MsgpackCodec, transforms),
        _ => TransformingCodec::new(JsonCodec, transforms),
    }
}

/// Numbers as floats, since a whole number may be written as either.
fn leveled(value: Json) -> Json {
    match value {
        Json::Number(number) => number.as_f64().map_or(Json::Null, Json::from),
        Json::Array(values) => values.into_iter().map(leveled).collect(),
        Json::Object(pairs) => {
            pairs.into_iter().map(|(key, value)| (key, leveled(value))).collect()
        }
        other => other,
    }
}

/// Payloads are read as all SDKs read them.
// Covers R18.
#[test]
fn shared_payloads() {
    for vector in vectors::<PayloadVector>("payloads.json") {
        let PayloadVector { codec, content_type, payload, read, value } = vector;
        let (codec, bytes) = (packing(&codec), bytes_of(&payload));
        let place = format!("{payload} as {content_type:?}: {read}");
        if read == "bytes" {
            let found: crate::Payload = decode(&codec, &bytes, &content_type).unwrap();
            let found = encode(&JsonCodec, &found).unwrap();
            assert_eq!(found.payload, bytes_of(value.as_str().unwrap()), "{place}");
            assert_eq!(found.content_type, "application/octet-stream", "{place}");
            continue;
        }
        if read == "unsaid" {
            // A Payload holds what JSON has a form for; types of the user's hold what is here.
            assert!(decode::<serde::de::IgnoredAny>(&codec, &bytes, &content_type).is_ok());
            continue;
        }
        let found = decode::<crate::Payload>(&codec, &bytes, &content_type);
        assert_eq!(found.is_err(), read == "refused", "{place}: {:?}", found.err());
        if read == "value" {
            let found: Json = decode(&codec, &bytes, &content_type).unwrap();
            assert_eq!(leveled(found), leveled(value), "{place}");
        }
    }
}

fn json_values() -> impl Strategy<Value = Json> {
    let leaf = prop_oneof![
        Just(Json::Null),
        any::<bool>().prop_map(Json::from),
        any::<i64>().prop_map(Json::from),
        any::<f64>().prop_map(Json::from),
        ".{0,8}".prop_map(Json::from),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..5).prop_map(Json::from),
            prop::collection::hash_map(".{0,4}", inner, 0..5)
                .prop_map(|pairs| pairs.into_iter().collect()),
        ]
    })
}

/// Any bytes of any media are a value or an error of the payload.
// Covers R18.
#[test]
fn payloads_of_any_bytes() {
    let kept = vectors::<PayloadVector>("payloads.json");
    let types: Vec<Vec<u8>> = kept.iter().map(|v| v.content_type.clone().into_bytes()).collect();
    let kept: Vec<Vec<u8>> = kept.iter().map(|vector| bytes_of(&vector.payload)).collect();
    let medias = prop_oneof![
        select(vec![JSON_TYPE, MSGPACK_TYPE, ZLIB_TYPE, ""]).prop_map(str::to_owned),
        damaged(types).prop_map(|content| String::from_utf8_lossy(&content).into_owned()),
    ];
    let bytes = prop_oneof![damaged(kept), vec(any::<u8>(), 0..80)];
    hold("rust-payloads, bytes", &(bytes, medias, any::<bool>()), |(bytes, media, is_packed)| {
        let codec = packing(if is_packed { "msgpack" } else { "json" });
        let found = decode::<crate::Payload>(&codec, &bytes, &media);
        if let Err(error) = &found {
            prop_assert_eq!(error.kind(), ErrorKind::Payload);
        }
        let plain = media.split(';').next().unwrap().trim_matches([' ', '\t']).to_ascii_lowercase();
        let known = ["", JSON_TYPE, MSGPACK_TYPE, "application/octet-stream"];
        prop_assert!(found.is_err() || known.contains(&plain.as_str()), "{:?}", media);
        if media == JSON_TYPE {
            let is_json = serde_json::from_slice::<Json>(&bytes).is_ok();
            prop_assert_eq!(found.is_ok(), is_json, "{:?}", bytes);
        }
        if media == MSGPACK_TYPE {
            let again = decode::<Json>(&MsgpackCodec, &[&bytes[..], b"\xc0"].concat(), &media);
            prop_assert!(again.is_err() || found.is_err(), "more behind {:?} is taken", bytes);
        }
        Ok(())
    });
}

/// Values come back as what they were made of, in both encodings, through zlib or not.
#[test]
fn payloads_of_any_value() {
    let codecs = select(vec!["json", "msgpack"]);
    hold("rust-payloads, values", &(json_values(), codecs), |(value, name)| {
        let codec = packing(name);
        let encoded = encode(&codec, &value).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let unpacked = TransformingCodec::new(packing(name), Vec::new());
        let plain = match name {
            "json" => encode(&JsonCodec, &value),
            _ => encode(&MsgpackCodec, &value),
        };
        let is_packed = encoded.content_type.ends_with("zlib");
        let fits = !is_packed || plain.unwrap().payload.len() <= MAX_BYTES;
        let found = decode::<Json>(&unpacked, &encoded.payload, &encoded.content_type);
        prop_assert!(found.is_err() || !is_packed);
        let found = decode::<Json>(&codec, &encoded.payload, &encoded.content_type).ok();
        prop_assert_eq!(found, fits.then_some(value));
        Ok(())
    });
}

/// Bytes unpack to as much as is allowed, and never from a part.
#[test]
fn payloads_of_zlib() {
    let given = (vec(0u8..4, 0..90), any::<prop::sample::Index>());
    hold("rust-payloads, zlib", &given, |(plain, cut)| {
        if let Some(packed) = ZLIB.wrap(&plain).unwrap() {
            let found = ZLIB.unwrap(&packed).ok();
            prop_assert_eq!(found, (plain.len() <= MAX_BYTES).then_some(plain));
            let short = &packed[..cut.index(packed.len())];
            prop_assert!(ZLIB.unwrap(short).is_err(), "{:?} is taken", short);
        }
        Ok(())
    });
}

// --- errors ----------------------------------------------------------------------------------------

#[derive(Deserialize)]
struct ErrorVector {
    status: String,
    place: String,
    family: String,
    reason: Option<String>,
    details: BTreeMap<String, String>,
    executed: bool,
}

/// Statuses become the errors that all SDKs make of them.
#[test]
fn shared_errors() {
    for vector in vectors::<ErrorVector>("errors.json") {
        let status = pb::Status::decode(bytes_of(&vector.status).as_slice()).unwrap();
        let found = status_error(&status, &vector.place);
        let place = format!("{status:?}");
        assert_eq!(format!("{:?}", found.kind()), vector.family, "{place}");
        assert_eq!(found.reason().map(|reason| reason.to_string()), vector.reason, "{place}");
        assert_eq!(found.details(), &vector.details, "{place}");
        assert_eq!(found.executed(), (!vector.executed).then_some(false), "{place}");
    }
}

/// An error says what its status says, beside details that are broken.
#[test]
fn errors() {
    let statuses = vectors::<ErrorVector>("errors.json");
    let statuses = statuses.into_iter().map(|vector| bytes_of(&vector.status)).collect();
    let word = prop_oneof![select(ErrorReason::ALL).prop_map(|r| r.to_string()), "[a-z_]{0,5}"];
    let text = || prop_oneof![select(vec!["", "index", "tasks[3].", "tasks[3].key"]), Just("x")];
    let broken = prop_oneof![damaged(statuses), vec(any::<u8>(), 0..12)];
    let given = (-1i32..20, word, text(), text(), text(), broken);
    hold("rust-errors", &given, |(code, word, name, text, place, broken)| {
        let any = |value: Vec<u8>| prost_types::Any {
            type_url: "type.googleapis.com/google.rpc.ErrorInfo".to_owned(),
            value,
        };
        let info = pb::ErrorInfo {
            reason: format!("ERROR_REASON_{}", word.to_uppercase()),
            domain: "cronoq".to_owned(),
            metadata: [(name.to_owned(), text.to_owned())].into(),
        };
        let is_heard = pb::ErrorInfo::decode(broken.as_slice()).is_ok_and(|i| i.domain == "cronoq");
        let mut details = vec![any(info.encode_to_vec())];
        if !is_heard {
            details.insert(0, any(broken));
        }
        let bare = pb::Status { code, message: text.to_owned(), details: Vec::new() };
        let found = status_error(&pb::Status { details, ..bare.clone() }, place);
        let reason = ErrorReason::ALL.iter().find(|reason| reason.to_string() == word);
        prop_assert_eq!(found.reason(), reason.copied());
        // The kind of a reason is what the vectors say; of none, what the status says alone.
        if reason.is_none() {
            prop_assert_eq!(found.kind(), status_error(&bare, "").kind());
        }
        let told = text.strip_prefix(place).unwrap_or(text).to_owned();
        let mut expected = BTreeMap::from([(name.to_owned(), told.clone())]);
        if !place.is_empty() {
            expected.remove("index");
        }
        prop_assert_eq!(found.details(), &expected);
        let message = found.message();
        prop_assert!(message == told || told.is_empty() && !message.is_empty(), "{}", message);
        Ok(())
    });
}

// --- numbers ---------------------------------------------------------------------------------------

/// Durations and instants of the wire are what exact arithmetic says.
#[test]
fn times() {
    let seconds = prop_oneof![any::<f64>(), 0.0..1e10, -1.0..1.0];
    hold("rust-times", &(seconds, any::<i64>()), |(seconds, nanoseconds)| {
        let found = duration_of(seconds);
        if (0.0..2f64.powi(64)).contains(&seconds) {
            let distance = (found.as_secs_f64() - seconds).abs();
            prop_assert!(
                distance <= 1e-9 + seconds * 1e-15,
                "{} s is read as {:?}",
                seconds,
                found
            );
        } else {
            prop_assert_eq!(found, Duration::ZERO);
        }
        prop_assert_eq!(unix_ns(instant_of(nanoseconds)).ok(), Some(nanoseconds));
        Ok(())
    });
}
