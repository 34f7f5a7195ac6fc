package cronoq

import (
	"context"
	"errors"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// How concurrent waits share streams. Waits that begin together go out as one WaitMany stream. Few
// streams are open at a time: when all are in use, new waits gather for a moment and then join the
// smallest one, which is opened anew. Targets are ids, since answers carry ids only. Waits change
// nothing, so a stream that ends or breaks is opened again for what is still unanswered, in slices
// that the server allows.

const (
	waitStreamsMax   = 4
	targetsPerStream = 10_000
	// gatherTime is how long new waits gather while all streams are in use.
	gatherTime = 5 * time.Millisecond
	// The server ends a slice by itself; the call's own limit only guards against one that does not.
	sliceRoom = 30 * time.Second
	// singleWaitsMax bounds the calls toward a server that has no shared waits.
	singleWaitsMax = 256
)

// waiter is one caller that waits for a task.
type waiter struct {
	done   chan struct{}
	result TaskResult
	err    error
}

// waitStream is one open stream and what it still owes.
type waitStream struct {
	targets    map[uint64]struct{}
	cancel     context.CancelFunc
	isReplaced bool
}

// sharedWaits joins the waits of one client into streams.
type sharedWaits struct {
	caller  *caller
	singles chan struct{}

	mu          sync.Mutex
	waiting     map[uint64][]*waiter
	fresh       map[uint64]struct{}
	streams     map[*waitStream]struct{}
	isScheduled bool
	gathering   *time.Timer
	isOld       bool // The server has no WaitMany.
}

func newSharedWaits(c *caller) *sharedWaits {
	return &sharedWaits{
		caller: c, singles: make(chan struct{}, singleWaitsMax),
		waiting: map[uint64][]*waiter{}, fresh: map[uint64]struct{}{},
		streams: map[*waitStream]struct{}{},
	}
}

// begin starts a wait for a task id.
func (w *sharedWaits) begin(target uint64) *waiter {
	made := &waiter{done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	already := w.waiting[target]
	w.waiting[target] = append(already, made)
	if len(already) > 0 {
		return made
	}
	w.fresh[target] = struct{}{}
	if !w.isScheduled && !w.caller.isClosed() {
		w.isScheduled = true
		w.caller.spawn(w.openFresh)
	}
	return made
}

// forget ends one wait that nobody waits for any more.
func (w *sharedWaits) forget(target uint64, gone *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := slices.DeleteFunc(w.waiting[target], func(each *waiter) bool { return each == gone })
	if len(rest) == 0 {
		delete(w.waiting, target)
	} else {
		w.waiting[target] = rest
	}
}

// result waits for the end of a wait.
func (w *sharedWaits) result(ctx context.Context, target uint64, waiting *waiter) (TaskResult, error) {
	select {
	case <-waiting.done:
		return waiting.result, waiting.err
	case <-w.caller.life.Done():
		return TaskResult{}, failure(ErrClosed, "the client is closed")
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return TaskResult{}, outOfTime(ctx, "wait", nil)
		}
		return TaskResult{}, failure(ErrWaitTimeout, "task %d has not ended", target)
	}
}

func (w *sharedWaits) openFresh() {
	runtime.Gosched() // Whoever is about to wait gets a chance to come along.
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.isOld:
		w.isScheduled = false
		w.waitSingly(w.takeFresh())
	case len(w.streams) < waitStreamsMax:
		w.isScheduled = false
		w.open(w.takeFresh())
	default:
		w.gathering = time.AfterFunc(gatherTime, w.joinSmallest)
	}
}

func (w *sharedWaits) takeFresh() map[uint64]struct{} {
	fresh := w.fresh
	w.fresh = map[uint64]struct{}{}
	w.dropAnswered(fresh)
	return fresh
}

func (w *sharedWaits) dropAnswered(targets map[uint64]struct{}) {
	maps.DeleteFunc(targets, func(target uint64, _ struct{}) bool {
		_, isWaiting := w.waiting[target]
		return !isWaiting
	})
}

func (w *sharedWaits) joinSmallest() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gathering, w.isScheduled = nil, false
	if w.caller.isClosed() {
		return
	}
	targets := w.takeFresh()
	if len(w.streams) >= waitStreamsMax {
		var smallest *waitStream
		for stream := range w.streams {
			if smallest == nil || len(stream.targets) < len(smallest.targets) {
				smallest = stream
			}
		}
		smallest.isReplaced = true
		delete(w.streams, smallest)
		maps.Copy(targets, smallest.targets)
		smallest.cancel()
	}
	w.open(targets)
}

// open follows new streams for these targets; the lock is held.
func (w *sharedWaits) open(targets map[uint64]struct{}) {
	for ids := range slices.Chunk(slices.Collect(maps.Keys(targets)), targetsPerStream) {
		stream := &waitStream{targets: map[uint64]struct{}{}, cancel: func() {}}
		for _, id := range ids {
			stream.targets[id] = struct{}{}
		}
		w.streams[stream] = struct{}{}
		w.caller.spawn(func() { w.follow(stream) })
	}
}

