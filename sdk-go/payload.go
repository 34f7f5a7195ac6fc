package cronoq

import (
	"bytes"
	"compress/zlib"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/vmihailenco/msgpack/v5"
)

// How values become bytes and bytes become values. A codec names the content type of what it makes
// and reads content types it knows. Bytes stay bytes (application/octet-stream). Transforms wrap the
// bytes and add ";transform=NAME" to the content type, so that the reader undoes what the writer did.
// Bytes that are not what they say are ErrPayload; a worker fails such an attempt permanently, since
// no retry can change them.

const (
	bytesType     = "application/octet-stream"
	jsonType      = "application/json"
	msgpackType   = "application/msgpack"
	transformMark = ";transform="
)

// Codec turns values into bytes and back. It is used from several goroutines at once.
type Codec interface {
	// Encode returns the bytes and their content type.
	Encode(value any) (payload []byte, contentType string, err error)
	// Decode puts the value in payload into what into points to. An empty content type means that
	// the sender did not say; the codec's own is meant.
	Decode(payload []byte, contentType string, into any) error
}

// Transform wraps bytes on their way out and unwraps them on their way in: compression, encryption.
type Transform interface {
	// Name is what the content type calls it; the reader finds its transform by this name.
	Name() string
	// Wrap returns the wrapped bytes, or false to leave this payload alone.
	Wrap(payload []byte) ([]byte, bool, error)
	// Unwrap returns the original bytes.
	Unwrap(payload []byte) ([]byte, error)
}

// JSONCodec writes JSON for values and bytes as they are. Structs follow encoding/json's tags.
type JSONCodec struct{}

// Encode returns value as JSON, bytes as they are.
func (JSONCodec) Encode(value any) ([]byte, string, error) {
	if raw, isBytes := value.([]byte); isBytes {
		return raw, bytesType, nil
	}
	var buffer bytes.Buffer
	encoder := json.NewEncoder(&buffer)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, "", payloadError(fmt.Errorf("cannot encode %T: %w", value, err))
	}
	return bytes.TrimSuffix(buffer.Bytes(), []byte("\n")), jsonType, nil
}

// Decode puts the value in payload into what into points to.
func (JSONCodec) Decode(payload []byte, contentType string, into any) error {
	return decode(payload, contentType, into, jsonType)
}

// MsgpackCodec writes MessagePack for values and bytes as they are. Structs follow the same tags as
// for JSON.
type MsgpackCodec struct{}

// Encode returns value as MessagePack, bytes as they are.
func (MsgpackCodec) Encode(value any) ([]byte, string, error) {
	if raw, isBytes := value.([]byte); isBytes {
		return raw, bytesType, nil
	}
	var buffer bytes.Buffer
	encoder := msgpack.NewEncoder(&buffer)
	encoder.SetCustomStructTag("json")
	encoder.UseCompactInts(true)
	encoder.SetSortMapKeys(true)
	if err := encoder.Encode(value); err != nil {
		return nil, "", payloadError(fmt.Errorf("cannot encode %T: %w", value, err))
	}
	return buffer.Bytes(), msgpackType, nil
}

// Decode puts the value in payload into what into points to.
func (MsgpackCodec) Decode(payload []byte, contentType string, into any) error {
	return decode(payload, contentType, into, msgpackType)
}

// TransformingCodec is a codec whose bytes go through transforms: the first is the innermost.
type TransformingCodec struct {
	// Inner makes the bytes.
	Inner Codec
	// Transforms wrap them.
	Transforms []Transform
}

// Encode encodes with the inner codec, then wraps.
func (c TransformingCodec) Encode(value any) ([]byte, string, error) {
	payload, contentType, err := c.Inner.Encode(value)
	if err != nil {
		return nil, "", err
	}
	for _, transform := range c.Transforms {
		wrapped, isWrapped, err := transform.Wrap(payload)
		if err != nil {
			return nil, "", payloadError(err)
		}
		if isWrapped {
			payload, contentType = wrapped, contentType+transformMark+transform.Name()
		}
	}
	return payload, contentType, nil
}

// Decode unwraps what the content type names, outermost first, then decodes.
func (c TransformingCodec) Decode(payload []byte, contentType string, into any) error {
	names := strings.Split(contentType, transformMark)
	for index := len(names) - 1; index > 0; index-- {
		transform := c.find(names[index])
		if transform == nil {
			return failure(ErrPayload, "payload needs transform %q, which is not configured", names[index])
		}
		plain, err := transform.Unwrap(payload)
		if err != nil {
			return payloadError(err)
		}
		payload = plain
	}
	return c.Inner.Decode(payload, names[0], into)
}

func (c TransformingCodec) find(name string) Transform {
	for _, transform := range c.Transforms {
		if transform.Name() == name {
			return transform
		}
	}
	return nil
}

