package cronoq

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// Which calls are made again, when, and for how long. A call is repeated only when nobody could serve
// it: always when nothing was executed, else only if repeating it changes nothing. Delays grow with
// full jitter; the deadline covers all tries together.

// lastTry: a call with less time left than this is not made again.
const lastTry = 10 * time.Millisecond

// notLeaderFailures: as if so many calls had failed in a row, at most, when the answer was that
// somebody else leads or will. Where nothing was executed nothing is overloaded, and the leader is one
// connection away.
const notLeaderFailures = 1

// delays are those of one row of failures: full jitter, growing to a bound.
type delays struct {
	bounds   Backoff
	failures int
}

// next is the delay after a call that failed with err, if it did.
func (d *delays) next(err error) time.Duration {
	if errors.Is(err, ErrNotLeader) || errors.Is(err, ErrStopping) {
		d.failures = min(d.failures, notLeaderFailures)
	}
	bound := backoffBound(d.bounds.Initial, d.bounds.Maximum, d.failures)
	d.failures++
	return time.Duration(rand.Float64() * float64(bound))
}

func (d *delays) reset() { d.failures = 0 }

// caller makes single calls for a client, with deadline and repetition.
type caller struct {
	options    ClientOptions
	connection connectOptions
	way        *connection
	tasks      pb.TasksClient
	admin      pb.AdminClient

	// life ends when the client is closed.
	life context.Context
	end  context.CancelFunc
	// running counts what the client does in the background.
	running sync.WaitGroup
	mu      sync.Mutex // Held to begin something, and to end the life that allows it.
}

func newCaller(options ClientOptions, connection connectOptions) (*caller, error) {
	way, err := newConnection(connection)
	if err != nil {
		return nil, fmt.Errorf("cronoq: %w", err)
	}
	life, end := context.WithCancel(context.Background())
	return &caller{
		options: options, connection: connection, way: way,
		tasks: pb.NewTasksClient(way), admin: pb.NewAdminClient(way), life: life, end: end,
	}, nil
}

func (c *caller) isClosed() bool { return c.life.Err() != nil }

// spawn does something in the background, unless the client is closed.
func (c *caller) spawn(work func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.isClosed() {
		c.running.Go(work)
	}
}

// close ends all calls and what goes on in the background.
func (c *caller) close() error {
	c.mu.Lock()
	isFirst := !c.isClosed()
	c.end()
	c.mu.Unlock()
	if !isFirst {
		return nil
	}
	err := c.way.close()
	c.running.Wait()
	return err
}

// within gives a context the client's deadline, unless it has its own.
func (c *caller) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, hasDeadline := ctx.Deadline(); hasDeadline {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.options.Deadline)
}

// pause waits; it is false if the context or the client ended first.
func (c *caller) pause(ctx context.Context, delay time.Duration) bool {
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-c.life.Done():
	}
	return false
}

func (c *caller) newDelays() *delays { return &delays{bounds: c.connection.backoff} }

func mayRepeat(err *Error, isIdempotent bool) bool {
	return errors.Is(err, ErrUnavailable) && (isIdempotent || err.NotExecuted)
}

type unary[Request, Response any] func(
	context.Context, *Request, ...grpc.CallOption,
) (*Response, error)

// try makes one call.
func try[Request, Response any](
	ctx context.Context, c *caller, method unary[Request, Response], request *Request,
) (*Response, *Error) {
	var header, trailer metadata.MD
	answer, err := method(withToken(ctx, c.connection.token), request,
		grpc.Header(&header), grpc.Trailer(&trailer))
	if err == nil {
		return answer, nil
	}
	if c.isClosed() {
		return nil, failure(ErrClosed, "the client is closed")
	}
	return nil, callError(err, header, trailer)
}

// call makes a call, again if that is safe, until its deadline.
func call[Request, Response any](
	ctx context.Context, c *caller, name string, method unary[Request, Response],
	request *Request, isIdempotent bool,
) (*Response, error) {
	ctx, cancel := c.within(ctx)
	defer cancel()
	series := c.newDelays()
	var trouble *Error
	for {
		if c.isClosed() {
			return nil, failure(ErrClosed, "the client is closed")
		}
		answer, err := try(ctx, c, method, request)
		if err == nil {
			return answer, nil
		}
		if ctx.Err() != nil || (trouble != nil && errors.Is(err, ErrDeadline)) {
			return nil, outOfTime(ctx, name, trouble)
		}
		deadline, _ := ctx.Deadline()
		left := time.Until(deadline)
		if !mayRepeat(err, isIdempotent) || left < lastTry {
			return nil, err
		}
		trouble = err
		// Near its end the delays shrink, so that the deadline is used up.
		if !c.pause(ctx, min(series.next(err), left/2)) && ctx.Err() != nil {
			return nil, outOfTime(ctx, name, trouble)
		}
	}
}

// outOfTime says that the caller gave up or the deadline passed, and what stood in the way.
func outOfTime(ctx context.Context, name string, trouble *Error) *Error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return &Error{Message: name + ": the caller gave up", kind: context.Canceled, cause: context.Cause(ctx)}
	}
	if trouble == nil {
		return failure(ErrDeadline, "%s: the deadline passed", name)
	}
	made := failure(ErrUnavailable, "%s: no server answered before the deadline: %s",
		name, trouble.Message)
	made.Reason = trouble.Reason
	made.cause = trouble
	return made
}
