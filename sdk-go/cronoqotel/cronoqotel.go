// Package cronoqotel puts tasks into OpenTelemetry traces. It is a module of its own, so that the SDK
// depends on no tracing library.
//
//	cronoq.ClientOptions{TraceContext: cronoqotel.CurrentTraceContext}
//	cronoq.WorkerOptions{Interceptors: []cronoq.Interceptor{cronoqotel.Tracing(nil)}}
package cronoqotel

import (
	"context"
	"strconv"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/cronoq/cronoq/sdk-go"
)

// The form in which a trace context travels with a task, whatever the program has set for its own.
var propagator = propagation.NewCompositeTextMapPropagator(
	propagation.TraceContext{}, propagation.Baggage{},
)

// CurrentTraceContext returns the trace context of what runs now: for ClientOptions.TraceContext.
func CurrentTraceContext(ctx context.Context) map[string]string {
	carrier := propagation.MapCarrier{}
	propagator.Inject(ctx, carrier)
	return carrier
}

// Tracing returns an interceptor for a worker that makes a span of each attempt; a nil tracer is that
// of the global provider.
//
// The span is the root of a trace of its own, since an attempt may run long after its submitter's
// trace has ended, and is linked to the span that submitted the task. What a handler returns as error
// is recorded, panics too.
func Tracing(tracer trace.Tracer) cronoq.Interceptor {
	return func(
		ctx context.Context, attempt *cronoq.Attempt, next func(context.Context) error,
	) (err error) {
		used := tracer
		if used == nil {
			used = otel.Tracer("cronoq", trace.WithInstrumentationVersion(cronoq.Version))
		}
		submitted := propagator.Extract(ctx, propagation.MapCarrier(attempt.TraceContext()))
		options := []trace.SpanStartOption{
			trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindConsumer),
			trace.WithAttributes(
				attribute.Int("cronoq.attempt", attempt.Number()),
				attribute.String("cronoq.kind", attempt.Kind()),
				attribute.String("cronoq.pool", attempt.Pool()),
				attribute.String("cronoq.task_id", strconv.FormatUint(attempt.TaskID(), 10)),
			),
		}
		if from := trace.SpanContextFromContext(submitted); from.IsValid() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: from}))
		}
		inner, span := used.Start(ctx, "cronoq.attempt", options...)
		defer span.End() // Records a panic that passes.
		if err = next(inner); err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}