// ZlibTransform compresses payloads that are long enough to gain from it.
type ZlibTransform struct {
	// MinBytes: shorter payloads stay as they are; 1024 when zero.
	MinBytes int
	// MaxBytes is what a payload may unpack to, more is refused; 64 MiB when zero.
	MaxBytes int64
}

// Name returns "zlib".
func (ZlibTransform) Name() string { return "zlib" }

// Wrap returns the compressed bytes if they are shorter.
func (t ZlibTransform) Wrap(payload []byte) ([]byte, bool, error) {
	if len(payload) < or(t.MinBytes, 1024) {
		return nil, false, nil
	}
	var packed bytes.Buffer
	writer := zlib.NewWriter(&packed)
	if _, err := writer.Write(payload); err != nil {
		return nil, false, err
	}
	if err := writer.Close(); err != nil {
		return nil, false, err
	}
	return packed.Bytes(), packed.Len() < len(payload), nil
}

// Unwrap returns the original bytes.
func (t ZlibTransform) Unwrap(payload []byte) ([]byte, error) {
	limit := or(t.MaxBytes, 64*1024*1024)
	reader, err := zlib.NewReader(bytes.NewReader(payload))
	if err != nil {
		return nil, fmt.Errorf("payload is not zlib: %w", err)
	}
	plain, err := io.ReadAll(io.LimitReader(reader, min(limit, math.MaxInt64-1)+1))
	if err != nil {
		return nil, fmt.Errorf("payload is not zlib: %w", err)
	}
	if int64(len(plain)) > limit {
		return nil, fmt.Errorf("payload unpacks to more than %d bytes", limit)
	}
	return plain, nil
}

// payloadError makes any error of a codec one that errors.Is finds as ErrPayload.
func payloadError(err error) error {
	if errors.Is(err, ErrPayload) {
		return err
	}
	made := failure(ErrPayload, "%s", err)
	made.cause = err
	return made
}

func decode(payload []byte, contentType string, into any, ownType string) error {
	if _, name, isWrapped := strings.Cut(contentType, transformMark); isWrapped {
		return failure(ErrPayload, "payload needs transform %q, which is not configured", name)
	}
	switch into := into.(type) {
	case *[]byte:
		*into = payload
		return nil
	case *struct{}:
		return nil
	}
	if len(payload) == 0 && contentType == "" {
		return decodeNothing(into)
	}
	media, _, _ := strings.Cut(or(contentType, ownType), ";")
	switch strings.Map(lowerASCII, strings.Trim(media, " \t")) {
	case bytesType:
		wanted, isAny := into.(*any)
		if !isAny {
			return failure(ErrPayload, "payload is bytes, but %T is wanted", elem(into))
		}
		*wanted = payload
		return nil
	case jsonType:
		if !utf8.Valid(payload) { // encoding/json would replace what is not.
			return failure(ErrPayload, "payload in %s is not UTF-8", jsonType)
		}
		if string(bytes.TrimSpace(payload)) == "null" {
			return decodeNull(into)
		}
		return decoded(json.Unmarshal(payload, into), into, jsonType)
	case msgpackType:
		return decoded(decodeMsgpack(payload, into), into, msgpackType)
	}
	return failure(ErrPayload, "unknown content type %q", contentType)
}

// lowerASCII folds ASCII alone, as all SDKs do: to others a Kelvin sign is a k.
func lowerASCII(letter rune) rune {
	if 'A' <= letter && letter <= 'Z' {
		return letter + 'a' - 'A'
	}
	return letter
}

func decodeMsgpack(payload []byte, into any) error {
	if err := checkMsgpack(payload); err != nil {
		return err
	}
	decoder := msgpack.NewDecoder(bytes.NewReader(payload))
	decoder.SetCustomStructTag("json")
	return decoder.Decode(into)
}

func decoded(err error, into any, media string) error {
	if err == nil {
		return nil
	}
	made := failure(ErrPayload, "payload is no %T in %s: %s", elem(into), media, err)
	made.cause = err
	return made
}

// decodeNothing is for a task without payload: nil where that is a value, else an error.
func decodeNothing(into any) error {
	if target := reflect.ValueOf(into).Elem(); isNullable(target.Kind()) {
		target.SetZero()
		return nil
	}
	return failure(ErrPayload, "the task has no payload, but %T is wanted", elem(into))
}

// decodeNull refuses what encoding/json would silently take for a zero.
func decodeNull(into any) error {
	if own, hasOwn := into.(json.Unmarshaler); hasOwn {
		return decoded(own.UnmarshalJSON([]byte("null")), into, jsonType)
	}
	if target := reflect.ValueOf(into).Elem(); isNullable(target.Kind()) {
		target.SetZero()
		return nil
	}
	return failure(ErrPayload, "payload is null, but %T is wanted", elem(into))
}

func isNullable(kind reflect.Kind) bool {
	switch kind {
	case reflect.Interface, reflect.Map, reflect.Pointer, reflect.Slice:
		return true
	}
	return false
}

func elem(into any) any { return reflect.ValueOf(into).Elem().Interface() }
