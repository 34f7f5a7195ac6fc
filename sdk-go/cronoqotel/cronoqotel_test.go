package cronoqotel

import (
	"context"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/cronoq/cronoq/sdk-go"
)

// TestTracing_LinksAttemptsToTheirSubmitter takes the context of a submission to the span of an
// attempt.
func TestTracing_LinksAttemptsToTheirSubmitter(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	tracer := provider.Tracer("test")
	ctx, submitting := tracer.Start(t.Context(), "caller")
	carried := CurrentTraceContext(ctx)
	submitting.End()
	if carried["traceparent"] == "" {
		t.Fatalf("nothing is carried: %v", carried)
	}
	fake := cronoq.FakeAttempt{
		TraceContext: carried, Interceptors: []cronoq.Interceptor{Tracing(tracer)},
	}
	var inside trace.SpanContext
	handle := func(ctx context.Context, _ struct{}) (any, error) {
		inside = trace.SpanContextFromContext(ctx)
		return nil, cronoq.Permanent("no")
	}
	outcome, err := cronoq.TryHandler(t.Context(), handle, nil, fake)
	if err != nil {
		t.Fatal(err)
	}
	if !outcome.IsPermanent {
		t.Fatalf("the handler's end was lost: %+v", outcome)
	}
	spans := recorder.Ended()
	span := spans[len(spans)-1]
	if span.SpanContext().SpanID() != inside.SpanID() || span.Parent().IsValid() {
		t.Errorf("the span is not the root that the handler sees")
	}
	links := span.Links()
	if len(links) != 1 || links[0].SpanContext.TraceID() != submitting.SpanContext().TraceID() {
		t.Errorf("links are %v", links)
	}
	if span.Status().Code != codes.Error || len(span.Events()) != 1 {
		t.Errorf("the error is not recorded: %v, %v", span.Status(), span.Events())
	}
}

// TestCurrentTraceContext_IsEmptyOutsideOfAny: no span, nothing to carry.
func TestCurrentTraceContext_IsEmptyOutsideOfAny(t *testing.T) {
	if carried := CurrentTraceContext(t.Context()); len(carried) != 0 {
		t.Errorf("carried %v", carried)
	}
}
