package cronoq

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// Worker runs the handlers that were given to it by [Handle] for the tasks of one pool. A broken
// connection does not stop handlers: the session is resumed and results are delivered once.
type Worker struct {
	options    WorkerOptions
	connection connectOptions
	handlers   *handlerSet

	mu      sync.Mutex
	present *engagement
}

// NewWorker makes a worker; it does nothing before Run or Start. It fails when an option is out of its
// range or the endpoint cannot be read.
func NewWorker(options WorkerOptions) (*Worker, error) {
	filled, connection, err := options.filled()
	if err != nil {
		return nil, err
	}
	handlers := &handlerSet{byKind: map[string]handler{}}
	return &Worker{options: filled, connection: connection, handlers: handlers}, nil
}

// String names endpoint, pool and slots; a token is never shown.
func (w *Worker) String() string {
	return fmt.Sprintf("cronoq.Worker(%s, pool %q, %d slots)",
		w.connection.endpoint, w.options.Pool, w.options.Slots)
}

// GoString is String: the fields hold the token.
func (w *Worker) GoString() string { return w.String() }

// IsReady is true while this worker receives work: connected, accepted, neither side stopping.
func (w *Worker) IsReady() bool {
	present, err := w.current()
	return err == nil && present.session.isReady()
}

// Start starts the worker; it returns at once and connects in the background. It fails when there is
// no handler, and with ErrClosed when the worker runs already.
func (w *Worker) Start() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handlers.isEmpty() {
		return errors.New("cronoq: the worker has no handler")
	}
	if w.present != nil {
		return failure(ErrClosed, "the worker was started already")
	}
	w.handlers.isFixed = true
	w.present = newEngagement(w.options, w.connection, w.handlers)
	w.present.start()
	return nil
}

// WaitReady waits until the worker receives work. It fails with ErrGaveUp when it never will, and
// when the context ends.
func (w *Worker) WaitReady(ctx context.Context) error {
	present, err := w.current()
	if err != nil {
		return err
	}
	return present.until(ctx, present.session.isReady)
}

// Stop takes no more work, lets handlers finish, reports and disconnects; it returns when that is
// done. Handlers get DrainTimeout, or until the context ends if that is sooner; then they are told to
// stop. It may be called again, and by several at once: the shortest time counts.
func (w *Worker) Stop(ctx context.Context) {
	present, err := w.current()
	if err != nil {
		return
	}
	present.stop(ctx, w.options.DrainTimeout)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.present == present {
		w.present = nil
	}
}

// Run runs the worker until the context ends or Stop is called, and drains in both cases. It fails
// with ErrGaveUp when a server's answer makes retries useless.
func (w *Worker) Run(ctx context.Context) error {
	if err := w.Start(); err != nil {
		return err
	}
	present, err := w.current()
	if err != nil {
		return nil // Stopped already.
	}
	return w.runPresent(ctx, present)
}

func (w *Worker) runPresent(ctx context.Context, present *engagement) error {
	failure := present.until(ctx, func() bool {
		select {
		case <-present.stopped:
			return true
		default:
			return false
		}
	})
	w.Stop(context.Background())
	if ctx.Err() != nil && !errors.Is(failure, ErrGaveUp) {
		return nil // The end that was asked for.
	}
	return failure
}

// RunForever runs the worker until SIGTERM or SIGINT, then drains; a second signal ends the drain. It
// fails with ErrGaveUp when a server's answer makes retries useless.
func (w *Worker) RunForever() error {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	if err := w.Start(); err != nil {
		return err
	}
	present, err := w.current()
	if err != nil {
		return nil // Stopped already.
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		for drain := w.options.DrainTimeout; ; drain = 0 { // The second signal.
			select {
			case <-signals:
				present.shorten(drain)
			case <-ctx.Done():
				return
			}
		}
	}()
	return w.runPresent(ctx, present)
}

func (w *Worker) current() (*engagement, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.present == nil {
		return nil, failure(ErrClosed, "the worker is not running")
	}
	return w.present, nil
}
