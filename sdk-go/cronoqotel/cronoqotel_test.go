package cronoqotel

import (
	"context"
	"maps"
	"strings"
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

// span plays a submission to the hook and returns the span that it made.
func span(
	t *testing.T, submission *cronoq.Submission, ids []uint64, err error,
) sdktrace.ReadOnlySpan {
	t.Helper()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))
	ctx, caller := provider.Tracer("test").Start(t.Context(), "caller")
	ended := Submitting(provider.Tracer("test"))(ctx, submission)
	submission.TaskIDs = ids
	ended(err)
	made := recorder.Ended()[0]
	if made.Parent().SpanID() != caller.SpanContext().SpanID() {
		t.Errorf("the span is no child of the caller's")
	}
	if made.SpanKind() != trace.SpanKindProducer {
		t.Errorf("the span is a %s", made.SpanKind())
	}
	carried := submission.TraceContext["traceparent"]
	if !strings.Contains(carried, made.SpanContext().SpanID().String()) {
		t.Errorf("tasks carry %q", carried)
	}
	return made
}

// attributes are those of a span, as texts.
func attributes(of sdktrace.ReadOnlySpan) map[string]string {
	told := map[string]string{}
	for _, pair := range of.Attributes() {
		told[string(pair.Key)] = pair.Value.Emit()
	}
	return told
}

// TestSubmitting_MakesASpanOfASubmission names pool and task, and tells how it failed.
func TestSubmitting_MakesASpanOfASubmission(t *testing.T) {
	one := &cronoq.Submission{Operation: "submit", Tasks: []cronoq.TaskSpec{{Kind: "a", Pool: "batch"}}}
	good := span(t, one, []uint64{7}, nil)
	expected := map[string]string{
		"messaging.operation.name": "submit", "messaging.operation.type": "send",
		"messaging.system": "cronoq", "messaging.destination.name": "batch",
		"messaging.message.id": "7",
	}
	if told := attributes(good); good.Name() != "submit batch" || !maps.Equal(told, expected) {
		t.Errorf("%s: %v", good.Name(), told)
	}
	bad := span(t, one, nil, &cronoq.Error{Reason: cronoq.ReasonQueueFull, Message: "full"})
	if told := attributes(bad); bad.Status().Code != codes.Error || told["error.type"] != "queue_full" {
		t.Errorf("%v: %v", bad.Status(), told)
	}
}

// TestSubmitting_SharesASpanAmongTasksSubmittedTogether counts them, and links to what they bring.
func TestSubmitting_SharesASpanAmongTasksSubmittedTogether(t *testing.T) {
	own := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
	many := &cronoq.Submission{Operation: "submit_many", Tasks: []cronoq.TaskSpec{
		{Kind: "a", Pool: "batch"}, {Kind: "b", TraceContext: own},
	}}
	made := span(t, many, []uint64{7, 0}, nil)
	told := attributes(made)
	if made.Name() != "submit_many" || told["messaging.batch.message_count"] != "2" ||
		told["cronoq.refused_count"] != "1" {
		t.Errorf("%s: %v", made.Name(), told)
	}
	links := made.Links()
	if len(links) != 1 || links[0].SpanContext.SpanID().String() != "b7ad6b7169203331" {
		t.Errorf("links are %v", links)
	}
}
