//! Values and bytes, there and back.

use serde::{Deserialize, Serialize};

use super::*;

#[derive(Debug, Deserialize, PartialEq, Serialize)]
struct Order {
    item: String,
    count: u32,
}

fn order() -> Order {
    Order { item: "bread".to_owned(), count: 3 }
}

fn kind_of<T>(outcome: Result<T>) -> Option<ErrorKind> {
    outcome.err().map(|error| error.kind())
}

/// Values come back as they were, in both encodings, whichever codec reads them.
#[test]
fn values_come_back_as_they_were() {
    let codecs: [&dyn Codec; 2] = [&JsonCodec, &MsgpackCodec];
    for writer in codecs {
        let encoded = encode(writer, &order()).unwrap();
        for reader in codecs {
            let read: Order = decode(reader, &encoded.payload, &encoded.content_type).unwrap();
            assert_eq!(read, order());
        }
    }
    assert_eq!(encode(&JsonCodec, &"ä").unwrap().payload, "\"ä\"".as_bytes());
}

/// Bytes stay bytes, and are given to whoever wants bytes.
#[test]
fn bytes_stay_bytes() {
    let encoded = encode(&JsonCodec, &vec![0u8, 1, 255]).unwrap();
    assert_eq!(encoded.payload, [0, 1, 255]);
    assert_eq!(encoded.content_type, "application/octet-stream");
    let read: Vec<u8> = decode(&JsonCodec, &encoded.payload, &encoded.content_type).unwrap();
    assert_eq!(read, [0, 1, 255]);
    let json: Vec<u8> = decode(&JsonCodec, b"[1]", "application/json").unwrap();
    assert_eq!(json, b"[1]");
}

/// A task without payload is a null for types that have one, and ignored by the unit type.
#[test]
fn no_payload_is_nothing() {
    assert_eq!(decode::<Option<u32>>(&JsonCodec, b"", "").unwrap(), None);
    assert!(decode::<()>(&JsonCodec, b"", "").is_ok());
    assert!(decode::<()>(&JsonCodec, b"whatever", "text/plain").is_ok());
    assert_eq!(kind_of(decode::<u32>(&JsonCodec, b"", "")), Some(ErrorKind::Payload));
}

/// Bytes that are not what they say are refused, whatever is wrong with them (R18).
// Covers R18.
#[test]
fn bytes_that_do_not_fit_are_refused() {
    let refused = [
        decode::<Order>(&JsonCodec, b"{\"item\": 1}", "application/json"),
        decode::<Order>(&JsonCodec, b"{", "application/json"),
        decode::<Order>(&JsonCodec, b"{}", "application/x-unknown"),
        decode::<Order>(&JsonCodec, b"{}", "application/octet-stream"),
        decode::<Order>(&JsonCodec, b"\xff\xff", "application/msgpack"),
        decode::<Order>(&JsonCodec, b"{\"item\":\"x\",\"count\":1} more", ""),
        decode::<Order>(
            &JsonCodec,
            br#"{"item":"x","count":1}"#,
            "application/json;transform=zlib",
        ),
    ];
    for outcome in refused {
        assert_eq!(kind_of(outcome), Some(ErrorKind::Payload));
    }
}

/// What cannot be encoded is an error of its own.
#[test]
fn values_without_a_form_are_refused() {
    let keyed_by_tuple = std::collections::BTreeMap::from([((1, 2), 3)]);
    assert_eq!(kind_of(encode(&JsonCodec, &keyed_by_tuple)), Some(ErrorKind::Payload));
}

struct Xor(u8);

impl Transform for Xor {
    fn name(&self) -> &'static str {
        "xor"
    }

    fn wrap(&self, payload: &[u8]) -> Result<Option<Vec<u8>>> {
        Ok(Some(payload.iter().map(|byte| byte ^ self.0).collect()))
    }

    fn unwrap(&self, payload: &[u8]) -> Result<Vec<u8>> {
        Ok(payload.iter().map(|byte| byte ^ self.0).collect())
    }
}

/// Transforms are undone in the other order, by the names in the content type.
#[test]
fn transforms_wrap_and_unwrap() {
    let zlib = ZlibTransform { min_bytes: 10, ..ZlibTransform::default() };
    let codec = TransformingCodec::new(JsonCodec, vec![Arc::new(zlib), Arc::new(Xor(7))]);
    let text = "long ".repeat(100);
    let encoded = encode(&codec, &text).unwrap();
    assert_eq!(encoded.content_type, "application/json;transform=zlib;transform=xor");
    assert!(encoded.payload.len() < text.len());
    let read: String = decode(&codec, &encoded.payload, &encoded.content_type).unwrap();
    assert_eq!(read, text);
    let short = encode(&codec, &1).unwrap();
    assert_eq!(short.content_type, "application/json;transform=xor");
    let wrapped = decode::<Vec<u8>>(&JsonCodec, &short.payload, &short.content_type);
    assert_eq!(kind_of(wrapped), Some(ErrorKind::Payload));
}

/// Compressed payloads that are cut off, no zlib at all, or too long are refused (R18).
// Covers R18.
#[test]
fn broken_compression_is_refused() {
    let zlib = ZlibTransform { min_bytes: 1, max_bytes: 1000 };
    let whole = zlib.wrap(&[0; 1000]).unwrap().unwrap();
    assert_eq!(zlib.unwrap(&whole).unwrap().len(), 1000);
    let long = zlib.wrap(&[0; 1001]).unwrap().unwrap();
    for broken in [&whole[..whole.len() - 5], b"no zlib", &long] {
        assert_eq!(kind_of(zlib.unwrap(broken)), Some(ErrorKind::Payload));
    }
    assert_eq!(zlib.wrap(b"xy").unwrap(), None);
}

/// Payloads of specs keep bytes as bytes and show nothing of what they hold.
#[test]
fn payloads_of_specs_tell_bytes_from_values() {
    assert_eq!(Payload::new(vec![1u8, 2]).as_bytes(), Some(&[1u8, 2][..]));
    assert_eq!(Payload::nothing().as_bytes(), Some(&[][..]));
    assert_eq!(Payload::new("secret").as_bytes(), None);
    assert_eq!(format!("{:?}", Payload::new("secret")), "Payload(value)");
    let encoded = Payload::new(order()).encode(&JsonCodec).unwrap().unwrap();
    assert_eq!(encoded.payload, br#"{"item":"bread","count":3}"#);
}

/// A payload takes whatever there is, and is encoded as what it holds.
#[test]
fn payloads_take_whatever_there_is() {
    for codec in [&JsonCodec as &dyn Codec, &MsgpackCodec] {
        for payload in [Payload::bytes(vec![0, 255]), Payload::new(order())] {
            let encoded = encode(codec, &payload).unwrap();
            let read: Payload = decode(codec, &encoded.payload, &encoded.content_type).unwrap();
            assert_eq!(
                serde_json::to_value(&read).unwrap(),
                serde_json::to_value(&payload).unwrap()
            );
            assert_eq!(read.as_bytes().is_some(), payload.as_bytes().is_some());
        }
    }
    assert_eq!(encode(&JsonCodec, &Payload::nothing()).unwrap().payload, b"null");
    let nothing: Payload = decode(&JsonCodec, b"", "").unwrap();
    assert_eq!(serde_json::to_value(nothing).unwrap(), serde_json::Value::Null);
}
