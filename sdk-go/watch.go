package cronoq

import (
	"context"
	"errors"
	"io"
	"iter"

	"google.golang.org/grpc"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// WatchOptions say which changes to watch. With neither pools, ids nor keys: all tasks.
type WatchOptions struct {
	// Pools: tasks of these pools.
	Pools []string
	// IDs: these tasks.
	IDs []uint64
	// Keys: tasks with these keys.
	Keys []string
	// AllTransitions asks for every change; else only ends come.
	AllTransitions bool
	// AfterCursor resumes after an event seen before.
	AfterCursor []byte
}

// Watch watches tasks change; it reconnects and resumes by itself, until its context ends or the
// reader stops. The end of a task is never missed and may come twice; other transitions may be missed
// across a reconnection. Servers that know no cursors are watched anew after a break. The last pair
// holds an error: ErrCursorUnknown when the server cannot resume from the cursor, the context's, or
// why the watch was refused.
func (c *Client) Watch(ctx context.Context, options WatchOptions) iter.Seq2[StatusEvent, error] {
	return func(yield func(StatusEvent, error) bool) {
		request := &pb.WatchRequest{
			Pools: options.Pools, Ids: options.IDs, Keys: options.Keys,
			AllTransitions: options.AllTransitions, AfterCursor: options.AfterCursor,
			Bookmarks: true,
		}
		reader := &watchReader{caller: c.caller, request: request, yield: yield}
		if err := reader.run(ctx); err != nil && !reader.isStopped {
			yield(StatusEvent{}, err)
		}
	}
}

// watchReader goes on with one watch across breaks, from the cursor of the last event or bookmark.
type watchReader struct {
	caller    *caller
	request   *pb.WatchRequest
	yield     func(StatusEvent, error) bool
	isStopped bool // The reader wants no more.
}

func (w *watchReader) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.caller.life, cancel)()
	series := w.caller.newDelays()
	read := w.readBatches
	isSingle := false
	for {
		err := read(withToken(ctx, w.caller.connection.token), series)
		switch {
		case w.isStopped:
			return nil
		case w.caller.isClosed():
			return failure(ErrClosed, "the client is closed")
		case ctx.Err() != nil:
			return outOfTime(ctx, "watch", nil)
		case errors.Is(err, ErrUnsupported) && !isSingle:
			read, isSingle = w.readSingles, true
			continue
		case err != nil && !w.isResumable(err):
			return err
		}
		// A stream that ends without an error ends for its server's reasons: go on likewise.
		w.caller.pause(ctx, series.next(err))
	}
}

// isResumable: when the reader was too slow the stream is gone, but the cursor says where it stands.
func (w *watchReader) isResumable(err error) bool {
	isSlow := errors.Is(err, ErrWatchTooSlow) && len(w.request.AfterCursor) > 0
	return isSlow || errors.Is(err, ErrUnavailable)
}

func (w *watchReader) readBatches(ctx context.Context, series *delays) error {
	return readStream(ctx, w.caller.tasks.WatchBatches, w.request,
		func(message *pb.StatusEvents) bool {
			for _, event := range message.GetEvents() {
				if !w.tell(event, series) {
					return false
				}
			}
			w.moveTo(message.GetCursor())
			return true
		})
}

func (w *watchReader) readSingles(ctx context.Context, series *delays) error {
	return readStream(ctx, w.caller.tasks.Watch, w.request,
		func(event *pb.StatusEvent) bool { return w.tell(event, series) })
}

// readStream reads a stream until it ends, breaks or nobody takes its messages.
func readStream[Message any](
	ctx context.Context,
	open func(context.Context, *pb.WatchRequest, ...grpc.CallOption) (
		grpc.ServerStreamingClient[Message], error),
	request *pb.WatchRequest, take func(*Message) bool,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := open(ctx, request)
	if err != nil {
		return callError(err)
	}
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return callError(err, headerOf(stream), stream.Trailer())
		}
		if !take(message) {
			return nil
		}
	}
}

func (w *watchReader) tell(message *pb.StatusEvent, series *delays) bool {
	series.reset()
	event := readEvent(message)
	if !w.yield(event, nil) {
		w.isStopped = true
		return false
	}
	// Moved only after the reader took the event: a break resumes before it.
	w.moveTo(event.Cursor)
	return true
}

func (w *watchReader) moveTo(cursor []byte) {
	if len(cursor) > 0 {
		w.request.AfterCursor = cursor
	}
}
