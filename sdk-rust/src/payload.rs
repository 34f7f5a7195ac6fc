//! Decides how values become bytes and bytes become values.
//!
//! A codec names the content type of what it makes and reads content types it knows. `Vec<u8>`
//! stays bytes (`application/octet-stream`), everything else goes through the codec of the client
//! or worker. Transforms (compression, encryption) wrap the bytes and add `;transform=NAME` to the
//! content type, so that the reader undoes what the writer did. Bytes that are not what they say
//! are [`ErrorKind::Payload`](crate::ErrorKind::Payload); a worker fails such an attempt
//! permanently, since no retry can change the bytes.
//!
//! [`Payload`] stands for any of these, where the type is not known beforehand.

use std::any::{Any, TypeId, type_name};
use std::fmt;
use std::io::{Read, Write};
use std::sync::Arc;

use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::errors::{Error, ErrorKind, Result};

const BYTES_TYPE: &str = "application/octet-stream";
const JSON_TYPE: &str = "application/json";
const MSGPACK_TYPE: &str = "application/msgpack";
const TRANSFORM_MARK: &str = ";transform=";

/// Bytes with the content type that says what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded {
    /// The bytes.
    pub payload: Vec<u8>,
    /// Their content type, ASCII.
    pub content_type: String,
}

/// What a codec is asked to encode.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// Bytes, which stay what they are.
    Bytes(&'a [u8]),
    /// A value of any other type.
    Typed(&'a dyn erased_serde::Serialize),
}

/// Reads one value out of a deserializer.
pub type ReadTyped<'a> =
    dyn FnMut(&mut dyn erased_serde::Deserializer<'_>) -> erased_serde::Result<()> + 'a;

/// Where a codec is asked to put what it decodes.
pub enum Slot<'a> {
    /// Bytes are wanted as they are.
    Bytes(&'a mut Vec<u8>),
    /// A value of any other type is wanted: call this with a deserializer over the payload.
    Typed(&'a mut ReadTyped<'a>),
}

/// Turns values into bytes and back. Used from several threads at once.
pub trait Codec: Send + Sync + 'static {
    /// Returns the bytes and their content type.
    fn encode(&self, value: Value<'_>) -> Result<Encoded>;

    /// Puts the value in `payload` into `slot`. An empty `content_type` means that the sender did
    /// not say; the codec's own is meant.
    fn decode(&self, payload: &[u8], content_type: &str, slot: Slot<'_>) -> Result<()>;
}

/// Wraps bytes on their way out and unwraps them on their way in: compression, encryption.
pub trait Transform: Send + Sync + 'static {
    /// What the content type calls it; the reader finds its transform by this name.
    fn name(&self) -> &str;

    /// Returns the wrapped bytes, or `None` to leave this payload alone.
    fn wrap(&self, payload: &[u8]) -> Result<Option<Vec<u8>>>;

    /// Returns the original bytes.
    fn unwrap(&self, payload: &[u8]) -> Result<Vec<u8>>;
}

/// An error for bytes and values that do not match, for codecs and transforms of your own.
pub fn payload_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Payload, message)
}

/// JSON for values, bytes as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct JsonCodec;

impl Codec for JsonCodec {
    fn encode(&self, value: Value<'_>) -> Result<Encoded> {
        encode_with(value, JSON_TYPE, |typed| {
            serde_json::to_vec(typed).map_err(|error| error.to_string())
        })
    }

    fn decode(&self, payload: &[u8], content_type: &str, slot: Slot<'_>) -> Result<()> {
        decode_known(payload, content_type, JSON_TYPE, slot)
    }
}

/// `MessagePack` for values, bytes as they are. Structs are maps with field names.
#[derive(Clone, Copy, Debug, Default)]
pub struct MsgpackCodec;

impl Codec for MsgpackCodec {
    fn encode(&self, value: Value<'_>) -> Result<Encoded> {
        encode_with(value, MSGPACK_TYPE, |typed| {
            rmp_serde::to_vec_named(typed).map_err(|error| error.to_string())
        })
    }

