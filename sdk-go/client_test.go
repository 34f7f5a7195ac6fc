package cronoq

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// scriptedTasks answers calls by functions of the test; what has none is not known to the server.
type scriptedTasks struct {
	pb.UnimplementedTasksServer
	submit     func(context.Context, *pb.SubmitRequest) (*pb.SubmitResponse, error)
	submitMany func(context.Context, *pb.SubmitManyRequest) (*pb.SubmitManyResponse, error)
	get        func(context.Context, *pb.GetRequest) (*pb.TaskInfo, error)
	list       func(context.Context, *pb.ListTasksRequest) (*pb.ListTasksResponse, error)
	wait       func(context.Context, *pb.WaitRequest) (*pb.TaskResult, error)
	waitMany   func(*pb.WaitManyRequest, func(*pb.TaskResults) error, context.Context) error
	batches    func(*pb.WatchRequest, func(*pb.StatusEvents) error) error
	watch      func(*pb.WatchRequest, func(*pb.StatusEvent) error) error
}

var errUnknownCall = status.Error(codes.Unimplemented, "unknown call")

func (s *scriptedTasks) Submit(ctx context.Context, asked *pb.SubmitRequest) (*pb.SubmitResponse, error) {
	if s.submit == nil {
		return nil, errUnknownCall
	}
	return s.submit(ctx, asked)
}

func (s *scriptedTasks) SubmitMany(
	ctx context.Context, asked *pb.SubmitManyRequest,
) (*pb.SubmitManyResponse, error) {
	if s.submitMany == nil {
		return nil, errUnknownCall
	}
	return s.submitMany(ctx, asked)
}

func (s *scriptedTasks) Get(ctx context.Context, asked *pb.GetRequest) (*pb.TaskInfo, error) {
	if s.get == nil {
		return nil, errUnknownCall
	}
	return s.get(ctx, asked)
}

func (s *scriptedTasks) ListTasks(
	ctx context.Context, asked *pb.ListTasksRequest,
) (*pb.ListTasksResponse, error) {
	if s.list == nil {
		return nil, errUnknownCall
	}
	return s.list(ctx, asked)
}

func (s *scriptedTasks) Wait(ctx context.Context, asked *pb.WaitRequest) (*pb.TaskResult, error) {
	if s.wait == nil {
		return nil, errUnknownCall
	}
	return s.wait(ctx, asked)
}

func (s *scriptedTasks) WaitMany(
	asked *pb.WaitManyRequest, stream grpc.ServerStreamingServer[pb.TaskResults],
) error {
	if s.waitMany == nil {
		return errUnknownCall
	}
	return s.waitMany(asked, stream.Send, stream.Context())
}

func (s *scriptedTasks) WatchBatches(
	asked *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.StatusEvents],
) error {
	if s.batches == nil {
		return errUnknownCall
	}
	return s.batches(asked, stream.Send)
}

func (s *scriptedTasks) Watch(
	asked *pb.WatchRequest, stream grpc.ServerStreamingServer[pb.StatusEvent],
) error {
	if s.watch == nil {
		return errUnknownCall
	}
	return s.watch(asked, stream.Send)
}