// follow keeps a stream open until it owes nothing.
func (w *sharedWaits) follow(stream *waitStream) {
	defer w.release(stream)
	series := w.caller.newDelays()
	for w.stillOwed(stream) {
		needsPause, err := w.read(stream, series)
		switch {
		case err == nil:
		case errors.Is(err, ErrUnsupported):
			w.mu.Lock()
			w.isOld = true
			w.waitSingly(stream.targets)
			w.mu.Unlock()
			return
		case errors.Is(err, ErrDeadline) || errors.Is(err, ErrUnavailable):
			needsPause = true
		default:
			if w.stillOwed(stream) {
				w.fail(slices.Collect(maps.Keys(stream.targets)), err)
			}
			return
		}
		if needsPause && w.stillOwed(stream) &&
			!w.caller.pause(context.Background(), series.next(err)) {
			return
		}
	}
}

func (w *sharedWaits) release(stream *waitStream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.streams, stream)
	if w.gathering != nil && w.gathering.Stop() {
		// A stream is free: nothing to gather for any more.
		w.gathering = nil
		if !w.caller.isClosed() {
			w.caller.spawn(w.openFresh)
		}
	}
}

func (w *sharedWaits) stillOwed(stream *waitStream) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if stream.isReplaced || w.caller.isClosed() {
		return false
	}
	w.dropAnswered(stream.targets)
	return len(stream.targets) > 0
}

// read reads one stream to its end; true if the next shall wait a moment.
func (w *sharedWaits) read(stream *waitStream, series *delays) (bool, error) {
	slice := w.caller.options.MaxWait
	ctx, cancel := context.WithTimeout(w.caller.life, slice+sliceRoom)
	defer cancel()
	w.mu.Lock()
	stream.cancel = cancel
	ids := slices.Collect(maps.Keys(stream.targets))
	w.mu.Unlock()
	began := time.Now()
	request := &pb.WaitManyRequest{Ids: ids, TimeoutS: new(slice.Seconds())}
	answers, err := w.caller.tasks.WaitMany(withToken(ctx, w.caller.connection.token), request)
	if err != nil {
		return false, callError(err)
	}
	hasFailedPart := false
	for {
		message, err := answers.Recv()
		if errors.Is(err, io.EOF) {
			// A server that ends slices at once must not be asked again without a pause.
			return hasFailedPart || time.Since(began) < slice/2, nil
		}
		if err != nil {
			return false, callError(err, headerOf(answers), answers.Trailer())
		}
		if len(message.GetResults()) > 0 {
			series.reset()
		}
		w.deliver(stream, message.GetResults())
		hasFailedPart = w.noteErrors(message.GetErrors()) || hasFailedPart
	}
}

// headerOf returns what came first on a stream that has ended.
func headerOf(stream interface{ Header() (metadata.MD, error) }) metadata.MD {
	header, err := stream.Header()
	if err != nil {
		return nil
	}
	return header
}

func (w *sharedWaits) deliver(stream *waitStream, results []*pb.TaskResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, message := range results {
		result := readResult(message)
		w.settle(result.ID, result, nil)
		delete(stream.targets, result.ID)
	}
}

// settle tells everyone who waits for a task; the lock is held.
func (w *sharedWaits) settle(target uint64, result TaskResult, err error) {
	for _, waiting := range w.waiting[target] {
		waiting.result, waiting.err = result, err
		close(waiting.done)
	}
	delete(w.waiting, target)
}

func (w *sharedWaits) noteErrors(failed []*pb.WaitError) bool {
	hasRetryable := false
	for _, each := range failed {
		err := statusError(each.GetStatus(), "")
		switch {
		case errors.Is(err, ErrDeadline):
		case errors.Is(err, ErrUnavailable):
			hasRetryable = true
		default:
			w.fail([]uint64{each.GetTask().GetId()}, err)
		}
	}
	return hasRetryable
}

func (w *sharedWaits) fail(targets []uint64, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, target := range targets {
		w.settle(target, TaskResult{}, err)
	}
}

// waitSingly is for a server that has no shared waits; the lock is held.
func (w *sharedWaits) waitSingly(targets map[uint64]struct{}) {
	for target := range targets {
		w.caller.spawn(func() { w.waitSingle(target) })
	}
}

func (w *sharedWaits) isWaiting(target uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, isWaiting := w.waiting[target]
	return isWaiting && !w.caller.isClosed()
}

func (w *sharedWaits) waitSingle(target uint64) {
	select {
	case w.singles <- struct{}{}:
	case <-w.caller.life.Done():
		return
	}
	defer func() { <-w.singles }()
	series := w.caller.newDelays()
	slice := w.caller.options.MaxWait
	for w.isWaiting(target) {
		ctx, cancel := context.WithTimeout(w.caller.life, slice+sliceRoom)
		request := &pb.WaitRequest{Task: writeRef(ByID(target)), TimeoutS: new(slice.Seconds())}
		answer, err := call(ctx, w.caller, "wait", w.caller.tasks.Wait, request, true)
		cancel()
		switch {
		case err == nil:
			w.mu.Lock()
			w.settle(target, readResult(answer), nil)
			w.mu.Unlock()
		case errors.Is(err, ErrDeadline) || errors.Is(err, ErrUnavailable):
			w.caller.pause(context.Background(), series.next(err))
		default:
			w.fail([]uint64{target}, err)
		}
	}
}
