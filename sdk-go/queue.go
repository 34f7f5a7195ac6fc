package cronoq

import "sync"

// queue is an unbounded queue that one goroutine empties: whoever puts never waits.
type queue[T any] struct {
	mu       sync.Mutex
	items    []T
	isClosed bool
	signal   chan struct{}
}

func newQueue[T any]() *queue[T] { return &queue[T]{signal: make(chan struct{}, 1)} }

// put appends an item; after close it is dropped.
func (q *queue[T]) put(item T) {
	q.mu.Lock()
	if !q.isClosed {
		q.items = append(q.items, item)
	}
	q.mu.Unlock()
	q.nudge()
}

// close lets take return false once the queue is empty.
func (q *queue[T]) close() {
	q.mu.Lock()
	q.isClosed = true
	q.mu.Unlock()
	q.nudge()
}

func (q *queue[T]) nudge() {
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// rest returns what there is by now, without waiting.
func (q *queue[T]) rest() []T {
	q.mu.Lock()
	defer q.mu.Unlock()
	items := q.items
	q.items = nil
	return items
}

// take waits for items and returns all there are; false when the queue is closed and empty.
func (q *queue[T]) take() ([]T, bool) {
	for {
		q.mu.Lock()
		items, isClosed := q.items, q.isClosed
		q.items = nil
		q.mu.Unlock()
		if len(items) > 0 {
			return items, true
		}
		if isClosed {
			q.nudge() // For whoever takes again.
			return nil, false
		}
		<-q.signal
	}
}
