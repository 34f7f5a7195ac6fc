package cronoq

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

type order struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// TestCodecs_ReadWhatTheyWrite takes values through every codec.
func TestCodecs_ReadWhatTheyWrite(t *testing.T) {
	large := strings.Repeat("payload ", 1000)
	packing := TransformingCodec{Inner: JSONCodec{}, Transforms: []Transform{ZlibTransform{}}}
	for _, codec := range []Codec{JSONCodec{}, MsgpackCodec{}, packing} {
		for _, value := range []any{"<ü>", 5, order{"ann", 995}, []int{1, 2}, []byte("\x00\xff"), large} {
			payload, contentType, err := codec.Encode(value)
			if err != nil {
				t.Fatal(err)
			}
			into := reflect.New(reflect.TypeOf(value))
			if err := codec.Decode(payload, contentType, into.Interface()); err != nil {
				t.Fatalf("%T: %v", codec, err)
			}
			if got := into.Elem().Interface(); !reflect.DeepEqual(got, value) {
				t.Errorf("%T: expected %v, got %v", codec, value, got)
			}
		}
	}
	payload, contentType, err := packing.Encode(large)
	if err != nil || contentType != "application/json;transform=zlib" || len(payload) > 200 {
		t.Errorf("%d bytes of %q, %v", len(payload), contentType, err)
	}
	if payload, _, _ := (JSONCodec{}).Encode("<&>"); string(payload) != `"<&>"` {
		t.Errorf("got %s", payload)
	}
	// Any codec of ours reads the others' media.
	packed, media, err := MsgpackCodec{}.Encode(order{"bob", 1})
	var got order
	if err != nil || (JSONCodec{}).Decode(packed, media, &got) != nil || got.Customer != "bob" {
		t.Errorf("got %+v, %v", got, err)
	}
}

// TestCodecs_RefuseWhatDoesNotFit decodes bytes that are not what they say.
// Covers R18.
func TestCodecs_RefuseWhatDoesNotFit(t *testing.T) {
	packing := TransformingCodec{
		Inner: JSONCodec{}, Transforms: []Transform{ZlibTransform{MaxBytes: 10, MinBytes: 1}},
	}
	bomb, bombType, err := packing.Encode(strings.Repeat("a", 1000))
	if err != nil {
		t.Fatal(err)
	}
	for name, each := range map[string]struct {
		codec       Codec
		payload     string
		contentType string
		into        any
	}{
		"wrong type":        {JSONCodec{}, `5`, jsonType, new(string)},
		"null":              {JSONCodec{}, ` null `, jsonType, new(int)},
		"nothing":           {JSONCodec{}, ``, ``, new(int)},
		"no JSON":           {JSONCodec{}, `{`, ``, new(any)},
		"two values":        {MsgpackCodec{}, "\x01\x01", msgpackType, new(int)},
		"bytes":             {JSONCodec{}, `x`, bytesType, new(string)},
		"unknown media":     {JSONCodec{}, `x`, `image/png`, new(any)},
		"unknown transform": {packing, `x`, jsonType + transformMark + "aes", new(any)},
		"no zlib":           {packing, `x`, jsonType + transformMark + "zlib", new(any)},
		"cut off":           {packing, string(bomb[:20]), bombType, new(any)},
		"bomb":              {packing, string(bomb), bombType, new(any)},
	} {
		if err := each.codec.Decode([]byte(each.payload), each.contentType, each.into); !errors.Is(err, ErrPayload) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, _, err := (JSONCodec{}).Encode(make(chan int)); !errors.Is(err, ErrPayload) {
		t.Errorf("got %v", err)
	}
	nothing := any(5)
	if err := (JSONCodec{}).Decode(nil, "", &nothing); err != nil || nothing != nil {
		t.Errorf("got %v, %v", nothing, err)
	}
}

// TestTryHandler_RunsAHandlerAsAWorkerWould shows what tests of handlers see.
func TestTryHandler_RunsAHandlerAsAWorkerWould(t *testing.T) {
	var order []string
	wrap := func(name string) Interceptor {
		return func(ctx context.Context, _ *Attempt, next func(context.Context) error) error {
			order = append(order, name)
			return next(ctx)
		}
	}
	var heard Progress
	outcome, err := TryHandler(within(t), func(ctx context.Context, name string) (string, error) {
		attempt := AttemptFrom(ctx)
		var output int
		if err := attempt.Output(ctx, 7, &output); err != nil {
			return "", err
		}
		if attempt.Progress(bytes.Repeat([]byte("x"), 1025), nil) == nil ||
			attempt.Progress(nil, new(1.5)) == nil {
			return "", errors.New("took too much")
		}
		return name + attempt.Tags()["tag"], attempt.Progress([]byte("half"), new(0.5))
	}, "hello ", FakeAttempt{
		Tags: map[string]string{"tag": "world"}, Outputs: map[uint64]any{7: 42},
		OnProgress: func(told Progress) { heard = told }, Interceptors: []Interceptor{wrap("a"), wrap("b")},
	})
	var text string
	if err != nil || outcome.Decode(&text) != nil || text != "hello world" {
		t.Errorf("got %+v, %v", outcome, err)
	}
	if string(heard.Data) != "half" || strings.Join(order, "") != "ab" {
		t.Errorf("heard %+v, %v", heard, order)
	}
	outcome, err = TryHandler(within(t), func(context.Context, struct{}) (struct{}, error) {
		return struct{}{}, RetryAfter(-time.Second, "later")
	}, nil, FakeAttempt{})
	if err != nil || outcome.Failure != "later" || *outcome.RetryAfter != 0 || outcome.Decode(&text) == nil {
		t.Errorf("got %+v, %v", outcome, err)
	}
	stopped, cancel := context.WithCancel(within(t))
	cancel()
	outcome, err = TryHandler(stopped, func(ctx context.Context, _ struct{}) (string, error) {
		<-ctx.Done()
		return "", context.Cause(ctx)
	}, nil, FakeAttempt{})
	if err != nil || outcome.Failure != string(stopAborted) {
		t.Errorf("got %+v, %v", outcome, err)
	}
}