    fn decode(&self, payload: &[u8], content_type: &str, slot: Slot<'_>) -> Result<()> {
        decode_known(payload, content_type, MSGPACK_TYPE, slot)
    }
}

/// A codec whose bytes go through transforms: the first in the list is the innermost.
#[derive(Clone)]
pub struct TransformingCodec {
    inner: Arc<dyn Codec>,
    transforms: Vec<Arc<dyn Transform>>,
}

impl TransformingCodec {
    /// Makes the codec.
    pub fn new(inner: impl Codec, transforms: Vec<Arc<dyn Transform>>) -> Self {
        Self { inner: Arc::new(inner), transforms }
    }
}

impl Codec for TransformingCodec {
    fn encode(&self, value: Value<'_>) -> Result<Encoded> {
        let mut encoded = self.inner.encode(value)?;
        for transform in &self.transforms {
            if let Some(wrapped) = transform.wrap(&encoded.payload)? {
                encoded.payload = wrapped;
                encoded.content_type.push_str(TRANSFORM_MARK);
                encoded.content_type.push_str(transform.name());
            }
        }
        Ok(encoded)
    }

    fn decode(&self, payload: &[u8], content_type: &str, slot: Slot<'_>) -> Result<()> {
        let mut parts = content_type.split(TRANSFORM_MARK);
        let plain_type = parts.next().unwrap_or_default();
        let names: Vec<&str> = parts.collect();
        let mut unwrapped: Option<Vec<u8>> = None;
        for name in names.into_iter().rev() {
            let found = self.transforms.iter().find(|transform| transform.name() == name);
            let transform = found.ok_or_else(|| not_configured(name))?;
            unwrapped = Some(transform.unwrap(unwrapped.as_deref().unwrap_or(payload))?);
        }
        self.inner.decode(unwrapped.as_deref().unwrap_or(payload), plain_type, slot)
    }
}

/// Compresses payloads that are long enough to gain from it.
#[derive(Clone, Copy, Debug)]
pub struct ZlibTransform {
    /// Shorter payloads stay as they are.
    pub min_bytes: usize,
    /// What a payload may unpack to; more is refused.
    pub max_bytes: usize,
}

impl Default for ZlibTransform {
    fn default() -> Self {
        Self { min_bytes: 1024, max_bytes: 64 * 1024 * 1024 }
    }
}

impl Transform for ZlibTransform {
    fn name(&self) -> &'static str {
        "zlib"
    }

    fn wrap(&self, payload: &[u8]) -> Result<Option<Vec<u8>>> {
        if payload.len() < self.min_bytes {
            return Ok(None);
        }
        let mut encoder =
            flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        let packed = encoder
            .write_all(payload)
            .and_then(|()| encoder.finish())
            .map_err(|error| payload_error(format!("cannot compress: {error}")))?;
        Ok((packed.len() < payload.len()).then_some(packed))
    }

    fn unwrap(&self, payload: &[u8]) -> Result<Vec<u8>> {
        let mut plain = Vec::new();
        // One byte more than is allowed tells a payload that is too long from one that just fits.
        let limit = u64::try_from(self.max_bytes).unwrap_or(u64::MAX).saturating_add(1);
        flate2::read::ZlibDecoder::new(payload)
            .take(limit)
            .read_to_end(&mut plain)
            .map_err(|error| payload_error(format!("payload is not zlib, or cut off: {error}")))?;
        if plain.len() > self.max_bytes {
            let text = format!("payload unpacks to more than {} bytes", self.max_bytes);
            return Err(payload_error(text));
        }
        Ok(plain)
    }
}

fn not_configured(transform: &str) -> Error {
    payload_error(format!("payload needs transform {transform:?}, which is not configured"))
}

fn encode_with(
    value: Value<'_>,
    own_type: &str,
    write: impl Fn(&dyn erased_serde::Serialize) -> std::result::Result<Vec<u8>, String>,
) -> Result<Encoded> {
    match value {
        Value::Bytes(bytes) => {
            Ok(Encoded { payload: bytes.to_vec(), content_type: BYTES_TYPE.to_owned() })
        }
        Value::Typed(typed) => {
            let payload = write(typed)
                .map_err(|error| payload_error(format!("cannot encode the value: {error}")))?;
            Ok(Encoded { payload, content_type: own_type.to_owned() })
        }
    }
}

