package cronoq

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// How concurrent submits share requests. A submit goes out as soon as the scheduler comes to it,
// together with all that arrived by then for its pool. Two requests of a pool may be in flight; what
// arrives meanwhile forms the next ones, each bounded by count and by half a message. Every caller
// keeps its own deadline, cancellation and outcome.
//
// Rules a change must keep: tasks of different pools share no request and do not wait for each other,
// since they may be of different shards, one of which is slow or gone; a caller that gave up before its request went out is not submitted; a
// lost request is sent again only for tasks with a key, unless nothing was executed; a task for a
// full pool is sent again alone, as a call that parks.

const (
	submitsInFlight = 2
	// Calls that park for a full pool occupy the server each; the rest wait here in order.
	parkedMax = 64
	// fillAhead is how many requests SubmitMany fills ahead of those in flight.
	fillAhead = 2
	// lanesKept is how many pools there may be before those are forgotten that have nothing under way.
	lanesKept = 64
)

// member is one caller's place in a request.
type member struct {
	lane      *coalescer
	ctx       context.Context
	isKeyed   bool
	done      chan struct{}
	isSettled bool
	id        uint64
	duplicate bool
	err       error
}

// batch is a request that is being filled, and whose tasks they are, in order.
type batch struct {
	tasks   []*pb.TaskSpec
	members []*member
	size    int
}

// keep drops the members that are not wanted.
func (b *batch) keep(isWanted func(index int) bool) {
	kept := 0
	for index := range b.members {
		if isWanted(index) {
			b.members[kept], b.tasks[kept] = b.members[index], b.tasks[index]
			kept++
		}
	}
	b.members, b.tasks = b.members[:kept], b.tasks[:kept]
}

type parkedTask struct {
	member *member
	task   *pb.TaskSpec
}

// lanes joins the submits of one client into requests, those to each pool by themselves.
type lanes struct {
	caller *caller

	mu     sync.Mutex
	byPool map[string]*coalescer
}

// of returns where the submits to a pool are joined.
func (l *lanes) of(pool string) *coalescer {
	l.mu.Lock()
	defer l.mu.Unlock()
	found := l.byPool[pool]
	if found == nil {
		if len(l.byPool) >= lanesKept {
			maps.DeleteFunc(l.byPool, func(_ string, lane *coalescer) bool { return lane.isIdle() })
		}
		found = &coalescer{caller: l.caller}
		if l.byPool == nil {
			l.byPool = map[string]*coalescer{}
		}
		l.byPool[pool] = found
	}
	return found
}

// enqueue puts a task into the next request to its pool.
func (l *lanes) enqueue(ctx context.Context, spec *TaskSpec) (*member, error) {
	return l.of(spec.Pool).enqueue(ctx, spec)
}

// admitted waits for a member's outcome, at most as long as its context and the client live.
func (l *lanes) admitted(waiting *member) (uint64, bool, error) {
	return waiting.lane.admitted(waiting)
}

// hasBacklog is true while enough requests wait to be sent.
func (l *lanes) hasBacklog() bool {
	return l.queued() > fillAhead
}

// queued is how many requests wait to be sent.
func (l *lanes) queued() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	queued := 0
	for _, lane := range l.byPool {
		queued += lane.queued()
	}
	return queued
}

// coalescer joins the submits of one client to one pool into requests.
type coalescer struct {
	caller *caller

	mu          sync.Mutex
	queue       []*batch
	open        *batch
	isScheduled bool
	inFlight    int
	parked      []parkedTask
	parkedCount int
	isOld       bool // The server has no SubmitMany.
	trouble     *Error
}

