package cronoq

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// How a started worker runs what the link brings, and how it stops. One object per start. Each
// handler has a goroutine of its own; what has ended while a report was being made is reported
// together. A handler cannot be killed, so its slot is taken until it has really ended.

const (
	// unknownMax bounds the tasks whose kind had no handler here, remembered so that the second time
	// is the last.
	unknownMax = 1024
	// stopGrace is what a handler that was told to stop gets before its attempt is reported anyway.
	stopGrace = time.Second
	// gatherTurns bounds how often a report that could be made gives way to handlers that end.
	gatherTurns = 16
)

// engagement is one start of a worker, up to its stop.
type engagement struct {
	options  WorkerOptions
	handlers *handlerSet
	session  *session
	link     *link
	ends     *queue[endedRun]
	hooks    *queue[func()]
	stopped  chan struct{}

	mu          sync.Mutex
	backlog     []*run
	active      map[*run]struct{} // Running, or ended without a report yet.
	unknown     []uint64
	changes     chan struct{} // Closed and made anew with every change.
	isStopping  bool
	drainEndsAt instant
	failure     error
}

func newEngagement(
	options WorkerOptions, connection connectOptions, handlers *handlerSet,
) *engagement {
	made := &engagement{
		options: options, handlers: handlers, ends: newQueue[endedRun](), hooks: newQueue[func()](),
		stopped: make(chan struct{}), active: map[*run]struct{}{}, changes: make(chan struct{}),
	}
	made.session = newSession(&pb.Register{
		Pool: options.Pool, Slots: uint32(options.Slots), WorkerName: options.Name,
		ProtocolVersion: protocolVersion, Labels: options.Labels, Sdk: "go/" + Version,
		Kinds: handlers.kinds(),
	}, options.MaxMessageBytes)
	settings := reconnectSettings{
		endpoint: connection.endpoint, hasToken: connection.token != "",
		insecureRedirectHTTP: options.InsecureRedirectHTTP,
		backoffInitial:       connection.backoff.Initial, backoffMax: connection.backoff.Maximum,
		sessionReset: options.SessionReset,
	}
	made.link = &link{
		session: made.session, policy: newReconnectPolicy(settings, rand.Float64),
		options: connection, listener: made, logger: options.Logger, clock: monotonic,
	}
	return made
}

func (e *engagement) start() {
	go e.reportEnds()
	go e.callHooks()
	e.link.start()
}

// --- what the link says ---------------------------------------------------------------------------

func (e *engagement) begin(runs []*run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.isStopping {
		for _, each := range runs {
			e.end(each, nacked{"worker is stopping"})
		}
		return
	}
	e.backlog = append(e.backlog, runs...)
	e.startWaiting()
}

func (e *engagement) stopRuns(runs []*run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, each := range runs {
		if place := slices.Index(e.backlog, each); place >= 0 {
			e.backlog = slices.Delete(e.backlog, place, place+1)
			e.end(each, nacked{"stopped before it began"})
		} else if _, isActive := e.active[each]; !isActive {
			continue // It has just ended.
		}
		attempt := &Attempt{run: each, host: e}
		reason := attempt.CancelReason()
		e.options.Logger.Info("cronoq: handler told to stop",
			"task", attempt.TaskID(), "reason", reason)
		if e.options.OnAbort != nil {
			e.hooks.put(func() { e.options.OnAbort(attempt, reason) })
		}
	}
}

func (e *engagement) connected(endpoint string) {
	e.options.Logger.Info("cronoq: connected", "endpoint", endpoint)
	if e.options.OnConnect != nil {
		e.hooks.put(func() { e.options.OnConnect(endpoint) })
	}
}

func (e *engagement) disconnected(endpoint, reason string) {
	e.options.Logger.Info("cronoq: disconnected", "endpoint", endpoint, "reason", reason)
	if e.options.OnDisconnect != nil {
		e.hooks.put(func() { e.options.OnDisconnect(endpoint, reason) })
	}
}

func (e *engagement) redirected(endpoint, refused string) {
	if refused != "" {
		e.options.Logger.Warn("cronoq: redirect not followed", "reason", refused)
	} else {
		e.options.Logger.Info("cronoq: redirected", "endpoint", endpoint)
	}
	if e.options.OnRedirect != nil {
		e.hooks.put(func() { e.options.OnRedirect(endpoint, refused) })
	}
}

