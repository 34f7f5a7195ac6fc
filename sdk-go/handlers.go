package cronoq

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// How a handler is called and what its end means.

// handler decodes an attempt's payload and returns what is left to do with it. An error means that
// the payload is not what the handler takes.
type handler func(attempt *Attempt) (func(ctx context.Context) (any, error), error)

// typed makes a handler of a function with types of its own.
func typed[In, Out any](function func(context.Context, In) (Out, error)) handler {
	return func(attempt *Attempt) (func(context.Context) (any, error), error) {
		var input In
		if err := attempt.Decode(&input); err != nil {
			return nil, err
		}
		return func(ctx context.Context) (any, error) {
			output, err := function(ctx, input)
			return output, err
		}, nil
	}
}

// Handle makes a function the handler of a kind. The payload is decoded into an In (struct{} takes
// and ignores any payload), what it returns is encoded; its context ends when it should stop and
// leads to the [Attempt]. An error ends the attempt: [Permanent], [Cancel] and [Reject] as they say,
// anything else, panics included, as retryable.
//
// It panics when the kind has a handler already or the worker was started, as either is a mistake in
// the program.
func Handle[In, Out any](
	worker *Worker, kind string, function func(context.Context, In) (Out, error),
) {
	worker.handlers.add(kind, typed(function))
}

// HandleDefault makes a function the handler of every kind that has no other; see [Handle].
func HandleDefault[In, Out any](
	worker *Worker, function func(context.Context, In) (Out, error),
) {
	worker.handlers.addDefault(typed(function))
}

// handlerSet is the handlers of a worker, by kind.
type handlerSet struct {
	byKind   map[string]handler
	fallback handler
	isFixed  bool // The worker was started.
}

func (h *handlerSet) add(kind string, made handler) {
	if _, isTaken := h.byKind[kind]; isTaken {
		panic(fmt.Sprintf("cronoq: kind %q has a handler already", kind))
	}
	h.check()
	h.byKind[kind] = made
}

func (h *handlerSet) addDefault(made handler) {
	if h.fallback != nil {
		panic("cronoq: there is a default handler already")
	}
	h.check()
	h.fallback = made
}

func (h *handlerSet) check() {
	if h.isFixed {
		panic("cronoq: the worker was started already")
	}
}

func (h *handlerSet) isEmpty() bool { return len(h.byKind) == 0 && h.fallback == nil }

// find returns who handles a kind, nil if nobody does.
func (h *handlerSet) find(kind string) handler {
	if found, isKnown := h.byKind[kind]; isKnown {
		return found
	}
	return h.fallback
}

// kinds returns what the server may send; none means any (WP-01).
func (h *handlerSet) kinds() []string {
	if h.fallback != nil {
		return nil
	}
	var kinds []string
	for kind := range h.byKind {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

// execute runs a handler to its end, whatever that is, and says what it means (WP-17). A handler may
// end the goroutine, so what follows is told and not returned.
func execute(found handler, attempt *Attempt, interceptors []Interceptor, tell func(outcome)) {
	var how outcome = failed{message: "the handler ended its goroutine"}
	hasReturned := false
	defer func() {
		if !hasReturned {
			if thrown := recover(); thrown != nil {
				how = failed{message: fmt.Sprintf("panic: %v", thrown)}
				attempt.host.panicked(attempt, thrown, debug.Stack())
			}
			how = afterStop(attempt.run, how, nil)
		}
		tell(how)
	}()
	how = called(found, attempt, interceptors)
	hasReturned = true
}

func called(found handler, attempt *Attempt, interceptors []Interceptor) outcome {
	act, err := found(attempt)
	if err != nil { // WP-14
		return failed{message: err.Error(), isPermanent: true}
	}
	var value any
	next := func(ctx context.Context) error {
		made, err := act(ctx)
		value = made
		return err
	}
	for _, interceptor := range slices.Backward(interceptors) {
		inner := next
		next = func(ctx context.Context) error { return interceptor(ctx, attempt, inner) }
	}
	ctx := context.WithValue(attempt.run.ctx, attemptKey{}, attempt)
	if err := next(ctx); err != nil {
		return afterStop(attempt.run, outcomeOf(err), err)
	}
	if _, isNothing := value.(struct{}); isNothing {
		value = nil
	}
	output, contentType, err := attempt.host.codec().Encode(value)
	if err != nil { // WP-18
		return failed{message: fmt.Sprintf("output not encodable: %s", err), isPermanent: true}
	}
	if strings.ContainsFunc(contentType, func(letter rune) bool { return letter > 126 }) {
		// One bad report would take the whole message with it.
		return failed{message: "output not encodable: its content type is no ASCII", isPermanent: true}
	}
	return completed{output, contentType}
}

// afterStop is what a failure comes to when the handler had been told to stop (WP-24).
func afterStop(of *run, how outcome, err error) outcome {
	switch kind := of.stop(); {
	case kind == "":
		return how
	case kind == stopExpired, errors.Is(err, context.Canceled):
		return failed{message: string(kind)}
	}
	return how
}