fn decode_known(payload: &[u8], content_type: &str, own_type: &str, slot: Slot<'_>) -> Result<()> {
    if let Some((_, names)) = content_type.split_once(TRANSFORM_MARK) {
        return Err(not_configured(names));
    }
    let read = match slot {
        Slot::Bytes(bytes) => {
            bytes.extend_from_slice(payload);
            return Ok(());
        }
        Slot::Typed(read) => read,
    };
    if payload.is_empty() && content_type.is_empty() {
        // A task without payload is a null, for types that have one.
        let mut null = serde_json::Deserializer::from_slice(b"null");
        return read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut null))
            .map_err(|error| payload_error(format!("the task has no payload: {error}")));
    }
    let named = if content_type.is_empty() { own_type } else { content_type };
    let media = named.split(';').next().unwrap_or_default();
    let media = media.trim_matches([' ', '\t']).to_ascii_lowercase();
    let told = match media.as_str() {
        JSON_TYPE => {
            let mut source = serde_json::Deserializer::from_slice(payload);
            let erased = &mut <dyn erased_serde::Deserializer<'_>>::erase(&mut source);
            read(erased)
                .map_err(|error| error.to_string())
                .and_then(|()| source.end().map_err(|error| error.to_string()))
        }
        MSGPACK_TYPE => {
            let mut rest = payload;
            let mut source = rmp_serde::Deserializer::new(&mut rest);
            let erased = &mut <dyn erased_serde::Deserializer<'_>>::erase(&mut source);
            read(erased).map_err(|error| error.to_string()).and_then(|()| {
                let is_whole = rest.is_empty();
                is_whole.then_some(()).ok_or_else(|| "there is more behind the value".to_owned())
            })
        }
        BYTES_TYPE => {
            let erased = &mut <dyn erased_serde::Deserializer<'_>>::erase(RawBytes(payload));
            read(erased).map_err(|error| error.to_string())
        }
        _ => return Err(payload_error(format!("unknown content type {content_type:?}"))),
    };
    told.map_err(|error| payload_error(format!("payload does not fit in {media}: {error}")))
}

/// Encodes a value; a `Vec<u8>` stays bytes.
pub(crate) fn encode<T: Serialize + 'static>(codec: &dyn Codec, value: &T) -> Result<Encoded> {
    let any: &dyn Any = value;
    let encoded = if let Some(bytes) = any.downcast_ref::<Vec<u8>>() {
        codec.encode(Value::Bytes(bytes))?
    } else if let Some(payload) = any.downcast_ref::<Payload>() {
        payload.encode(codec)?.map_or_else(|| codec.encode(Value::Typed(&())), Ok)?
    } else {
        codec.encode(Value::Typed(value))?
    };
    if encoded.content_type.is_ascii() {
        Ok(encoded)
    } else {
        // One bad report would take the whole message with it.
        Err(payload_error("the codec's content type is not ASCII"))
    }
}

/// Decodes a value; a `Vec<u8>` gets the bytes, `()` whatever there is.
pub(crate) fn decode<T: DeserializeOwned + 'static>(
    codec: &dyn Codec,
    payload: &[u8],
    content_type: &str,
) -> Result<T> {
    let mut value: Option<T> = None;
    let place: &mut dyn Any = &mut value;
    if TypeId::of::<T>() == TypeId::of::<()>() {
        if let Some(unit) = place.downcast_mut::<Option<()>>() {
            *unit = Some(());
        }
    } else if let Some(bytes) = place.downcast_mut::<Option<Vec<u8>>>() {
        codec.decode(payload, content_type, Slot::Bytes(bytes.insert(Vec::new())))?;
    } else {
        let mut read = |source: &mut dyn erased_serde::Deserializer<'_>| {
            value = Some(erased_serde::deserialize(source)?);
            Ok(())
        };
        codec.decode(payload, content_type, Slot::Typed(&mut read)).map_err(|error| {
            payload_error(format!("no {}: {error}", type_name::<T>())).caused_by(error)
        })?;
    }
    value.ok_or_else(|| payload_error("the codec read no value"))
}

