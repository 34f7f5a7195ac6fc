package cronoq

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// A client's way to its server: one connection, and another one after an answer that somebody else
// leads. Behind a balancer the next connection may reach the leader; the same one never does.

// leaveAfter: a connection that is younger is kept, which bounds how often a client connects.
const leaveAfter = 100 * time.Millisecond

// dialled is a connection with the calls on it. Its fields are guarded by that of the connection.
type dialled struct {
	conn   *grpc.ClientConn
	madeAt time.Time
	open   int
	isLeft bool
}

// connection makes the calls of a client; it is what the generated stubs call.
type connection struct {
	options connectOptions

	mu       sync.Mutex
	current  *dialled
	all      map[*dialled]struct{}
	isClosed bool
}

func newConnection(options connectOptions) (*connection, error) {
	made := &connection{options: options, all: map[*dialled]struct{}{}}
	made.mu.Lock()
	defer made.mu.Unlock()
	return made, made.dial()
}

// dial makes a connection the current one; the lock is held.
func (c *connection) dial() error {
	conn, err := dial(c.options, c.options.endpoint)
	if err != nil {
		return err
	}
	c.current = &dialled{conn: conn, madeAt: time.Now()}
	c.all[c.current] = struct{}{}
	return nil
}

// enter returns the connection for a call that begins now.
func (c *connection) enter() (*dialled, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.isLeft && !c.isClosed {
		if err := c.dial(); err != nil {
			return nil, err
		}
	}
	c.current.open++
	return c.current, nil
}

// leave ends a call; err is why it failed if it did.
func (c *connection) leave(on *dialled, err error, trailer metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	on.open--
	if err != nil && time.Since(on.madeAt) >= leaveAfter && saysOther(err, trailer) {
		on.isLeft = true
	}
	if on.isLeft && on.open == 0 { // Calls under way go on where they are.
		delete(c.all, on)
		_ = on.conn.Close() // It fails only if it is closed already.
	}
}

// saysOther tells whether an answer means that another server leads, or will.
func saysOther(err error, trailer metadata.MD) bool {
	said := callError(err, trailer)
	return errors.Is(said, ErrNotLeader) || errors.Is(said, ErrStopping)
}

// Invoke makes a call with one answer.
func (c *connection) Invoke(
	ctx context.Context, method string, request, answer any, options ...grpc.CallOption,
) error {
	on, err := c.enter()
	if err != nil {
		return err
	}
	var trailer metadata.MD
	err = on.conn.Invoke(ctx, method, request, answer, append(options, grpc.Trailer(&trailer))...)
	c.leave(on, err, trailer)
	return err
}

// NewStream makes a call with many answers.
func (c *connection) NewStream(
	ctx context.Context, description *grpc.StreamDesc, method string, options ...grpc.CallOption,
) (grpc.ClientStream, error) {
	on, err := c.enter()
	if err != nil {
		return nil, err
	}
	stream, err := on.conn.NewStream(ctx, description, method, options...)
	if err != nil {
		c.leave(on, err, nil)
		return nil, err
	}
	counted := &countedStream{ClientStream: stream, connection: c, on: on}
	// Whoever opened it may go away without reading its end.
	context.AfterFunc(ctx, func() { counted.ended(nil) })
	return counted, nil
}

// close ends all calls and connections.
func (c *connection) close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isClosed = true
	var failed []error
	for each := range c.all {
		failed = append(failed, each.conn.Close())
	}
	clear(c.all)
	return errors.Join(failed...)
}

// countedStream is a stream whose connection hears of its end, once.
type countedStream struct {
	grpc.ClientStream
	connection *connection
	on         *dialled
	once       sync.Once
}

// RecvMsg reads the next answer.
func (s *countedStream) RecvMsg(message any) error {
	err := s.ClientStream.RecvMsg(message)
	if err != nil {
		s.ended(err)
	}
	return err
}

func (s *countedStream) ended(err error) {
	s.once.Do(func() {
		var trailer metadata.MD
		if err != nil {
			trailer = s.Trailer()
		}
		s.connection.leave(s.on, err, trailer)
	})
}