func newTestClient(t *testing.T, tasks *scriptedTasks, options ClientOptions) *Client {
	t.Helper()
	options.Endpoint = startScripted(t, tasks, nil).endpoint
	options.Backoff = swift
	client, err := NewClient(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// admitAll admits every task; the id is the length of its kind.
func admitAll(asked *pb.SubmitManyRequest) *pb.SubmitManyResponse {
	answer := &pb.SubmitManyResponse{}
	for _, task := range asked.GetTasks() {
		admitted := &pb.SubmitResponse{Id: uint64(len(task.GetKind()))}
		answer.Outcomes = append(answer.Outcomes, &pb.SubmitOutcome{
			Outcome: &pb.SubmitOutcome_Response{Response: admitted},
		})
	}
	return answer
}

func refusedOutcome(from *status.Status) *pb.SubmitOutcome {
	return &pb.SubmitOutcome{Outcome: &pb.SubmitOutcome_Error{Error: from.Proto()}}
}

// TestClient_ConcurrentSubmitsShareRequests holds the first two requests while others gather.
func TestClient_ConcurrentSubmitsShareRequests(t *testing.T) {
	var requests, inFlight, most atomic.Int32
	held, release := make(chan struct{}, 100), make(chan struct{})
	tasks := &scriptedTasks{submitMany: func(
		_ context.Context, asked *pb.SubmitManyRequest,
	) (*pb.SubmitManyResponse, error) {
		requests.Add(1)
		most.Store(max(most.Load(), inFlight.Add(1)))
		defer inFlight.Add(-1)
		held <- struct{}{}
		<-release
		return admitAll(asked), nil
	}}
	client := newTestClient(t, tasks, ClientOptions{MaxTasksPerBatch: 50})
	var callers sync.WaitGroup
	submit := func() {
		if _, err := client.Submit(within(t), TaskSpec{Kind: "k"}); err != nil {
			t.Error(err)
		}
	}
	callers.Go(submit)
	<-held
	callers.Go(submit)
	<-held
	for range 100 {
		callers.Go(submit)
	}
	for {
		lane := client.submits.of("")
		lane.mu.Lock()
		waiting := 0
		for _, each := range lane.queue {
			waiting += len(each.members)
		}
		lane.mu.Unlock()
		if waiting == 100 {
			break
		}
		runtime.Gosched()
	}
	close(release)
	callers.Wait()
	if requests.Load() != 4 || most.Load() != submitsInFlight {
		t.Errorf("%d requests, %d at a time", requests.Load(), most.Load())
	}
}

// TestClient_RepeatsOnlyWhatIsSafe loses a request with a keyed and an unkeyed task.
func TestClient_RepeatsOnlyWhatIsSafe(t *testing.T) {
	var requests atomic.Int32
	tasks := &scriptedTasks{submitMany: func(
		_ context.Context, asked *pb.SubmitManyRequest,
	) (*pb.SubmitManyResponse, error) {
		switch requests.Add(1) {
		case 1:
			return nil, refusal(t, codes.Unavailable, "NOT_LEADER", "standby", nil)
		case 2:
			return nil, status.Error(codes.Unavailable, "lost")
		}
		return admitAll(asked), nil
	}}
	client := newTestClient(t, tasks, ClientOptions{})
	outcomes := client.SubmitMany(within(t), []TaskSpec{{Kind: "k"}, {Kind: "keyed", Key: "a"}})
	if !errors.Is(outcomes[0].Err, ErrUnavailable) {
		t.Errorf("got %v", outcomes[0].Err)
	}
	if outcomes[1].Err != nil || outcomes[1].Handle.ID != 5 || requests.Load() != 3 {
		t.Errorf("got %+v after %d requests", outcomes[1], requests.Load())
	}
}

// TestClient_ParksForAFullPoolAndTypesRefusals gives each task of a request its own outcome.
func TestClient_ParksForAFullPoolAndTypesRefusals(t *testing.T) {
	tasks := &scriptedTasks{
		submitMany: func(_ context.Context, asked *pb.SubmitManyRequest) (*pb.SubmitManyResponse, error) {
			answer := admitAll(asked)
			for index, task := range asked.GetTasks() {
				details := map[string]string{"field": fmt.Sprintf("tasks[%d].kind", index), "index": "1"}
				switch task.GetKind() {
				case "full":
					answer.Outcomes[index] = refusedOutcome(
						refusalStatus(t, codes.ResourceExhausted, "QUEUE_FULL", "full", nil))
				case "bad":
					answer.Outcomes[index] = refusedOutcome(refusalStatus(t, codes.InvalidArgument,
						"INVALID_FIELD", fmt.Sprintf("tasks[%d].kind: bad", index), details))
				}
			}
			return answer, nil
		},
		submit: func(_ context.Context, asked *pb.SubmitRequest) (*pb.SubmitResponse, error) {
			return &pb.SubmitResponse{Id: 77, Duplicate: true}, nil
		},
	}
	client := newTestClient(t, tasks, ClientOptions{})
	outcomes := client.SubmitMany(within(t), []TaskSpec{{Kind: "k"}, {Kind: "full"}, {Kind: "bad"},
		{Kind: "k", Payload: make(chan int)}, {Kind: "k", Payload: make([]byte, 5_000_000)}})
	if outcomes[0].Err != nil || outcomes[1].Err != nil || outcomes[1].Handle.ID != 77 {
		t.Errorf("got %+v", outcomes)
	}
	var refused *Error
	if !errors.As(outcomes[2].Err, &refused) || !errors.Is(refused, ErrInvalidField) ||
		!errors.Is(refused, ErrInvalidRequest) || errors.Is(refused, ErrNotFound) ||
		refused.Reason != ReasonInvalidField || refused.Details["field"] != "kind" ||
		refused.Message != "kind: bad" {
		t.Errorf("got %+v", refused)
	}
	if !errors.Is(outcomes[3].Err, ErrPayload) || !errors.Is(outcomes[4].Err, ErrTooLarge) {
		t.Errorf("got %v, %v", outcomes[3].Err, outcomes[4].Err)
	}
}

// TestClient_WorksWithOldServers falls back on single calls.
func TestClient_WorksWithOldServers(t *testing.T) {
	tasks := &scriptedTasks{
		submit: func(_ context.Context, asked *pb.SubmitRequest) (*pb.SubmitResponse, error) {
			return &pb.SubmitResponse{Id: 8}, nil
		},
		wait: func(_ context.Context, asked *pb.WaitRequest) (*pb.TaskResult, error) {
			return &pb.TaskResult{Id: asked.GetTask().GetId(), Status: pb.TaskStatus_TASK_STATUS_SUCCEEDED,
				Output: []byte(`"done"`), ContentType: jsonType}, nil
		},
		watch: func(_ *pb.WatchRequest, send func(*pb.StatusEvent) error) error {
			return send(&pb.StatusEvent{Id: 8, Status: pb.TaskStatus_TASK_STATUS_SUCCEEDED})
		},
	}
	client := newTestClient(t, tasks, ClientOptions{})
	for range 2 {
		handle, err := client.Submit(within(t), TaskSpec{Kind: "k"})
		if err != nil {
			t.Fatal(err)
		}
		if text, err := Result[string](within(t), handle); err != nil || text != "done" {
			t.Errorf("got %q, %v", text, err)
		}
	}
	for event, err := range client.Watch(within(t), WatchOptions{}) {
		if err != nil || event.ID != 8 {
			t.Errorf("got %+v, %v", event, err)
		}
		break
	}
	if _, err := client.Detail(within(t), ByID(8)); !errors.Is(err, ErrUnsupported) {
		t.Errorf("got %v", err)
	}
}

// TestClient_WaitsShareStreamsAndSurviveBreaks answers over a second stream what the first left.
func TestClient_WaitsShareStreamsAndSurviveBreaks(t *testing.T) {
	var opened atomic.Int32
	tasks := &scriptedTasks{waitMany: func(
		asked *pb.WaitManyRequest, send func(*pb.TaskResults) error, _ context.Context,
	) error {
		isFirst := opened.Add(1) == 1
		answer := &pb.TaskResults{}
		for _, id := range asked.GetIds() {
			if id == 3 {
				refused := refusalStatus(t, codes.NotFound, "TASK_UNKNOWN", "unknown", nil)
				answer.Errors = append(answer.Errors, &pb.WaitError{
					Task: writeRef(ByID(id)), Status: refused.Proto(),
				})
			} else if !isFirst || id == 1 {
				answer.Results = append(answer.Results, &pb.TaskResult{
					Id: id, Status: pb.TaskStatus_TASK_STATUS_FAILED, Message: "why",
				})
			}
		}
		if err := send(answer); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "leader gone")
	}}
	client := newTestClient(t, tasks, ClientOptions{})
	results, err := client.WaitMany(within(t), 1, 2, 1)
	if err != nil || len(results) != 3 || results[1].ID != 2 || results[2].ID != 1 {
		t.Errorf("got %+v, %v", results, err)
	}
	if _, err := client.Wait(within(t), ByID(3)); !errors.Is(err, ErrTaskUnknown) {
		t.Errorf("got %v", err)
	}
	var ended *TaskFailedError
	err = client.Result(within(t), ByID(4), nil)
	if !errors.As(err, &ended) || !errors.Is(err, ErrTaskFailed) || ended.Message != "why" {
		t.Errorf("got %v", err)
	}
}

// TestClient_WaitEndsWithItsContext waits for a task that does not end.
func TestClient_WaitEndsWithItsContext(t *testing.T) {
	begun := make(chan struct{}, 10)
	tasks := &scriptedTasks{waitMany: func(
		_ *pb.WaitManyRequest, _ func(*pb.TaskResults) error, ctx context.Context,
	) error {
		begun <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	}}
	client := newTestClient(t, tasks, ClientOptions{})
	short, cancel := context.WithTimeout(within(t), time.Millisecond)
	defer cancel()
	_, err := client.Wait(short, ByID(1))
	if !errors.Is(err, ErrWaitTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	long, stop := context.WithCancel(within(t))
	result := make(chan error, 1)
	go func() {
		_, err := client.Wait(long, ByID(2))
		result <- err
	}()
	<-begun
	stop()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestClient_WatchResumesFromItsCursor breaks a watch after two events.
func TestClient_WatchResumesFromItsCursor(t *testing.T) {
	asked := make(chan string, 10)
	tasks := &scriptedTasks{batches: func(
		request *pb.WatchRequest, send func(*pb.StatusEvents) error,
	) error {
		cursor := string(request.GetAfterCursor())
		asked <- cursor
		if cursor == "gone" {
			return refusal(t, codes.DataLoss, "CURSOR_UNKNOWN", "too old", nil)
		}
		var number uint64
		fmt.Sscan(cursor, &number)
		for _, id := range []uint64{number + 1, number + 2} {
			event := &pb.StatusEvent{Id: id, Cursor: fmt.Append(nil, id)}
			if err := send(&pb.StatusEvents{Events: []*pb.StatusEvent{event}}); err != nil {
				return err
			}
		}
		return status.Error(codes.Unavailable, "leader gone")
	}}
	client := newTestClient(t, tasks, ClientOptions{})
	var seen []uint64
	for event, err := range client.Watch(within(t), WatchOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if seen = append(seen, event.ID); len(seen) == 5 {
			break
		}
	}
	if fmt.Sprint(seen) != "[1 2 3 4 5]" || <-asked != "" || <-asked != "2" {
		t.Errorf("saw %v", seen)
	}
	for _, err := range client.Watch(within(t), WatchOptions{AfterCursor: []byte("gone")}) {
		if !errors.Is(err, ErrCursorUnknown) || !errors.Is(err, ErrWatchLost) {
			t.Errorf("got %v", err)
		}
	}
}

// TestClient_ListsPageByPage reads short pages until the end, and names what they lack.
func TestClient_ListsPageByPage(t *testing.T) {
	tasks := &scriptedTasks{list: func(
		_ context.Context, asked *pb.ListTasksRequest,
	) (*pb.ListTasksResponse, error) {
		switch asked.GetAfter() {
		case 0:
			return &pb.ListTasksResponse{Tasks: []*pb.TaskInfo{{Id: 1}}, NextAfter: 5}, nil
		case 5:
			return &pb.ListTasksResponse{NextAfter: 9, UnavailableShards: []string{"b"}}, nil
		}
		return &pb.ListTasksResponse{Tasks: []*pb.TaskInfo{{Id: 10}}}, nil
	}}
	client := newTestClient(t, tasks, ClientOptions{})
	pages := client.List(TaskFilter{}, ListOptions{})
	var seen []uint64
	for task, err := range pages.All(within(t)) {
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, task.ID)
	}
	if fmt.Sprint(seen, pages.UnavailableShards()) != "[1 10] [b]" {
		t.Errorf("got %v, %v", seen, pages.UnavailableShards())
	}
}

// TestClient_CallsEndAtTheirDeadline asks a server that is never there.
func TestClient_CallsEndAtTheirDeadline(t *testing.T) {
	var tries atomic.Int32
	tasks := &scriptedTasks{get: func(ctx context.Context, _ *pb.GetRequest) (*pb.TaskInfo, error) {
		tries.Add(1)
		if from, _ := metadata.FromIncomingContext(ctx); len(from.Get("authorization")) != 1 {
			return nil, status.Error(codes.Unauthenticated, "no token")
		}
		return nil, refusal(t, codes.Unavailable, "STORE_UNAVAILABLE", "store gone", nil)
	}}
	client := newTestClient(t, tasks, ClientOptions{Deadline: 100 * time.Millisecond, Token: "secret"})
	_, err := client.Get(context.Background(), ByID(1))
	if !errors.Is(err, ErrUnavailable) || tries.Load() < 2 {
		t.Errorf("got %v after %d tries", err, tries.Load())
	}
	client.Close()
	if _, err := client.Get(context.Background(), ByID(1)); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	if _, err := client.Submit(context.Background(), TaskSpec{}); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// TestErrors_KnowEveryReasonOfTheWire compares the sentinels with the contract.
func TestErrors_KnowEveryReasonOfTheWire(t *testing.T) {
	for number, name := range pb.ErrorReason_name {
		reason := reasonOf(name)
		kind, isKnown := byReason[reason]
		if number == 0 {
			continue
		}
		if !isKnown {
			t.Errorf("no sentinel for %s", name)
			continue
		}
		if err := statusError(refusalStatus(t, codes.Unknown, name, "", nil).Proto(), ""); !errors.Is(err, kind) {
			t.Errorf("%s became %v", name, err)
		}
	}
	if len(byReason) != len(pb.ErrorReason_name)-1 {
		t.Errorf("%d sentinels for %d reasons", len(byReason), len(pb.ErrorReason_name)-1)
	}
}

// TestClient_TellsSubmissionsAsTheyBeginAndEnd gives tasks the trace context that the hook sets, and
// tells it how each submission ended.
func TestClient_TellsSubmissionsAsTheyBeginAndEnd(t *testing.T) {
	sent := make(chan string, 10)
	tasks := &scriptedTasks{submitMany: func(
		_ context.Context, asked *pb.SubmitManyRequest,
	) (*pb.SubmitManyResponse, error) {
		for _, task := range asked.GetTasks() {
			sent <- task.GetTraceContext()["traceparent"]
		}
		return admitAll(asked), nil
	}}
	var told []string
	hook := func(_ context.Context, submission *Submission) func(error) {
		submission.TraceContext = map[string]string{"traceparent": "span"}
		return func(err error) {
			told = append(told, fmt.Sprintf("%s %v %t", submission.Operation, submission.TaskIDs, err != nil))
		}
	}
	client := newTestClient(t, tasks, ClientOptions{OnSubmit: hook})
	if _, err := client.Submit(within(t), TaskSpec{Kind: "four"}); err != nil {
		t.Fatal(err)
	}
	own := map[string]string{"traceparent": "own"}
	client.SubmitMany(within(t), []TaskSpec{{Kind: "a"}, {Kind: "bb", TraceContext: own}})
	if _, err := client.SubmitBatch(within(t), []TaskSpec{{Kind: "a"}}); err == nil {
		t.Error("a call that the server does not know has succeeded")
	}
	if got := []string{<-sent, <-sent, <-sent}; !slices.Equal(got, []string{"span", "span", "own"}) {
		t.Errorf("tasks carried %q", got)
	}
	expected := []string{"submit [4] false", "submit_many [1 2] false", "submit_batch [] true"}
	if !slices.Equal(told, expected) {
		t.Errorf("the program was told %q", told)
	}
}

// TestClient_AsksAStandbyAgainSoon however often it says that it does not lead, or not for long.
func TestClient_AsksAStandbyAgainSoon(t *testing.T) {
	client := newTestClient(t, &scriptedTasks{}, ClientOptions{})
	bounds := Backoff{Initial: 100 * time.Millisecond, Maximum: 5 * time.Second}
	for _, kind := range []error{ErrNotLeader, ErrStopping} {
		series := client.caller.newDelays()
		series.bounds = bounds
		for range 100 {
			if delay := series.next(failure(kind, "no")); delay > 200*time.Millisecond {
				t.Fatalf("%v: waits %s", kind, delay)
			}
		}
		var longest time.Duration
		for range 100 {
			longest = max(longest, series.next(failure(ErrUnavailable, "gone")))
		}
		if longest <= 200*time.Millisecond {
			t.Errorf("a server in trouble is asked again after %s at most", longest)
		}
	}
}