func (e *engagement) gaveUp(code codes.Code, message string) {
	e.options.Logger.Error("cronoq: giving up", "code", code.String(), "message", message)
	made := failure(ErrGaveUp, "%s: %s", code, message)
	// The code's name as all languages and the wire's documents write it.
	made.Details = map[string]string{"code": rpccode.Code(code).String()}
	made.cause = kindOf("", code)
	e.mu.Lock()
	e.failure = made
	e.mu.Unlock()
	e.changed()
}

// changed wakes whoever waits for a fact.
func (e *engagement) changed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changes)
	e.changes = make(chan struct{})
}

func (e *engagement) callHooks() {
	for {
		hooks, isOpen := e.hooks.take()
		if !isOpen {
			return
		}
		for _, hook := range hooks {
			e.callHook(hook)
		}
	}
}

// callHook keeps a fault of the user's hook from ending the program.
func (e *engagement) callHook(hook func()) {
	defer func() {
		if thrown := recover(); thrown != nil {
			e.options.Logger.Error("cronoq: a hook panicked", "panic", thrown)
		}
	}()
	hook()
}

// --- what attempts need ---------------------------------------------------------------------------

func (e *engagement) codec() Codec { return e.options.Codec }

func (e *engagement) tellProgress(of *run, progress *pb.Progress) {
	if e.session.setProgress(of, progress) {
		nudge(e.link.pulse)
	}
}

func (e *engagement) fetchOutput(
	ctx context.Context, lease, taskID uint64,
) (*pb.Output, error) {
	return e.link.fetchOutput(ctx, lease, taskID)
}

func (e *engagement) panicked(attempt *Attempt, thrown any, stack []byte) {
	e.options.Logger.Error("cronoq: handler panicked",
		"task", attempt.TaskID(), "panic", fmt.Sprint(thrown), "stack", string(stack))
}

// --- running --------------------------------------------------------------------------------------

// startWaiting starts what the slots allow (WP-11); the lock is held.
func (e *engagement) startWaiting() {
	for len(e.backlog) > 0 && len(e.active) < e.options.Slots {
		next := e.backlog[0]
		e.backlog = slices.Delete(e.backlog, 0, 1)
		if next.stop() != "" {
			e.end(next, nacked{"stopped before it began"})
			continue
		}
		found := e.handlers.find(next.message.GetKind())
		if found == nil {
			e.end(next, e.unknownKind(next))
			continue
		}
		e.active[next] = struct{}{}
		go e.execute(found, next)
	}
}

// unknownKind is WP-13: nacked the first time, since another worker may know it; permanent the second.
func (e *engagement) unknownKind(of *run) outcome {
	text := fmt.Sprintf("no handler for kind %q", of.message.GetKind())
	task := of.message.GetTaskId()
	if slices.Contains(e.unknown, task) {
		return failed{message: text, isPermanent: true}
	}
	e.unknown = append(e.unknown, task)
	if len(e.unknown) > unknownMax {
		e.unknown = slices.Delete(e.unknown, 0, 1)
	}
	return nacked{text}
}

func (e *engagement) execute(found handler, of *run) {
	attempt := &Attempt{run: of, host: e}
	execute(found, attempt, e.options.Interceptors, func(how outcome) { e.ended(attempt, how) })
}

