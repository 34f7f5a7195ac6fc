package cronoq

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// Carries a session over streams, as the reconnect policy says. One goroutine opens streams and reads
// them, one writes, one keeps time: heartbeats and leases that run out. None depends on handlers.

const (
	// streamEndTime is how long the server gets to end a stream that this side has half-closed.
	streamEndTime = 2 * time.Second
	outputTimeout = 30 * time.Second
)

// outputPauses lie between tries to fetch a parent's output, about 20 s together.
var outputPauses = []time.Duration{
	50 * time.Millisecond, 100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond,
	800 * time.Millisecond, 1600 * time.Millisecond, 3 * time.Second, 5 * time.Second,
	5 * time.Second, 5 * time.Second,
}

// listener hears what happens on the link; called on the link's goroutines, and never waits.
type listener interface {
	begin(runs []*run)
	stopRuns(runs []*run)
	connected(endpoint string)
	disconnected(endpoint, reason string)
	redirected(endpoint, refused string)
	gaveUp(code codes.Code, message string)
	changed()
}

// link is one worker's way to its servers.
type link struct {
	session  *session
	policy   *reconnectPolicy
	options  connectOptions
	listener listener
	logger   *slog.Logger
	clock    func() instant

	wake  chan struct{} // The link's goroutine has something to look at.
	pulse chan struct{} // The time keeper has.

	mu        sync.Mutex
	isClosing bool
	isOver    bool
	isEnded   bool
	outbox    *queue[*pb.WorkerMessage]
	cancel    context.CancelFunc
	conn      *grpc.ClientConn
	token     string // What the present stream carries.
}

// processStart is the origin of the SDK's monotonic clock.
var processStart = time.Now()

func monotonic() instant { return time.Since(processStart) }

func nudge(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// start starts the goroutines; they end by themselves.
func (l *link) start() {
	l.wake, l.pulse = make(chan struct{}, 1), make(chan struct{}, 1)
	go l.run()
	go l.keepTime()
}

func (l *link) run() {
	defer func() {
		l.mu.Lock()
		l.isOver, l.isEnded = true, true
		l.mu.Unlock()
		nudge(l.pulse)
		l.listener.changed()
	}()
	next := l.policy.decide(started{}, l.clock())
	for !l.mayEnd() {
		var what event
		switch next := next.(type) {
		case connect:
			what = l.attempt(next.endpoint, next.maySendToken)
		case wait:
			what = l.await(next.until)
		case giveUp:
			l.listener.gaveUp(next.code, next.message)
			return
		case stay:
			panic("cronoq: no stream to stay on")
		}
		next = l.decide(what)
	}
}

// mayEnd is RR-23.
func (l *link) mayEnd() bool {
	l.mu.Lock()
	isOver, isClosing := l.isOver, l.isClosing
	l.mu.Unlock()
	return isOver || (isClosing && l.session.isSettled())
}

func (l *link) decide(what event) decision {
	next := l.policy.decide(what, l.clock())
	if named, isRedirect := what.(redirected); isRedirect {
		refused := ""
		switch next := next.(type) {
		case connect:
			refused = next.refused
		case wait:
			refused = next.refused
		}
		l.listener.redirected(named.endpoint, refused)
	}
	return next
}

func (l *link) await(until instant) event {
	for left := until - l.clock(); left > 0; left = until - l.clock() {
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-l.wake:
			if l.mayEnd() {
				left = 0
			}
		}
		timer.Stop()
		if left == 0 {
			break
		}
	}
	return elapsed{}
}