/// Bytes or a value: what a task carries for its handler.
///
/// As a handler's or result's type it takes whatever there is: bytes as bytes, anything else as a
/// [`serde_json::Value`]. What a handler returns as one is encoded as what it holds.
#[derive(Clone, Default)]
pub struct Payload(pub(crate) Content);

#[derive(Clone, Default)]
pub(crate) enum Content {
    #[default]
    Nothing,
    Bytes(Vec<u8>),
    Value(Arc<dyn erased_serde::Serialize + Send + Sync>),
}

impl Payload {
    /// A value that the client's codec encodes; a `Vec<u8>` stays bytes.
    pub fn new<T: Serialize + Send + Sync + 'static>(value: T) -> Self {
        let mut held = Some(value);
        let place: &mut dyn Any = &mut held;
        if let Some(bytes) = place.downcast_mut::<Option<Vec<u8>>>().and_then(Option::take) {
            return Self::bytes(bytes);
        }
        if let Some(payload) = place.downcast_mut::<Option<Self>>().and_then(Option::take) {
            return payload;
        }
        held.map_or_else(Self::nothing, |value| Self(Content::Value(Arc::new(value))))
    }

    /// Bytes, which stay what they are.
    #[must_use]
    pub fn bytes(bytes: Vec<u8>) -> Self {
        Self(Content::Bytes(bytes))
    }

    /// No payload at all, which is not the same as a null.
    #[must_use]
    pub fn nothing() -> Self {
        Self(Content::Nothing)
    }

    /// The bytes; `None` if this is a value.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match &self.0 {
            Content::Nothing => Some(&[]),
            Content::Bytes(bytes) => Some(bytes),
            Content::Value(_) => None,
        }
    }

    pub(crate) fn encode(&self, codec: &dyn Codec) -> Result<Option<Encoded>> {
        match &self.0 {
            Content::Nothing => Ok(None),
            Content::Bytes(bytes) => codec.encode(Value::Bytes(bytes)).map(Some),
            Content::Value(value) => codec.encode(Value::Typed(value.as_ref())).map(Some),
        }
    }
}

/// How a [`Payload`] asks for bytes; nothing else that is read is called so.
const PAYLOAD_NAME: &str = "$cronoq::Payload";

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        match &self.0 {
            Content::Nothing => serializer.serialize_unit(),
            Content::Bytes(bytes) => serializer.serialize_bytes(bytes),
            Content::Value(value) => erased_serde::serialize(value.as_ref(), serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(source: D) -> std::result::Result<Self, D::Error> {
        source.deserialize_newtype_struct(PAYLOAD_NAME, PayloadVisitor)
    }
}

struct PayloadVisitor;

impl<'de> Visitor<'de> for PayloadVisitor {
    type Value = Payload;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes or a value")
    }

    fn visit_bytes<E>(self, bytes: &[u8]) -> std::result::Result<Payload, E> {
        Ok(Payload::bytes(bytes.to_vec()))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(
        self,
        source: D,
    ) -> std::result::Result<Payload, D::Error> {
        serde_json::Value::deserialize(source).map(Payload::new)
    }
}

/// Bytes that only a [`Payload`] can take; a `Vec<u8>` does not come this way.
struct RawBytes<'a>(&'a [u8]);

impl<'de> Deserializer<'de> for RawBytes<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(
        self,
        _visitor: V,
    ) -> std::result::Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("payload is bytes, but another type is wanted"))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> std::result::Result<V::Value, Self::Error> {
        if name == PAYLOAD_NAME {
            visitor.visit_bytes(self.0)
        } else {
            self.deserialize_any(visitor)
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Payloads are the user's secrets, so only their size is shown.
        match &self.0 {
            Content::Nothing => f.write_str("Payload(nothing)"),
            Content::Bytes(bytes) => write!(f, "Payload({} bytes)", bytes.len()),
            Content::Value(_) => f.write_str("Payload(value)"),
        }
    }
}

#[cfg(test)]
#[path = "payload_tests.rs"]
mod tests;
