package cronoq

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

var swift = Backoff{Initial: time.Millisecond, Maximum: 5 * time.Millisecond}

// gate is a handler that says when it begins and ends when it is let.
type gate struct {
	begun chan uint64
	let   chan string
}

func newGate() *gate { return &gate{make(chan uint64, 100), make(chan string, 100)} }

func (g *gate) handle(ctx context.Context, _ struct{}) (string, error) {
	g.begun <- AttemptFrom(ctx).TaskID()
	select {
	case text := <-g.let:
		return text, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (g *gate) wait(t *testing.T) uint64 {
	t.Helper()
	select {
	case task := <-g.begun:
		return task
	case <-within(t).Done():
		t.Fatal("no handler began")
		return 0
	}
}

// startWorker starts a worker with a few handlers and stops it when the test ends.
func startWorker(t *testing.T, options WorkerOptions, gate *gate) *Worker {
	t.Helper()
	options.Logger = quiet
	options.Backoff = swift
	worker, err := NewWorker(options)
	if err != nil {
		t.Fatal(err)
	}
	Handle(worker, "echo", func(_ context.Context, text string) (string, error) { return text, nil })
	Handle(worker, "panic", func(context.Context, struct{}) (string, error) { panic("at the disco") })
	Handle(worker, "exit", func(context.Context, struct{}) (string, error) {
		runtime.Goexit()
		return "", nil
	})
	Handle(worker, "later", func(context.Context, struct{}) (string, error) {
		return "", RetryAfter(5*time.Second, "not %s", "yet")
	})
	Handle(worker, "never", func(context.Context, struct{}) (string, error) {
		return "", Permanent("never: %w", io.EOF)
	})
	Handle(worker, "cancel", func(context.Context, struct{}) (string, error) {
		return "", Cancel("enough")
	})
	Handle(worker, "reject", func(context.Context, struct{}) (string, error) {
		return "", Reject("not here")
	})
	Handle(worker, "fail", func(context.Context, struct{}) (string, error) {
		return "", errors.New("bad\x00text\xff")
	})
	Handle(worker, "large", func(_ context.Context, size int) ([]byte, error) {
		return make([]byte, size), nil
	})
	Handle(worker, "channel", func(context.Context, struct{}) (chan int, error) {
		return make(chan int), nil
	})
	if gate != nil {
		Handle(worker, "gate", gate.handle)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		worker.Stop(now)
	})
	return worker
}

// TestWorker_SaysWhoItIs looks at the first message and its token.
func TestWorker_SaysWhoItIs(t *testing.T) {
	server := newScriptedServer(t)
	worker := startWorker(t, WorkerOptions{
		Endpoint: server.endpoint, Pool: "p", Slots: 3, Name: "n", Token: "secret",
		Labels: map[string]string{"gpu": "yes"},
	}, nil)
	if worker.IsReady() {
		t.Error("ready before the server's answer")
	}
	stream, asked := server.register(t, &pb.Registered{Slots: 3})
	if asked.GetPool() != "p" || asked.GetSlots() != 3 || asked.GetWorkerName() != "n" ||
		asked.GetLabels()["gpu"] != "yes" || asked.GetProtocolVersion() != 4 ||
		asked.GetSdk() != "go/"+Version || asked.GetKinds()[0] != "cancel" || asked.GetResume() != nil {
		t.Errorf("got %v", asked)
	}
	if got := stream.metadata.Get("authorization"); len(got) != 1 || got[0] != "Bearer secret" {
		t.Errorf("got %v", got)
	}
	if err := worker.WaitReady(within(t)); err != nil {
		t.Error(err)
	}
}

// TestWorker_ReportsHowHandlersEnd runs one handler of each kind of end.
func TestWorker_ReportsHowHandlersEnd(t *testing.T) {
	server := newScriptedServer(t)
	startWorker(t, WorkerOptions{Endpoint: server.endpoint}, nil)
	stream, _ := server.register(t, &pb.Registered{Slots: 1, MaxMessageBytes: 200_000})
	fails := func(message string, isPermanent bool) func(*pb.Report) bool {
		return func(report *pb.Report) bool {
			fail := report.GetFail()
			return fail != nil && strings.HasPrefix(fail.GetMessage(), message) &&
				fail.GetPermanent() == isPermanent
		}
	}
	for index, each := range []struct {
		kind, payload string
		isRight       func(*pb.Report) bool
	}{
		{"echo", `"hello"`, func(report *pb.Report) bool {
			return string(report.GetComplete().GetOutput()) == `"hello"` &&
				report.GetComplete().GetContentType() == jsonType
		}},
		{"echo", `5`, fails("cronoq: payload is no string", true)},
		{"echo", `null`, fails("cronoq: payload is null", true)},
		{"panic", "", fails("panic: at the disco", false)},
		{"exit", "", fails("the handler ended its goroutine", false)},
		{"later", "", func(report *pb.Report) bool {
			return report.GetFail().GetMessage() == "not yet" && report.GetFail().GetRetryAfterS() == 5
		}},
		{"never", "", fails("never: EOF", true)},
		{"cancel", "", func(report *pb.Report) bool { return report.GetCancelled() != nil }},
		{"reject", "", func(report *pb.Report) bool { return report.GetNack().GetReason() == "not here" }},
		{"fail", "", fails("bad\ufffdtext\ufffd", false)},
		{"large", "134464", func(report *pb.Report) bool {
			return len(report.GetComplete().GetOutput()) == 134464
		}},
		{"large", "134465", fails("output too large", true)},
		{"channel", "", fails("output not encodable", true)},
		{"unheard", "", func(report *pb.Report) bool { return report.GetNack() != nil }},
	} {
		stream.lease(lease(uint64(index+1), each.kind, each.payload))
		reports := stream.nextReports()
		if reports.GetNumber() != uint64(index+1) || len(reports.GetReports()) != 1 ||
			!each.isRight(reports.GetReports()[0]) {
			t.Errorf("%s: got %.200v", each.kind, reports)
		}
	}
	again := lease(99, "unheard", "")
	again.TaskId = 114
	stream.lease(again)
	if report := stream.nextReports().GetReports()[0]; !fails("no handler for kind", true)(report) {
		t.Errorf("the second time: got %v", report)
	}
}

// TestWorker_FollowsRedirectsWithItsToken leads a worker to another server and refuses a third.
// Covers R15.
func TestWorker_FollowsRedirectsWithItsToken(t *testing.T) {
	first, second := newScriptedServer(t), newScriptedServer(t)
	told := make(chan [2]string, 10)
	startWorker(t, WorkerOptions{
		Endpoint: first.endpoint, Token: "secret",
		OnRedirect: func(endpoint, refused string) { told <- [2]string{endpoint, refused} },
	}, nil)
	first.next(t).redirect("http://"+second.endpoint, false)
	if got := <-told; got != [2]string{"http://" + second.endpoint, ""} {
		t.Errorf("got %q", got)
	}
	stream := second.next(t)
	if got := stream.metadata.Get("authorization"); len(got) != 1 {
		t.Errorf("no token came along: %v", got)
	}
	stream.redirect("http://203.0.113.1:7070", true)
	if got := <-told; !strings.Contains(got[1], "token over http") {
		t.Errorf("got %q", got)
	}
	first.register(t, &pb.Registered{Slots: 1})
}

// TestWorker_ResumesAndDeliversOnce breaks a stream while one attempt runs and one has no receipt.
// Covers R7, R9.
func TestWorker_ResumesAndDeliversOnce(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	startWorker(t, WorkerOptions{Endpoint: server.endpoint, Slots: 2}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 2, SessionToken: []byte("token")})
	stream.lease(lease(1, "echo", `"one"`), lease(2, "gate", ""), lease(1, "echo", `"one"`))
	gate.wait(t)
	if reports := stream.nextReports(); reports.GetReports()[0].GetComplete().GetLease() != 1 {
		t.Fatalf("got %v", reports)
	}
	stream.finish <- status.Error(codes.Unavailable, "broken")
	stream, asked := server.register(t, &pb.Registered{
		Slots: 2, SessionToken: []byte("token"), Adopted: []uint64{1, 2},
	})
	if resume := asked.GetResume(); string(resume.GetSessionToken()) != "token" ||
		len(resume.GetLeases()) != 2 {
		t.Errorf("got %v", resume)
	}
	if again := stream.nextReports(); again.GetNumber() != 1 {
		t.Errorf("got %v", again)
	}
	gate.let <- "two"
	if reports := stream.nextReports(); reports.GetNumber() != 2 ||
		string(reports.GetReports()[0].GetComplete().GetOutput()) != `"two"` {
		t.Errorf("got %v", reports)
	}
}

