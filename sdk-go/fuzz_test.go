package cronoq

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Damaged input for everything that the SDK parses, each with a rule of its own to hold it against.
// `go test` takes the seeds, which are the vectors that all SDKs share; the campaign `parsers` fuzzes.

func readVectors[V any](t testing.TB, name string) []V {
	t.Helper()
	raw, err := os.ReadFile("../conformance/vectors/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []V `json:"vectors"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) < 100 {
		t.Fatalf("only %d vectors", len(file.Vectors))
	}
	return file.Vectors
}

// wellFormed is RR-13 as one expression; what it finds still has to be an address and a port.
var wellFormed = regexp.MustCompile(`^([A-Za-z]+)://(?:\[([0-9a-fA-F:.]+)\]|` +
	`([A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.*))(?::([0-9]*))?/?$`)

// ruledEndpoint says what a text means by the rule; empty where it is to be refused.
func ruledEndpoint(text string, ports map[string]string) (told string, isLoopback bool) {
	found := wellFormed.FindStringSubmatch(text)
	if found == nil || ports[strings.ToLower(found[1])] == "" {
		return "", false
	}
	scheme, host, port := strings.ToLower(found[1]), strings.ToLower(found[3]), ports[strings.ToLower(found[1])]
	if digits := strings.TrimLeft(found[4], "0"); found[4] != "" {
		if number, err := strconv.Atoi(digits); err != nil || len(digits) > 5 || number > 65535 {
			return "", false
		}
		port = digits
	}
	if found[2] == "" {
		isLocal := host == "localhost"
		if quad, isQuad := ruledQuad(host); isQuad {
			isLocal = quad[0] == 127
		}
		return scheme + "://" + host + ":" + port, isLocal
	}
	groups := ruledGroups(found[2])
	if groups == nil {
		return "", false
	}
	one := []uint64{0, 0, 0, 0, 0, 0, 0, 1}
	return scheme + "://[" + strings.ToLower(found[2]) + "]:" + port, reflect.DeepEqual(groups, one)
}

// ruledQuad reads four decimal numbers without zeros before them.
func ruledQuad(text string) (quad [4]uint64, isQuad bool) {
	parts := strings.Split(text, ".")
	if len(parts) != 4 {
		return quad, false
	}
	for index, part := range parts {
		number, err := strconv.ParseUint(part, 10, 8)
		if err != nil || strconv.FormatUint(number, 10) != part {
			return quad, false
		}
		quad[index] = number
	}
	return quad, true
}

// ruledGroups returns the eight groups of an IPv6 address; nil when it is none.
func ruledGroups(text string) []uint64 {
	if at := strings.LastIndex(text, ":"); strings.Contains(text, ".") {
		quad, isQuad := ruledQuad(text[at+1:])
		if !isQuad {
			return nil
		}
		text = text[:at+1] + strconv.FormatUint(quad[0]<<8|quad[1], 16) + ":" +
			strconv.FormatUint(quad[2]<<8|quad[3], 16)
	}
	head, tail, hasGap := strings.Cut(text, "::")
	left, isLeft := hexGroups(head)
	right, isRight := hexGroups(tail)
	missing := 8 - len(left) - len(right)
	if !isLeft || !isRight || hasGap != (missing > 0) || missing < 0 {
		return nil
	}
	return slices.Concat(left, make([]uint64, missing), right)
}

func hexGroups(text string) (groups []uint64, isWell bool) {
	if text == "" {
		return nil, true
	}
	for part := range strings.SplitSeq(text, ":") {
		number, err := strconv.ParseUint(part, 16, 16)
		if err != nil || len(part) > 4 {
			return nil, false
		}
		groups = append(groups, number)
	}
	return groups, true
}

