/**
 * Decides how tasks show in traces: a submission is a span, and each attempt a trace of its own that
 * is linked to it.
 *
 * Needs the package @opentelemetry/api, which nothing else in this one does.
 */

import {
  context,
  type Link,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
  type Tracer,
} from "@opentelemetry/api";

import type { Attempt, Interceptor } from "./attempt.js";
import { CronoqError } from "./errors.js";
import type { OnSubmit, Submission } from "./options.js";
import { VERSION } from "./version.js";

/** Where spans go. */
export interface TracingOptions {
  /** Makes the spans; the global provider's if not given. */
  readonly tracer?: Tracer | undefined;
}

/**
 * Returns the option `onSubmit` of a client that makes a span of each submission.
 *
 * Many tasks that are submitted together share one span. It is the parent of what the server records
 * of its tasks, and attempts are linked to it. A task that names a trace context keeps that; the span
 * is linked to it. Names are those of OpenTelemetry's conventions for messaging.
 */
export function submitting(options: TracingOptions = {}): OnSubmit {
  const tracer = options.tracer ?? trace.getTracer("cronoq", VERSION);
  return (submission) => {
    const attributes = {
      "messaging.operation.name": submission.operation,
      "messaging.operation.type": "send",
      "messaging.system": "cronoq",
    };
    const active = context.active();
    const settings = { attributes, kind: SpanKind.PRODUCER };
    const span = tracer.startSpan(submission.operation, settings, active);
    const carrier: Record<string, string> = {};
    propagation.inject(trace.setSpan(active, span), carrier);
    submission.traceContext = carrier;
    return (error) => {
      tellSubmission(span, submission);
      if (error !== undefined) {
        recordError(span, error);
        span.setAttribute("error.type", typeOf(error));
      }
      span.end();
    };
  };
}

/** Says what was submitted, which `submitMany` knows only at its end. */
function tellSubmission(span: Span, { operation, tasks, taskIds }: Submission): void {
  const pools = new Set(tasks.map((task) => task.pool ?? ""));
  const [pool = ""] = pools;
  if (pools.size === 1 && pool !== "") {
    span.setAttribute("messaging.destination.name", pool);
    span.updateName(`${operation} ${pool}`);
  }
  if (operation !== "submit") {
    span.setAttribute("messaging.batch.message_count", tasks.length);
    span.setAttribute("cronoq.refused_count", taskIds.filter((id) => id === 0n).length);
  } else if (taskIds[0] !== undefined) {
    span.setAttribute("messaging.message.id", taskIds[0].toString());
  }
  for (const { traceContext } of tasks) {
    const brought = linked(traceContext);
    if (brought !== undefined) {
      span.addLink(brought);
    }
  }
}

/** The span that a task's trace context names, if it names one. */
function linked(told: Readonly<Record<string, string>> | undefined): Link | undefined {
  const spanContext =
    told === undefined ? undefined : trace.getSpanContext(propagation.extract(ROOT_CONTEXT, told));
  return spanContext === undefined ? undefined : { context: spanContext };
}

/** The reason that the server gave, if it gave one. */
function typeOf(error: unknown): string {
  if (error instanceof CronoqError && error.reason !== undefined) {
    return error.reason;
  }
  return error instanceof Error ? error.name : "_OTHER";
}

function recordError(span: Span, error: unknown): void {
  const message = error instanceof Error ? error.message : String(error);
  span.recordException(error instanceof Error ? error : message);
  span.setStatus({ code: SpanStatusCode.ERROR, message });
}

/** Returns an interceptor for a worker that traces its attempts. */
export function tracing(options: TracingOptions = {}): Interceptor {
  const tracer = options.tracer ?? trace.getTracer("cronoq", VERSION);
  return async (attempt, next) => {
    const submitted = propagation.extract(ROOT_CONTEXT, attempt.traceContext);
    const link = linked(attempt.traceContext);
    const links = link === undefined ? [] : [link];
    const attributes = attributesOf(attempt);
    const settings = { attributes, kind: SpanKind.CONSUMER, links, root: true };
    return await tracer.startActiveSpan("cronoq.attempt", settings, submitted, async (span) => {
      try {
        return await next();
      } catch (error) {
        recordError(span, error);
        throw error;
      } finally {
        span.end();
      }
    });
  };
}

function attributesOf(attempt: Attempt): Record<string, string | number> {
  return {
    "cronoq.attempt": attempt.number,
    "cronoq.kind": attempt.kind,
    "cronoq.pool": attempt.pool,
    "cronoq.task_id": attempt.taskId.toString(),
  };
}

/** Returns the trace context of what runs now: the option `traceContext` of a client. */
export function currentTraceContext(): Record<string, string> {
  const carrier: Record<string, string> = {};
  propagation.inject(context.active(), carrier);
  return carrier;
}