func (e *engagement) ended(attempt *Attempt, how outcome) {
	of := attempt.run
	switch how := how.(type) {
	case failed:
		if of.stop() == "" {
			e.options.Logger.Warn("cronoq: handler failed",
				"task", attempt.TaskID(), "message", how.message, "permanent", how.isPermanent)
		}
	case cancelled:
		e.options.Logger.Info("cronoq: handler cancels its task",
			"task", attempt.TaskID(), "reason", how.reason)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end(of, how)
}

// end has the end of a run reported; the lock is held.
func (e *engagement) end(of *run, how outcome) {
	e.active[of] = struct{}{}
	e.ends.put(endedRun{of, how})
}

// gathered adds what ends at the same time: handlers that can run get their turn before the report is
// made, since a message for each costs the server several times as much.
func (e *engagement) gathered(ends []endedRun) []endedRun {
	for range gatherTurns {
		runtime.Gosched()
		more := e.ends.rest()
		if len(more) == 0 {
			break
		}
		ends = append(ends, more...)
	}
	return ends
}

// reportEnds reports all that ended since the last time, together (WP-20).
func (e *engagement) reportEnds() {
	for {
		ends, isOpen := e.ends.take()
		if !isOpen {
			return
		}
		ends = e.gathered(ends)
		e.session.report(ends, monotonic())
		e.mu.Lock()
		for _, each := range ends {
			delete(e.active, each.run)
			each.run.cancel(nil) // Its context has served.
		}
		e.startWaiting()
		e.mu.Unlock()
		e.changed()
	}
}

// --- stopping -------------------------------------------------------------------------------------

// until waits for a fact that some change of this worker brings about, or the end of the context.
func (e *engagement) until(ctx context.Context, isTrue func() bool) error {
	for {
		e.mu.Lock()
		changes, failure := e.changes, e.failure
		e.mu.Unlock()
		if isTrue() {
			return nil
		}
		if failure != nil {
			return failure
		}
		select {
		case <-changes:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// stop drains (WP-40); the end of the context ends the drain. It returns when all is over.
func (e *engagement) stop(ctx context.Context, drain time.Duration) {
	e.shorten(drain)
	select {
	case <-e.stopped:
	case <-ctx.Done():
		e.shorten(0)
		<-e.stopped
	}
}

func (e *engagement) shorten(drain time.Duration) {
	e.mu.Lock()
	defer e.changed()
	defer e.mu.Unlock()
	endsAt := monotonic() + drain
	if !e.isStopping {
		e.isStopping = true
		e.drainEndsAt = endsAt
		go e.runStop()
		return
	}
	e.drainEndsAt = min(e.drainEndsAt, endsAt)
}

func (e *engagement) setDrainEnd(choose func(present instant) instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drainEndsAt = choose(e.drainEndsAt)
}

func (e *engagement) runStop() {
	e.session.drain()
	e.mu.Lock()
	if e.failure != nil {
		// No server takes what handlers come to, so nothing is worth waiting for.
		e.drainEndsAt = monotonic()
	}
	for _, waiting := range e.backlog { // WP-41
		e.end(waiting, nacked{"worker is stopping"})
	}
	e.backlog = nil
	e.mu.Unlock()
	e.untilDrained(e.isIdle)
	if !e.isIdle() {
		e.cancelRest()
	}
	e.setDrainEnd(func(present instant) instant { return max(present, monotonic()+stopGrace) })
	e.link.close()
	e.untilDrained(func() bool { return e.session.isSettled() || e.link.over() })
	e.closeLink()
	e.ends.close()
	e.hooks.close()
	close(e.stopped)
	e.changed()
}

func (e *engagement) isIdle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.active) == 0
}

// cancelRest is WP-42: handlers are told to stop, and what does not end is reported without them.
func (e *engagement) cancelRest() {
	e.stopRuns(e.session.stopRuns(stopStopped))
	e.setDrainEnd(func(instant) instant { return monotonic() + stopGrace })
	e.untilDrained(e.isIdle)
	rest := e.session.openRuns()
	if len(rest) == 0 {
		return
	}
	ends := make([]endedRun, len(rest))
	tasks := make([]uint64, len(rest))
	for index, each := range rest {
		ends[index] = endedRun{each, failed{message: string(stopStopped)}}
		tasks[index] = each.message.GetTaskId()
	}
	e.options.Logger.Warn("cronoq: handlers do not end", "tasks", tasks)
	e.session.report(ends, monotonic())
}

// untilDrained waits for a fact, at most until the drain's end, which a second stop may draw nearer.
func (e *engagement) untilDrained(isTrue func() bool) {
	for {
		e.mu.Lock()
		changes, endsAt := e.changes, e.drainEndsAt
		e.mu.Unlock()
		left := endsAt - monotonic()
		if isTrue() || left <= 0 {
			return
		}
		timer := time.NewTimer(left)
		select {
		case <-changes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// closeLink is WP-44.
func (e *engagement) closeLink() {
	if tasks := e.session.unconfirmedTasks(); len(tasks) > 0 {
		e.options.Logger.Warn("cronoq: stopped before the server confirmed", "tasks", tasks)
	}
	e.link.halfClose()
	for range 2 {
		e.setDrainEnd(func(instant) instant { return monotonic() + streamEndTime })
		e.untilDrained(e.link.hasEnded)
		if e.link.hasEnded() {
			return
		}
		e.link.abandon()
	}
}