// FuzzEndpoint holds addresses against the rule and against what they are read as once more.
// Covers R15.
func FuzzEndpoint(f *testing.F) {
	for _, vector := range readVectors[endpointVector](f, "endpoints.json") {
		f.Add(vector.Text)
	}
	redirects := map[string]string{"http": "80", "https": "443"}
	configured := map[string]string{"http": "7070", "https": "7070"}
	f.Fuzz(func(t *testing.T, text string) {
		told, isLoopback := ruledEndpoint(text, redirects)
		got, err := parseRedirect(text)
		expectRuled(t, "redirect "+strconv.Quote(text), told, got, err)
		if err == nil {
			if got.isLoopback() != isLoopback {
				t.Fatalf("%q: loopback is %v", text, got.isLoopback())
			}
			again, err := parseRedirect(got.String())
			if err != nil || again != got {
				t.Fatalf("%q is read as %s, and that as %s, %v", text, got, again, err)
			}
		}
		for _, hasTLS := range []bool{false, true} {
			whole := text
			if !strings.Contains(text, "://") {
				whole = map[bool]string{false: "http://", true: "https://"}[hasTLS] + text
			}
			told, _ = ruledEndpoint(whole, configured)
			if hasTLS && !strings.HasPrefix(told, "https") {
				told = ""
			}
			got, err = parseConfigured(text, hasTLS)
			expectRuled(t, "configured "+strconv.Quote(text), told, got, err)
		}
	})
}

func expectRuled(t *testing.T, place, told string, got endpoint, err error) {
	t.Helper()
	if (err == nil) != (told != "") || err == nil && got.String() != told {
		t.Fatalf("%s is read as %s, %v; expected %q", place, got, err, told)
	}
}

// payloadVector is one payload of conformance/vectors/payloads.json.
type payloadVector struct {
	Codec       string `json:"codec"`
	ContentType string `json:"content_type"`
	Payload     []byte `json:"payload"`
	Read        string `json:"read"`
	Value       any    `json:"value"`
}

const packedMax = 64

func packing(isMsgpack bool) TransformingCodec {
	var inner Codec = JSONCodec{}
	if isMsgpack {
		inner = MsgpackCodec{}
	}
	return TransformingCodec{Inner: inner, Transforms: []Transform{ZlibTransform{MinBytes: 1, MaxBytes: packedMax}}}
}

// TestPayload_IsReadAsAllSDKsDo reads the shared payloads.
// Covers R18.
func TestPayload_IsReadAsAllSDKsDo(t *testing.T) {
	for _, vector := range readVectors[payloadVector](t, "payloads.json") {
		var value any
		err := packing(vector.Codec == "msgpack").Decode(vector.Payload, vector.ContentType, &value)
		if (err != nil) != (vector.Read == "refused") {
			t.Errorf("%q as %q: %v, %v; expected %s", vector.Payload, vector.ContentType, value, err, vector.Read)
		}
		if vector.Read == "value" || vector.Read == "bytes" {
			if said := throughJSON(t, value); !reflect.DeepEqual(said, vector.Value) {
				t.Errorf("%q as %q: %v, expected %v", vector.Payload, vector.ContentType, said, vector.Value)
			}
		}
	}
}

func throughJSON(t *testing.T, value any) (said any) {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil || json.Unmarshal(text, &said) != nil {
		t.Fatal(err)
	}
	return said
}

// FuzzPayload holds payloads against what may be read at all, and values against what they are
// written as.
// Covers R18.
func FuzzPayload(f *testing.F) {
	for _, vector := range readVectors[payloadVector](f, "payloads.json") {
		f.Add(vector.Payload, vector.ContentType, vector.Codec == "msgpack")
	}
	known := regexp.MustCompile(`^[ \t]*(?i:application/(?:json|octet-stream|msgpac[kK]))[ \t]*(;|$)`)
	f.Fuzz(func(t *testing.T, payload []byte, contentType string, isMsgpack bool) {
		codec := packing(isMsgpack)
		var value any
		err := codec.Decode(payload, contentType, &value)
		plain := contentType == "application/json" || contentType == "" && !isMsgpack && len(payload) > 0
		switch {
		case err != nil && !errors.Is(err, ErrPayload):
			t.Fatalf("%q as %q: %v", payload, contentType, err)
		case err == nil && contentType != "" && contentType[0] != ';' && !known.MatchString(contentType):
			t.Fatalf("%q is taken for a content type", contentType)
		case plain && err == nil && !(json.Valid(payload) && utf8.Valid(payload)):
			t.Fatalf("%q is taken for JSON", payload)
		case plain && err != nil && json.Valid(payload) && utf8.Valid(payload) && !hasLargeNumber(payload):
			t.Fatalf("%q is JSON: %v", payload, err)
		case err == nil:
			expectRoundTrip(t, isMsgpack, value)
		}
		expectPacked(t, payload)
	})
}

