/**
 * Decides how tasks show in traces: each attempt is a trace of its own, linked to the submitter's.
 *
 * Needs the package @opentelemetry/api, which nothing else in this one does.
 */

import {
  context,
  type Link,
  propagation,
  ROOT_CONTEXT,
  SpanKind,
  SpanStatusCode,
  trace,
  type Tracer,
} from "@opentelemetry/api";

import type { Attempt, Interceptor } from "./attempt.js";
import { VERSION } from "./version.js";

/** Where spans go. */
export interface TracingOptions {
  /** Makes the spans; the global provider's if not given. */
  readonly tracer?: Tracer | undefined;
}

/** Returns an interceptor for a worker that traces its attempts. */
export function tracing(options: TracingOptions = {}): Interceptor {
  const tracer = options.tracer ?? trace.getTracer("cronoq", VERSION);
  return async (attempt, next) => {
    const submitted = propagation.extract(ROOT_CONTEXT, attempt.traceContext);
    const spanContext = trace.getSpanContext(submitted);
    const links: Link[] = spanContext === undefined ? [] : [{ context: spanContext }];
    const attributes = attributesOf(attempt);
    const settings = { attributes, kind: SpanKind.CONSUMER, links, root: true };
    return await tracer.startActiveSpan("cronoq.attempt", settings, submitted, async (span) => {
      try {
        return await next();
      } catch (error) {
        const message = error instanceof Error ? error.message : String(error);
        span.recordException(error instanceof Error ? error : message);
        span.setStatus({ code: SpanStatusCode.ERROR, message });
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
