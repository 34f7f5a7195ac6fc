package cronoq

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// Client is a client of one cronoq server (or of the balancer in front of several). It is made once
// and used from any goroutine; Close ends it.
//
// Every call ends at its context's deadline or, if that has none, after ClientOptions.Deadline, all
// repetitions included. Wait and Result have no deadline but their context's.
type Client struct {
	caller  *caller
	submits *lanes
	waits   *sharedWaits
}

// NewClient makes a client; nothing is sent before its first call. It fails when an option is out of
// its range or the endpoint cannot be read.
func NewClient(options ClientOptions) (*Client, error) {
	filled, connection, err := options.filled()
	if err != nil {
		return nil, err
	}
	made, err := newCaller(filled, connection)
	if err != nil {
		return nil, err
	}
	return &Client{caller: made, submits: &lanes{caller: made}, waits: newSharedWaits(made)}, nil
}

// String names the endpoint; a token is never shown.
func (c *Client) String() string {
	return fmt.Sprintf("cronoq.Client(%s)", c.caller.options.Endpoint)
}

// GoString is String: the fields hold the token.
func (c *Client) GoString() string { return c.String() }

// Close ends every call that is under way and closes the connection. It may be called again.
func (c *Client) Close() error { return c.caller.close() }

// TaskHandle is a submitted task.
type TaskHandle struct {
	// ID is the task's id.
	ID uint64
	// Key is its key, empty if it has none.
	Key string
	// Duplicate is true if the key was known and this submission changed nothing.
	Duplicate bool

	client *Client
}

// Ref names the task, for Dep and the calls of a client.
func (h *TaskHandle) Ref() TaskRef { return ByID(h.ID) }

// Result waits for success and decodes the output into what into points to; see [Client.Result].
func (h *TaskHandle) Result(ctx context.Context, into any) error {
	return h.client.Result(ctx, h.Ref(), into)
}

// Wait waits until the task has ended, however it did; see [Client.Wait].
func (h *TaskHandle) Wait(ctx context.Context) (TaskResult, error) {
	return h.client.Wait(ctx, h.Ref())
}

// Cancel cancels the task; true if it is cancelled now.
func (h *TaskHandle) Cancel(ctx context.Context) (bool, error) {
	return h.client.Cancel(ctx, h.Ref())
}

// Submit submits one task and returns once it is acknowledged durably; concurrent submits share
// requests. ErrUnavailable without a key means that the outcome may be unknown.
func (c *Client) Submit(ctx context.Context, task TaskSpec) (*TaskHandle, error) {
	if c.caller.isClosed() {
		return nil, failure(ErrClosed, "the client is closed")
	}
	ctx, cancel := c.caller.within(ctx)
	defer cancel()
	if c.caller.options.OnSubmit == nil {
		return c.submit(ctx, task, nil)
	}
	submission, ended := c.watched(ctx, "submit", []TaskSpec{task})
	handle, err := c.submit(ctx, task, submission)
	if err == nil {
		submission.TaskIDs = []uint64{handle.ID}
	}
	ended(err)
	return handle, err
}

func (c *Client) submit(
	ctx context.Context, task TaskSpec, submission *Submission,
) (*TaskHandle, error) {
	c.trace(ctx, &task, submission)
	waiting, err := c.submits.enqueue(ctx, &task)
	if err != nil {
		return nil, err
	}
	return c.handle(&task, waiting)
}

// watched tells the program's hook, if there is one, that a submission begins; the caller calls what
// it returns at its end.
func (c *Client) watched(
	ctx context.Context, operation string, tasks []TaskSpec,
) (*Submission, func(error)) {
	submission := &Submission{Operation: operation, Tasks: tasks}
	if hook := c.caller.options.OnSubmit; hook != nil {
		if ended := hook(ctx, submission); ended != nil {
			return submission, ended
		}
	}
	return submission, func(error) {}
}

// trace puts the trace context of the submission, or else of the caller, into a task that names none,
// if the program wants it.
func (c *Client) trace(ctx context.Context, task *TaskSpec, submission *Submission) {
	if task.TraceContext != nil {
		return
	}
	if submission != nil && submission.TraceContext != nil {
		task.TraceContext = submission.TraceContext
	} else if ask := c.caller.options.TraceContext; ask != nil {
		task.TraceContext = ask(ctx)
	}
}

func (c *Client) handle(task *TaskSpec, waiting *member) (*TaskHandle, error) {
	id, duplicate, err := c.submits.admitted(waiting)
	if err != nil {
		return nil, err
	}
	return &TaskHandle{ID: id, Key: task.Key, Duplicate: duplicate, client: c}, nil
}

// Submitted is what became of one task of SubmitMany: its handle or the error that refused it.
type Submitted struct {
	Handle *TaskHandle
	Err    error
}