// TestWorker_StopsWhatIsNotAdopted comes back to a server that holds nothing for it.
func TestWorker_StopsWhatIsNotAdopted(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	aborted := make(chan string, 1)
	startWorker(t, WorkerOptions{
		Endpoint: server.endpoint,
		OnAbort:  func(_ *Attempt, reason string) { aborted <- reason },
	}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1, SessionToken: []byte("a")})
	stream.lease(lease(7, "gate", ""))
	gate.wait(t)
	stream.finish <- nil
	stream, _ = server.register(t, &pb.Registered{Slots: 1, SessionToken: []byte("b")})
	if reason := <-aborted; reason != string(stopLost) {
		t.Errorf("got %q", reason)
	}
	// The same id again is another lease, and the only one that is reported.
	stream.lease(lease(7, "echo", `"new"`))
	if report := stream.nextReports().GetReports()[0]; string(report.GetComplete().GetOutput()) != `"new"` {
		t.Errorf("got %v", report)
	}
}

// TestWorker_TellsHandlersToStop aborts one attempt, and one that is not there.
func TestWorker_TellsHandlersToStop(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	startWorker(t, WorkerOptions{Endpoint: server.endpoint}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1})
	stream.lease(lease(1, "gate", ""))
	gate.wait(t)
	stream.abort(5, 1)
	if report := stream.nextReports().GetReports()[0]; report.GetCancelled().GetLease() != 1 {
		t.Errorf("got %v", report)
	}
}