// attempt opens one stream on a connection of its own and follows it to its end (RR-08).
func (l *link) attempt(to endpoint, maySendToken bool) event {
	conn, err := dial(l.options, to)
	if err != nil {
		return ended{code: codes.Unavailable, message: err.Error()}
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	token := ""
	if maySendToken {
		token = l.options.token
	}
	outbox := newQueue[*pb.WorkerMessage]()
	defer outbox.close()
	l.mu.Lock()
	l.outbox, l.cancel, l.conn, l.token = outbox, cancel, conn, token
	if l.isOver {
		cancel()
	}
	l.mu.Unlock()
	defer func() {
		l.session.broken()
		l.mu.Lock()
		l.outbox, l.cancel, l.conn = nil, nil, nil
		l.mu.Unlock()
	}()
	stream, err := pb.NewWorkersClient(conn).Work(withToken(ctx, token))
	if err != nil {
		l.logger.Debug("cronoq: no connection", "endpoint", to.String(), "error", err)
		return ended{code: status.Code(err), message: status.Convert(err).Message()}
	}
	outbox.put(l.session.opening(l.clock()))
	writing := make(chan struct{})
	go func() {
		defer close(writing)
		writeAll(stream, outbox)
	}()
	what := l.follow(stream, outbox, to.String())
	cancel()
	outbox.close()
	<-writing
	return what
}

type workStream = grpc.BidiStreamingClient[pb.WorkerMessage, pb.ServerMessage]

// writeAll writes what the outbox holds, in order, and then ends this side of the stream.
func writeAll(stream workStream, outbox *queue[*pb.WorkerMessage]) {
	for {
		messages, isOpen := outbox.take()
		if !isOpen {
			// An error means that the stream has ended, which its reader sees too.
			_ = stream.CloseSend()
			return
		}
		for _, message := range messages {
			if stream.Send(message) != nil {
				return // The reader learns why.
			}
		}
	}
}

func (l *link) follow(stream workStream, outbox *queue[*pb.WorkerMessage], at string) event {
	isRegistered := false
	for {
		message, err := stream.Recv()
		if err != nil {
			what, reason := l.endOf(stream, err)
			if isRegistered {
				l.session.broken()
				l.listener.disconnected(at, reason)
			} else {
				l.logger.Debug("cronoq: no session", "endpoint", at, "reason", reason)
			}
			return what
		}
		if isRegistered {
			l.take(message)
			continue
		}
		if message.GetShutdown() != nil {
			l.session.receive(message, l.clock())
		}
		if answer := message.GetRegistered(); answer != nil {
			isRegistered = true
			l.accepted(answer, outbox, at)
		}
	}
}

func (l *link) accepted(answer *pb.Registered, outbox *queue[*pb.WorkerMessage], at string) {
	l.policy.decide(registered{}, l.clock())
	lost := l.session.accepted(answer, outbox.put, l.clock())
	nudge(l.pulse)
	l.listener.connected(at)
	if len(lost) > 0 {
		l.listener.stopRuns(lost)
	}
	l.listener.changed()
}

func (l *link) take(message *pb.ServerMessage) {
	got := l.session.receive(message, l.clock())
	if len(got.begun) > 0 {
		l.listener.begin(got.begun)
		nudge(l.pulse) // A lease may be shorter than those before.
	}
	if len(got.stopped) > 0 {
		l.listener.stopRuns(got.stopped)
	}
	if got.shutdown != nil {
		l.logger.Info("cronoq: server is shutting down", "reason", got.shutdown.GetReason())
	}
	l.mu.Lock()
	isClosing := l.isClosing
	l.mu.Unlock()
	if isClosing {
		l.listener.changed()
	}
}

// endOf returns what the end of a stream means, and why it came, for people.
func (l *link) endOf(stream workStream, err error) (event, string) {
	if errors.Is(err, io.EOF) {
		return ended{code: codes.OK, notLeader: l.session.sawNotLeader()}, "the server ended the stream"
	}
	from := callError(err, headerOf(stream), stream.Trailer())
	code := status.Code(err)
	if named, isNamed := from.Details[shardEndpointKey]; isNamed && code == codes.FailedPrecondition {
		return redirected{named}, fmt.Sprintf("redirected to %s", named)
	}
	notLeader := from.Reason == ReasonNotLeader || l.session.sawNotLeader()
	return ended{code, notLeader, from.Message}, from.Message
}

func (l *link) keepTime() {
	for !l.over() {
		now := l.clock()
		timer := time.NewTimer(l.session.nextPulse(now) - now)
		select {
		case <-timer.C:
		case <-l.pulse:
		}
		timer.Stop()
		if expired := l.session.pulse(l.clock()); len(expired) > 0 {
			l.listener.stopRuns(expired)
		}
	}
}

// over is true when the link will not connect again.
func (l *link) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isOver
}

// hasEnded is true when the last stream is gone as well.
func (l *link) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.isEnded
}

// close lets the link end once the session owes the server nothing.
func (l *link) close() {
	l.mu.Lock()
	l.isClosing = true
	l.mu.Unlock()
	nudge(l.wake)
}

// halfClose ends this side of the stream for good; the server ends the other.
func (l *link) halfClose() {
	l.mu.Lock()
	l.isOver = true
	if l.outbox != nil {
		l.outbox.close()
	}
	l.mu.Unlock()
	nudge(l.wake)
	nudge(l.pulse)
}

// abandon ends everything now, whatever the session still owes.
func (l *link) abandon() {
	l.mu.Lock()
	l.isOver = true
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	nudge(l.wake)
	nudge(l.pulse)
}

// fetchOutput fetches the output of a parent of a lease; it waits out a broken connection.
func (l *link) fetchOutput(ctx context.Context, lease, taskID uint64) (*pb.Output, error) {
	request := &pb.GetOutputRequest{Lease: lease, TaskId: taskID}
	for _, pause := range outputPauses {
		l.mu.Lock()
		conn, token := l.conn, l.token
		l.mu.Unlock()
		if conn != nil {
			answer, err := fetchOnce(withToken(ctx, token), conn, request)
			if err == nil {
				return answer, nil
			}
			if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
				return nil, err
			}
			l.logger.Debug("cronoq: no output yet", "task", taskID, "error", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
	return nil, failure(ErrUnavailable, "no server answered for the output of task %d", taskID)
}

func fetchOnce(
	ctx context.Context, conn *grpc.ClientConn, request *pb.GetOutputRequest,
) (*pb.Output, error) {
	ctx, cancel := context.WithTimeout(ctx, outputTimeout)
	defer cancel()
	answer, err := pb.NewWorkersClient(conn).GetOutput(ctx, request)
	if err != nil {
		return nil, callError(err)
	}
	return answer, nil
}
