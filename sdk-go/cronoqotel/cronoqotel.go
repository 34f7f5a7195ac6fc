// Package cronoqotel puts tasks into OpenTelemetry traces. It is a module of its own, so that the SDK
// depends on no tracing library.
//
//	cronoq.ClientOptions{OnSubmit: cronoqotel.Submitting(nil)}
//	cronoq.ClientOptions{TraceContext: cronoqotel.CurrentTraceContext} // Without spans of its own.
//	cronoq.WorkerOptions{Interceptors: []cronoq.Interceptor{cronoqotel.Tracing(nil)}}
package cronoqotel

import (
	"context"
	"errors"
	"fmt"
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

// Submitting returns the option OnSubmit of a client that makes a span of each submission; a nil tracer
// is that of the global provider.
//
// Many tasks that are submitted together share one span. It is the parent of what the server records
// of its tasks, and attempts are linked to it. A task that names a trace context keeps that; the span
// is linked to it. Names are those of OpenTelemetry's conventions for messaging.
func Submitting(tracer trace.Tracer) func(context.Context, *cronoq.Submission) func(error) {
	return func(ctx context.Context, submission *cronoq.Submission) func(error) {
		inner, span := orGlobal(tracer).Start(ctx, nameOf(submission),
			trace.WithSpanKind(trace.SpanKindProducer),
			trace.WithAttributes(attributesOf(submission)...),
			trace.WithLinks(linksOf(submission)...),
		)
		submission.TraceContext = CurrentTraceContext(inner)
		return func(err error) {
			if submission.Operation != single {
				refused := 0
				for _, id := range submission.TaskIDs {
					if id == 0 {
						refused++
					}
				}
				span.SetAttributes(attribute.Int("cronoq.refused_count", refused))
			} else if err == nil {
				id := strconv.FormatUint(submission.TaskIDs[0], 10)
				span.SetAttributes(attribute.String("messaging.message.id", id))
			}
			if err != nil {
				span.RecordError(err)
				span.SetAttributes(attribute.String("error.type", typeOf(err)))
				span.SetStatus(codes.Error, err.Error())
			}
			span.End()
		}
	}
}

// single is the operation that submits one task.
const single = "submit"

func orGlobal(tracer trace.Tracer) trace.Tracer {
	if tracer != nil {
		return tracer
	}
	return otel.Tracer("cronoq", trace.WithInstrumentationVersion(cronoq.Version))
}

// poolOf is the pool of all tasks of a submission; empty if they name none or several.
func poolOf(submission *cronoq.Submission) string {
	pool := ""
	for index, task := range submission.Tasks {
		if index > 0 && task.Pool != pool {
			return ""
		}
		pool = task.Pool
	}
	return pool
}

func nameOf(submission *cronoq.Submission) string {
	if pool := poolOf(submission); pool != "" {
		return submission.Operation + " " + pool
	}
	return submission.Operation
}

func attributesOf(submission *cronoq.Submission) []attribute.KeyValue {
	attributes := []attribute.KeyValue{
		attribute.String("messaging.operation.name", submission.Operation),
		attribute.String("messaging.operation.type", "send"),
		attribute.String("messaging.system", "cronoq"),
	}
	if pool := poolOf(submission); pool != "" {
		attributes = append(attributes, attribute.String("messaging.destination.name", pool))
	}
	if submission.Operation != single {
		attributes = append(attributes,
			attribute.Int("messaging.batch.message_count", len(submission.Tasks)))
	}
	return attributes
}

// linksOf leads to what tasks bring with them.
func linksOf(submission *cronoq.Submission) []trace.Link {
	var links []trace.Link
	for _, task := range submission.Tasks {
		if task.TraceContext == nil {
			continue
		}
		brought := propagator.Extract(context.Background(), propagation.MapCarrier(task.TraceContext))
		if from := trace.SpanContextFromContext(brought); from.IsValid() {
			links = append(links, trace.Link{SpanContext: from})
		}
	}
	return links
}

// typeOf is the reason that the server gave, if it gave one.
func typeOf(err error) string {
	var told *cronoq.Error
	if errors.As(err, &told) && told.Reason != "" {
		return string(told.Reason)
	}
	return fmt.Sprintf("%T", err)
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
		inner, span := orGlobal(tracer).Start(ctx, "cronoq.attempt", options...)
		defer span.End() // Records a panic that passes.
		if err = next(inner); err != nil {
			span.RecordError(err)
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}