// TestWorker_NeverExceedsItsSlots sends more leases than slots, as after an abort.
// Covers R31.
func TestWorker_NeverExceedsItsSlots(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	startWorker(t, WorkerOptions{Endpoint: server.endpoint, Slots: 1}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1})
	stream.lease(lease(1, "gate", ""), lease(2, "gate", ""))
	if task := gate.wait(t); task != 101 {
		t.Errorf("task %d began", task)
	}
	if len(gate.begun) > 0 {
		t.Error("both began")
	}
	gate.let <- "one"
	if report := stream.nextReports().GetReports(); report[0].GetComplete().GetLease() != 1 {
		t.Errorf("got %v", report)
	}
	if task := gate.wait(t); task != 102 {
		t.Errorf("task %d began", task)
	}
}

// TestWorker_DrainsInOrder stops a worker while a handler runs, and lets the handler finish.
func TestWorker_DrainsInOrder(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	worker := startWorker(t, WorkerOptions{Endpoint: server.endpoint, Slots: 2}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 2, SessionToken: []byte("a")})
	stream.lease(lease(1, "gate", ""))
	gate.wait(t)
	stopped := make(chan struct{})
	go func() {
		worker.Stop(within(t))
		close(stopped)
	}()
	if message := stream.next(); message.GetSetSlots() == nil || message.GetSetSlots().GetSlots() != 0 {
		t.Fatalf("got %v", message)
	}
	if worker.IsReady() {
		t.Error("ready while it stops")
	}
	stream.lease(lease(2, "echo", `"late"`))
	if report := stream.nextReports().GetReports()[0]; report.GetNack().GetLease() != 2 {
		t.Errorf("got %v", report)
	}
	stream.receipt(1)
	gate.let <- "done"
	if report := stream.nextReports().GetReports()[0]; report.GetComplete().GetLease() != 1 {
		t.Errorf("got %v", report)
	}
	select {
	case <-stopped:
		t.Fatal("stopped without the receipt")
	default:
	}
	stream.receipt(2)
	if message := stream.next(); message != nil {
		t.Errorf("got %v", message)
	}
	stream.finish <- nil
	<-stopped
}

// TestWorker_DeliversOverANewStreamWhileItStops breaks the stream before the last receipt.
// Covers R9.
func TestWorker_DeliversOverANewStreamWhileItStops(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	worker := startWorker(t, WorkerOptions{Endpoint: server.endpoint}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1, SessionToken: []byte("a")})
	stream.lease(lease(1, "gate", ""))
	gate.wait(t)
	stopped := make(chan struct{})
	go func() {
		worker.Stop(within(t))
		close(stopped)
	}()
	stream.next() // SetSlots
	gate.let <- "done"
	stream.nextReports()
	stream.finish <- status.Error(codes.Unavailable, "broken")
	stream, _ = server.register(t, &pb.Registered{
		Slots: 1, SessionToken: []byte("a"), Adopted: []uint64{1},
	})
	if reports := stream.nextReports(); reports.GetNumber() != 1 {
		t.Errorf("got %v", reports)
	}
	stream.receipt(1)
	for stream.next() != nil {
	}
	stream.finish <- nil
	<-stopped
}

// TestWorker_FailsWhatOutlastsTheDrain stops a worker at once: the handler is told, and reported.
func TestWorker_FailsWhatOutlastsTheDrain(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	worker := startWorker(t, WorkerOptions{Endpoint: server.endpoint}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1})
	stream.lease(lease(1, "gate", ""))
	gate.wait(t)
	now, cancel := context.WithCancel(context.Background())
	cancel()
	stopped := make(chan struct{})
	go func() {
		worker.Stop(now)
		close(stopped)
	}()
	reports := stream.nextReports()
	fail := reports.GetReports()[0].GetFail()
	if fail.GetMessage() != "worker stopped" || fail.GetPermanent() {
		t.Errorf("got %v", reports)
	}
	stream.receipt(reports.GetNumber())
	stream.finish <- nil
	<-stopped
}