// hasLargeNumber is true where a number may lie beyond what a float can hold.
func hasLargeNumber(text []byte) bool { return len(text) > 300 || bytes.ContainsAny(text, "eE") }

// expectRoundTrip writes a value, and what is read from that: both must be the same bytes.
func expectRoundTrip(t *testing.T, isMsgpack bool, value any) {
	t.Helper()
	codec := map[bool]Codec{false: JSONCodec{}, true: MsgpackCodec{}}[isMsgpack]
	first, media, err := codec.Encode(value)
	if err != nil {
		return // JSON has no form for some values of MessagePack.
	}
	var again any
	if err := codec.Decode(first, media, &again); err != nil {
		t.Fatalf("%v is written as %q, which is refused: %v", value, first, err)
	}
	if second, _, err := codec.Encode(again); err != nil || !bytes.Equal(first, second) {
		t.Fatalf("%v is written as %q, then as %q, %v", value, first, second, err)
	}
}

// expectPacked takes bytes through zlib, and refuses them cut off, or one byte over the limit.
func expectPacked(t *testing.T, payload []byte) {
	t.Helper()
	zip := ZlibTransform{MinBytes: 1, MaxBytes: packedMax}
	if plain, err := zip.Unwrap(payload); err == nil && len(plain) > packedMax {
		t.Fatalf("%q unpacks to %d bytes", payload, len(plain))
	}
	packed, isPacked, err := zip.Wrap(payload)
	if err != nil {
		t.Fatal(err)
	}
	if !isPacked {
		return
	}
	plain, err := zip.Unwrap(packed)
	if (err == nil) != (len(payload) <= packedMax) || err == nil && !bytes.Equal(plain, payload) {
		t.Fatalf("%q comes back as %q, %v", payload, plain, err)
	}
	if _, err := zip.Unwrap(packed[:len(packed)-1]); err == nil {
		t.Fatalf("%q is taken although it is cut off", packed)
	}
}

// TestMsgpack_RefusesWhatIsTooDeep packs brackets that would fill any stack.
// Covers R18.
func TestMsgpack_RefusesWhatIsTooDeep(t *testing.T) {
	for _, head := range []string{"\x91", "\x81\xa1a", "\x81"} {
		var value any
		deep := []byte(strings.Repeat(head, 20_000_000) + "\xc0\xc0")
		if err := (MsgpackCodec{}).Decode(deep, msgpackType, &value); !errors.Is(err, ErrPayload) {
			t.Errorf("got %v", err)
		}
	}
}

// errorVector is one status of conformance/vectors/errors.json.
type errorVector struct {
	Status   []byte            `json:"status"`
	Place    string            `json:"place"`
	Family   string            `json:"family"`
	Reason   *ErrorReason      `json:"reason"`
	Details  map[string]string `json:"details"`
	Executed bool              `json:"executed"`
}

var families = map[string]error{
	"InvalidRequest": ErrInvalidRequest, "Unauthenticated": ErrUnauthenticated,
	"PermissionDenied": ErrPermissionDenied, "NotFound": ErrNotFound, "Conflict": ErrConflict,
	"Exhausted": ErrExhausted, "Unavailable": ErrUnavailable, "Deadline": ErrDeadline,
	"WatchLost": ErrWatchLost, "Unsupported": ErrUnsupported, "Internal": ErrInternal,
}

// TestError_IsReadAsAllSDKsDo reads the shared statuses.
func TestError_IsReadAsAllSDKsDo(t *testing.T) {
	for _, vector := range readVectors[errorVector](t, "errors.json") {
		status := new(rpcstatus.Status)
		if err := proto.Unmarshal(vector.Status, status); err != nil {
			t.Fatal(err)
		}
		got := statusError(status, vector.Place)
		if !errors.Is(got, families[vector.Family]) || got.NotExecuted == vector.Executed {
			t.Errorf("%v: got %v (not executed: %v)", vector, got.kind, got.NotExecuted)
		}
		// A reason that this version does not know is told as the word that it is.
		if _, isKnown := byReason[got.Reason]; isKnown != (vector.Reason != nil) || isKnown && got.Reason != *vector.Reason {
			t.Errorf("%v: got reason %q", vector, got.Reason)
		}
		if !maps.Equal(got.Details, vector.Details) {
			t.Errorf("%v: got %v", vector, got.Details)
		}
	}
}