// SubmitMany submits many tasks, each on its own: some may be refused while others are admitted. It
// returns the outcomes in the order of the tasks.
func (c *Client) SubmitMany(ctx context.Context, tasks []TaskSpec) []Submitted {
	ctx, cancel := c.caller.within(ctx)
	defer cancel()
	submission, ended := c.watched(ctx, "submit_many", tasks)
	outcomes := make([]Submitted, len(tasks))
	members := make([]*member, len(tasks))
	firstOpen := 0
	for index := range tasks {
		if c.caller.isClosed() {
			outcomes[index].Err = failure(ErrClosed, "the client is closed")
			continue
		}
		task := tasks[index]
		c.trace(ctx, &task, submission)
		members[index], outcomes[index].Err = c.submits.enqueue(ctx, &task)
		// Requests leave in order, so the oldest open task tells when there is room.
		for ; firstOpen <= index && c.submits.hasBacklog(); firstOpen++ {
			if members[firstOpen] != nil {
				c.submits.admitted(members[firstOpen])
			}
		}
	}
	for index, waiting := range members {
		if waiting != nil {
			outcomes[index].Handle, outcomes[index].Err = c.handle(&tasks[index], waiting)
		}
	}
	submission.TaskIDs = make([]uint64, len(tasks))
	for index, outcome := range outcomes {
		if outcome.Err == nil {
			submission.TaskIDs[index] = outcome.Handle.ID
		}
	}
	ended(nil)
	return outcomes
}

// SubmitBatch submits tasks as one: all are admitted, or none and the error names the index. Tasks
// may depend on each other's keys in any order.
func (c *Client) SubmitBatch(ctx context.Context, tasks []TaskSpec) ([]*TaskHandle, error) {
	submission, ended := c.watched(ctx, "submit_batch", tasks)
	handles, err := c.submitBatch(ctx, tasks, submission)
	for _, handle := range handles {
		submission.TaskIDs = append(submission.TaskIDs, handle.ID)
	}
	ended(err)
	return handles, err
}

func (c *Client) submitBatch(
	ctx context.Context, tasks []TaskSpec, submission *Submission,
) ([]*TaskHandle, error) {
	request := &pb.SubmitBatchRequest{}
	areKeyed := true
	for index := range tasks {
		spec := tasks[index]
		c.trace(ctx, &spec, submission)
		task, err := writeSpec(&spec, c.caller.options.Codec)
		if err != nil {
			return nil, err
		}
		areKeyed = areKeyed && task.GetKey() != ""
		request.Tasks = append(request.Tasks, task)
	}
	// With a key on each, a repetition finds the tasks of the first try.
	answer, err := call(ctx, c.caller, "submit batch", c.caller.tasks.SubmitBatch, request, areKeyed)
	if err != nil {
		return nil, err
	}
	if len(answer.GetTasks()) != len(tasks) {
		return nil, failure(ErrInternal, "the answer has %d outcomes for %d tasks",
			len(answer.GetTasks()), len(tasks))
	}
	handles := make([]*TaskHandle, len(tasks))
	for index, each := range answer.GetTasks() {
		handles[index] = &TaskHandle{
			ID: each.GetId(), Key: tasks[index].Key, Duplicate: each.GetDuplicate(), client: c,
		}
	}
	return handles, nil
}

// Get returns where a task stands.
func (c *Client) Get(ctx context.Context, target TaskRef) (TaskInfo, error) {
	request := &pb.GetRequest{Task: writeRef(target)}
	answer, err := call(ctx, c.caller, "get", c.caller.tasks.Get, request, true)
	if err != nil {
		return TaskInfo{}, err
	}
	return readInfo(answer), nil
}

// Detail returns all that is known about a task: spec, payload, attempts, parents, children.
// ErrUnsupported means that the server is too old for it.
func (c *Client) Detail(ctx context.Context, target TaskRef) (TaskDetail, error) {
	request := &pb.GetRequest{Task: writeRef(target)}
	answer, err := call(ctx, c.caller, "detail", c.caller.tasks.Describe, request, true)
	if err != nil {
		return TaskDetail{}, err
	}
	return readDetail(answer), nil
}

// Wait waits until a task has ended, however it did; concurrent waits share streams. ErrWaitTimeout
// means that it had not ended by the context's deadline, ErrTaskUnknown that there is no such task.
func (c *Client) Wait(ctx context.Context, target TaskRef) (TaskResult, error) {
	if c.caller.isClosed() {
		return TaskResult{}, failure(ErrClosed, "the client is closed")
	}
	id := target.ID
	if target.Key != "" {
		// Shared streams answer by id.
		task, err := c.idOf(ctx, target)
		if err != nil {
			return TaskResult{}, err
		}
		id = task
	}
	waiting := c.waits.begin(id)
	defer c.waits.forget(id, waiting)
	return c.waits.result(ctx, id, waiting)
}