// enqueue puts a task into the next request.
func (c *coalescer) enqueue(ctx context.Context, spec *TaskSpec) (*member, error) {
	task, err := writeSpec(spec, c.caller.options.Codec)
	if err != nil {
		return nil, err
	}
	size, limit := proto.Size(task), c.caller.options.MaxMessageBytes-messageRoom
	if size > limit {
		return nil, failure(ErrTooLarge, "task too large (%d > %d bytes)", size, limit)
	}
	made := &member{lane: c, ctx: ctx, isKeyed: spec.Key != "", done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	half := c.caller.options.MaxMessageBytes / 2
	filling := c.open
	if filling == nil || len(filling.members) >= c.caller.options.MaxTasksPerBatch ||
		filling.size+size > half {
		filling = &batch{}
		c.open = filling
		c.queue = append(c.queue, filling)
	}
	filling.tasks = append(filling.tasks, task)
	filling.members = append(filling.members, made)
	filling.size += size
	c.schedule()
	return made, nil
}

// admitted waits for a member's outcome, at most as long as its context and the client live.
func (c *coalescer) admitted(waiting *member) (uint64, bool, error) {
	select {
	case <-waiting.done:
	case <-waiting.ctx.Done():
		c.mu.Lock()
		trouble := c.trouble
		c.mu.Unlock()
		c.settle(waiting, 0, false, outOfTime(waiting.ctx, "submit", trouble))
	case <-c.caller.life.Done():
		c.settle(waiting, 0, false, failure(ErrClosed, "the client is closed"))
	}
	<-waiting.done
	return waiting.id, waiting.duplicate, waiting.err
}

func (c *coalescer) settle(waiting *member, id uint64, duplicate bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if waiting.isSettled {
		return
	}
	waiting.isSettled = true
	waiting.id, waiting.duplicate, waiting.err = id, duplicate, err
	close(waiting.done)
}

// schedule has the queue sent soon; the lock is held.
func (c *coalescer) schedule() {
	if !c.isScheduled && c.inFlight < submitsInFlight && !c.caller.isClosed() {
		c.isScheduled = true
		c.caller.spawn(c.pump)
	}
}

func (c *coalescer) pump() {
	// Whoever is about to submit gets a chance to come along.
	runtime.Gosched()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isScheduled = false
	for c.inFlight < submitsInFlight && len(c.queue) > 0 {
		next := c.queue[0]
		c.queue = slices.Delete(c.queue, 0, 1)
		if next == c.open {
			c.open = nil
		}
		c.dropSettled(next)
		if len(next.members) > 0 {
			c.inFlight++
			c.caller.spawn(func() { c.send(next) })
		}
	}
}

func (c *coalescer) dropSettled(sending *batch) {
	sending.keep(func(index int) bool {
		waiting := sending.members[index]
		return !waiting.isSettled && waiting.ctx.Err() == nil
	})
}

// send makes a request until none of its members is left.
func (c *coalescer) send(sending *batch) {
	series := c.caller.newDelays()
	for len(sending.members) > 0 && !c.caller.isClosed() {
		c.mu.Lock()
		isOld := c.isOld
		c.mu.Unlock()
		if isOld {
			for index, waiting := range sending.members {
				c.park(waiting, sending.tasks[index])
			}
			break
		}
		err := c.try(sending)
		if len(sending.members) > 0 && !c.caller.pause(context.Background(), series.next(err)) {
			break
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inFlight--
	c.schedule()
}

// try sends once, leaves in the batch what has to be sent again, and returns why.
func (c *coalescer) try(sending *batch) error {
	c.mu.Lock()
	c.dropSettled(sending)
	c.mu.Unlock()
	if len(sending.members) == 0 {
		return nil
	}
	ctx, cancel := context.WithDeadline(c.caller.life, lastDeadline(sending.members))
	defer cancel()
	request := &pb.SubmitManyRequest{Tasks: sending.tasks}
	answer, err := try(ctx, c.caller, c.caller.tasks.SubmitMany, request)
	c.mu.Lock()
	c.trouble = err
	c.mu.Unlock()
	switch {
	case err == nil:
		return c.take(sending, answer)
	case errors.Is(err, ErrUnsupported):
		c.mu.Lock()
		c.isOld, c.trouble = true, nil
		c.mu.Unlock()
		return nil
	default:
		sending.keep(func(index int) bool {
			waiting := sending.members[index]
			if mayRepeat(err, waiting.isKeyed) {
				return true
			}
			c.settle(waiting, 0, false, err)
			return false
		})
		return err
	}
}

func lastDeadline(members []*member) time.Time {
	var last time.Time
	for _, waiting := range members {
		if deadline, hasDeadline := waiting.ctx.Deadline(); hasDeadline && deadline.After(last) {
			last = deadline
		}
	}
	return last
}

// take gives each member its outcome, keeps those that have to be sent again, and returns why one has.
func (c *coalescer) take(sending *batch, answer *pb.SubmitManyResponse) (again error) {
	outcomes := answer.GetOutcomes()
	sending.keep(func(index int) bool {
		waiting := sending.members[index]
		if index >= len(outcomes) {
			c.settle(waiting, 0, false, failure(ErrInternal, "the answer lacks an outcome"))
			return false
		}
		if admitted := outcomes[index].GetResponse(); admitted != nil {
			c.settle(waiting, admitted.GetId(), admitted.GetDuplicate(), nil)
			return false
		}
		err := statusError(outcomes[index].GetError(), fmt.Sprintf("tasks[%d].", index))
		if errors.Is(err, ErrQueueFull) {
			c.park(waiting, sending.tasks[index])
			return false
		}
		if mayRepeat(err, waiting.isKeyed) {
			again = err
			return true
		}
		c.settle(waiting, 0, false, err)
		return false
	})
	return again
}

// park has a task sent alone, by a call that waits for room.
func (c *coalescer) park(waiting *member, task *pb.TaskSpec) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parked = append(c.parked, parkedTask{waiting, task})
	if c.parkedCount < parkedMax && !c.caller.isClosed() {
		c.parkedCount++
		c.caller.spawn(c.submitParked)
	}
}

// submitParked sends parked tasks one after the other until none is left.
func (c *coalescer) submitParked() {
	for {
		c.mu.Lock()
		if len(c.parked) == 0 {
			c.parkedCount--
			c.mu.Unlock()
			return
		}
		next := c.parked[0]
		// Not moved up: a full pool may have hundreds of thousands parked.
		c.parked[0] = parkedTask{}
		c.parked = c.parked[1:]
		isSettled := next.member.isSettled
		c.mu.Unlock()
		if isSettled {
			continue
		}
		request := &pb.SubmitRequest{Task: next.task}
		answer, err := call(next.member.ctx, c.caller, "submit", c.caller.tasks.Submit,
			request, next.member.isKeyed)
		c.settle(next.member, answer.GetId(), answer.GetDuplicate(), err)
	}
}

// queued is how many requests wait to be sent.
func (c *coalescer) queued() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue)
}

// isIdle is true while nothing is under way.
func (c *coalescer) isIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.queue) == 0 && c.inFlight == 0 && c.parkedCount == 0 && !c.isScheduled
}