// TestWorker_GivesUpOnFatalAnswers tells a worker that it may not.
func TestWorker_GivesUpOnFatalAnswers(t *testing.T) {
	server := newScriptedServer(t)
	worker := startWorker(t, WorkerOptions{Endpoint: server.endpoint}, nil)
	server.next(t).finish <- refusal(t, codes.PermissionDenied, "POOL_NOT_ALLOWED", "no", nil)
	err := worker.WaitReady(within(t))
	if !errors.Is(err, ErrGaveUp) || !errors.Is(err, ErrPermissionDenied) {
		t.Errorf("got %v", err)
	}
}

// TestWorker_RunEndsWithItsContext runs a worker as programs do.
func TestWorker_RunEndsWithItsContext(t *testing.T) {
	server := newScriptedServer(t)
	worker, err := NewWorker(WorkerOptions{Endpoint: server.endpoint, Logger: quiet, Backoff: swift})
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err == nil {
		t.Error("started without a handler")
	}
	HandleDefault(worker, func(_ context.Context, raw []byte) ([]byte, error) { return raw, nil })
	ctx, cancel := context.WithCancel(within(t))
	result := make(chan error, 1)
	go func() { result <- worker.Run(ctx) }()
	stream, asked := server.register(t, &pb.Registered{Slots: 1})
	if len(asked.GetKinds()) != 0 {
		t.Errorf("got %v", asked.GetKinds())
	}
	cancel()
	for stream.next() != nil {
	}
	stream.finish <- nil
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// TestWorker_SpeaksVersion3 works for a server that knows no batches, receipts or resume.
func TestWorker_SpeaksVersion3(t *testing.T) {
	server := newScriptedServer(t)
	gate := newGate()
	worker := startWorker(t, WorkerOptions{Endpoint: server.endpoint}, gate)
	stream, _ := server.register(t, &pb.Registered{Slots: 1, ProtocolVersion: 3, LeaseTtlS: new(0.09)})
	single := &pb.ServerMessage_Lease{Lease: lease(1, "gate", "")}
	stream.send(&pb.ServerMessage{Message: single})
	gate.wait(t)
	if beat := stream.next().GetHeartbeat(); beat.GetLease() != 1 {
		t.Errorf("got %v", beat)
	}
	gate.let <- "done"
	for {
		message := stream.next()
		if complete := message.GetComplete(); complete != nil {
			break
		}
		if message.GetHeartbeat() == nil {
			t.Fatalf("got %v", message)
		}
	}
	stopped := make(chan struct{})
	go func() {
		worker.Stop(within(t))
		close(stopped)
	}()
	for stream.next() != nil {
	}
	stream.finish <- nil
	<-stopped
}

// TestWorker_FetchesOutputsOfParents reads one output after a server that was not ready for it.
func TestWorker_FetchesOutputsOfParents(t *testing.T) {
	server := newScriptedServer(t)
	calls := 0
	server.output = func(_ context.Context, asked *pb.GetOutputRequest) (*pb.Output, error) {
		if calls++; calls == 1 {
			return nil, status.Error(codes.Unavailable, "not yet")
		}
		if asked.GetLease() != 1 || asked.GetTaskId() != 42 {
			return nil, status.Error(codes.NotFound, "no")
		}
		return &pb.Output{Output: []byte(`41`), ContentType: jsonType}, nil
	}
	worker, err := NewWorker(WorkerOptions{Endpoint: server.endpoint, Logger: quiet, Backoff: swift})
	if err != nil {
		t.Fatal(err)
	}
	Handle(worker, "next", func(ctx context.Context, _ struct{}) (int, error) {
		var output int
		attempt := AttemptFrom(ctx)
		err := attempt.Output(ctx, attempt.Parents()[0], &output)
		return output + 1, err
	})
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	stream, _ := server.register(t, &pb.Registered{Slots: 1})
	child := lease(1, "next", "")
	child.Parents = []uint64{42}
	stream.lease(child)
	reports := stream.nextReports()
	if string(reports.GetReports()[0].GetComplete().GetOutput()) != "42" {
		t.Errorf("got %v", reports)
	}
	stream.receipt(1)
	stream.finish <- nil
	worker.Stop(within(t))
}

// TestWorker_ComesOverMutualTLS reads its files for each connection.
func TestWorker_ComesOverMutualTLS(t *testing.T) {
	server := newScriptedServer(t, serverTLS(t, certs+"ca.pem"))
	startWorker(t, WorkerOptions{Endpoint: server.endpoint, TLS: &TLSOptions{
		CA: certs + "ca.pem", Cert: certs + "client.pem", Key: certs + "client.key",
	}}, nil)
	stream, _ := server.register(t, &pb.Registered{Slots: 1})
	stream.finish <- nil
	server.register(t, &pb.Registered{Slots: 1})
}