// idOf finds the id of a key, with no deadline but the context's.
func (c *Client) idOf(ctx context.Context, target TaskRef) (uint64, error) {
	for {
		info, err := c.Get(ctx, target)
		switch {
		case err == nil:
			return info.ID, nil
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			return 0, failure(ErrWaitTimeout, "task %s has not ended", target)
		case ctx.Err() != nil || !(errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDeadline)):
			return 0, err
		}
	}
}

// WaitMany waits until all of the tasks have ended and returns their results in order. It fails with
// ErrWaitTimeout when some had not ended by the context's deadline.
func (c *Client) WaitMany(ctx context.Context, ids ...uint64) ([]TaskResult, error) {
	if c.caller.isClosed() {
		return nil, failure(ErrClosed, "the client is closed")
	}
	waiting := make([]*waiter, len(ids))
	for index, id := range ids {
		waiting[index] = c.waits.begin(id)
	}
	defer func() {
		for index, id := range ids {
			c.waits.forget(id, waiting[index])
		}
	}()
	results := make([]TaskResult, len(ids))
	for index, id := range ids {
		result, err := c.waits.result(ctx, id, waiting[index])
		if err != nil {
			return nil, err
		}
		results[index] = result
	}
	return results, nil
}

// Result waits for a task to succeed and decodes its output into what into points to; nil leaves the
// output aside. It fails with a [*TaskFailedError] when the task ended otherwise,
// ErrOutputUnavailable when the output is no longer kept, ErrPayload when the output is not of that
// type, and as [Client.Wait] does.
func (c *Client) Result(ctx context.Context, target TaskRef, into any) error {
	result, err := c.Wait(ctx, target)
	if err != nil {
		return err
	}
	return c.Decode(result, into)
}

// Decode puts the output in a result into what into points to, as Result does.
func (c *Client) Decode(result TaskResult, into any) error {
	if result.Status != Succeeded {
		return &TaskFailedError{TaskID: result.ID, Status: result.Status, Message: result.Message}
	}
	if result.Output == nil && !result.OutputAvailable {
		return failure(ErrOutputUnavailable, "the output of task %d is no longer kept", result.ID)
	}
	if into == nil {
		return nil
	}
	if err := c.caller.options.Codec.Decode(result.Output, result.ContentType, into); err != nil {
		return payloadError(err)
	}
	return nil
}

// Result waits for a task to succeed and returns its output as a T; see [Client.Result].
func Result[T any](ctx context.Context, handle *TaskHandle) (T, error) {
	var output T
	err := handle.Result(ctx, &output)
	return output, err
}

// Cancel cancels a task; true if it is cancelled, by whichever call.
func (c *Client) Cancel(ctx context.Context, target TaskRef) (bool, error) {
	request := &pb.CancelRequest{Task: writeRef(target)}
	answer, err := call(ctx, c.caller, "cancel", c.caller.tasks.Cancel, request, true)
	return answer.GetCancelled(), err
}

// Retry puts a task that ended without success back, with fresh attempts. It fails with ErrKeyInUse
// when another live task has its key, ErrDependencyImpossible, or ErrNotTerminal.
func (c *Client) Retry(ctx context.Context, target TaskRef) (bool, error) {
	request := &pb.RetryRequest{Task: writeRef(target)}
	answer, err := call(ctx, c.caller, "retry", c.caller.tasks.Retry, request, false)
	return answer.GetRetried(), err
}

// Delete forgets a finished task; true if it was there. ErrNotTerminal means that it has not ended.
func (c *Client) Delete(ctx context.Context, target TaskRef) (bool, error) {
	request := &pb.DeleteRequest{Task: writeRef(target)}
	answer, err := call(ctx, c.caller, "delete", c.caller.tasks.Delete, request, true)
	return answer.GetDeleted(), err
}

// BulkOptions bound one bulk call.
type BulkOptions struct {
	// Limit is the most tasks to change; 0 is the server's limit.
	Limit int
	// After: only tasks with a higher id.
	After uint64
	// DryRun counts, but changes nothing.
	DryRun bool
}

// Bulk cancels or retries the tasks that a filter finds, a bounded number per call; go on with the
// outcome's NextAfter.
func (c *Client) Bulk(
	ctx context.Context, action BulkAction, wanted TaskFilter, options BulkOptions,
) (BulkOutcome, error) {
	limit, err := countOf("bulk: limit", options.Limit)
	if err != nil {
		return BulkOutcome{}, err
	}
	request := &pb.BulkRequest{
		Filter: writeFilter(wanted), Action: pb.BulkAction(action),
		Limit: limit, After: options.After, DryRun: options.DryRun,
	}
	answer, err := call(ctx, c.caller, "bulk", c.caller.tasks.Bulk, request, options.DryRun)
	if err != nil {
		return BulkOutcome{}, err
	}
	return BulkOutcome{
		Matched: answer.GetMatched(), Changed: answer.GetChanged(),
		NextAfter: answer.GetNextAfter(), UnavailableShards: answer.GetUnavailableShards(),
	}, nil
}