// FuzzError holds errors against the status that they are made from; a detail that is broken says
// nothing, and hides nothing.
func FuzzError(f *testing.F) {
	for _, vector := range readVectors[errorVector](f, "errors.json") {
		word := "ERROR_REASON_" + strings.ToUpper(string(*or(vector.Reason, new(ErrorReason("x")))))
		f.Add(int32(vector.Status[1]), "tasks[3].key: no", word, "field", "tasks[3].key", vector.Place, vector.Status)
	}
	f.Fuzz(func(t *testing.T, code int32, message, word, name, text, place string, broken []byte) {
		info := &errdetails.ErrorInfo{Domain: errorDomain, Reason: word, Metadata: map[string]string{name: text}}
		value, err := proto.Marshal(info)
		if err != nil {
			return // Not text: no status can carry it.
		}
		typeURL := "type.googleapis.com/google.rpc.ErrorInfo"
		status := &rpcstatus.Status{Code: code, Message: message, Details: []*anypb.Any{
			{TypeUrl: typeURL, Value: broken}, {TypeUrl: "type.googleapis.com/a.B", Value: value},
		}}
		if another := new(errdetails.ErrorInfo); proto.Unmarshal(broken, another) == nil && another.Domain == errorDomain {
			status.Details = status.Details[1:]
		}
		status.Details = append(status.Details, &anypb.Any{TypeUrl: typeURL, Value: value})
		got := statusError(status, place)
		reason := ErrorReason(strings.TrimPrefix(strings.ToLower(word), "error_reason_"))
		kind, isKnown := byReason[reason]
		if !isKnown {
			kind, isKnown = byCode[codes.Code(uint32(code))]
		}
		if !isKnown {
			kind = ErrInternal
		}
		if !errors.Is(got, kind) || got.Reason != reason {
			t.Fatalf("got %v for %q, code %d", got.kind, word, code)
		}
		if got.NotExecuted != (reason == ReasonNotLeader || reason == ReasonStopping) {
			t.Fatalf("got not executed %v for %q", got.NotExecuted, word)
		}
		expected := map[string]string{name: strings.TrimPrefix(text, place)}
		if place != "" {
			delete(expected, "index")
		}
		if !maps.Equal(got.Details, expected) {
			t.Fatalf("got details %q, expected %q", got.Details, expected)
		}
		if left := strings.TrimPrefix(message, place); left != "" && got.Message != left || got.Error() == "" {
			t.Fatalf("got message %q for %q", got.Message, message)
		}
	})
}

// FuzzTime holds durations and instants of the wire against exact arithmetic.
func FuzzTime(f *testing.F) {
	for _, seconds := range []float64{0, math.Copysign(0, -1), 1.5, -1, 1e-9, 9.3e9, 1e300, math.NaN(), math.Inf(1), math.Inf(-1)} {
		f.Add(seconds, int64(seconds))
	}
	f.Fuzz(func(t *testing.T, seconds float64, unixNs int64) {
		got := durationOf(seconds)
		fits := seconds >= 0 && seconds < 9.2e9
		switch {
		case got < 0, math.IsNaN(seconds) && got != 0, seconds > 9.3e9 && got != 0:
			t.Fatalf("%v s is read as %v", seconds, got)
		case fits && math.Abs(got.Seconds()-seconds) > 1e-9+seconds*1e-15:
			t.Fatalf("%v s is read as %v", seconds, got)
		case fits && durationOf(secondsOf(got))-got > got/1e15+1, fits && got-durationOf(secondsOf(got)) > got/1e15+1:
			t.Fatalf("%v comes back as %v", got, durationOf(secondsOf(got)))
		}
		if at := instantOf(unixNs); at.UnixNano() != unixNs || at.Location() != time.UTC {
			t.Fatalf("%d is read as %v", unixNs, at)
		}
	})
}
