package cronoq

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for a fact before it fails.
const patience = 20 * time.Second

// within returns a context that ends when the test has run out of patience.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var servingLine = regexp.MustCompile(`serving gRPC on ([0-9.]+:[0-9]+)`)

// startServer starts a real server in memory and returns its endpoint.
func startServer(t *testing.T) string {
	t.Helper()
	path := or(os.Getenv("CRONOQ_SERVER"), "../.venv/bin/cronoq-server")
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("there is no server to test against: %v; see CRONOQ_SERVER", err)
		}
		t.Skipf("there is no server to test against: %v; see CRONOQ_SERVER", err)
	}
	command := exec.Command(path, "--grpc-addr", "127.0.0.1:0", "--http-addr", "127.0.0.1:0")
	output, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stdout = command.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 1000)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(output); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	t.Cleanup(func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		for range lines { // Read to the end, so that the server is not held up.
		}
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	for line := range lines {
		if found := servingLine.FindStringSubmatch(line); found != nil {
			go func() {
				for range lines {
				}
			}()
			return found[1]
		}
		t.Log(line)
	}
	t.Fatal("the server ended without serving")
	return ""
}

// TestRealServer_RunsWhatIsSubmitted takes the examples' handlers and calls through a real server.
func TestRealServer_RunsWhatIsSubmitted(t *testing.T) {
	endpoint := startServer(t)
	ctx := within(t)
	t.Run("quickstart", func(t *testing.T) { runQuickstart(t, endpoint) })
	t.Run("first steps", func(t *testing.T) { runFirstSteps(t, endpoint) })
	worker, err := NewWorker(WorkerOptions{Endpoint: endpoint, Slots: 4, Name: "gopher"})
	if err != nil {
		t.Fatal(err)
	}
	Handle(worker, "square", func(_ context.Context, number int) (int, error) {
		return number * number, nil
	})
	Handle(worker, "total", func(ctx context.Context, _ struct{}) (int, error) {
		attempt, sum := AttemptFrom(ctx), 0
		for _, parent := range attempt.Parents() {
			var part int
			if err := attempt.Output(ctx, parent, &part); err != nil {
				return 0, err
			}
			sum += part
		}
		return sum, nil
	})
	lingers := make(chan uint64, 1)
	Handle(worker, "linger", func(ctx context.Context, _ struct{}) (struct{}, error) {
		lingers <- AttemptFrom(ctx).TaskID()
		<-ctx.Done()
		return struct{}{}, ctx.Err()
	})
	Handle(worker, "refuse", func(context.Context, []byte) (string, error) {
		return "", Permanent("never")
	})
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	if err := worker.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	client, err := NewClient(ClientOptions{Endpoint: endpoint})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("many", func(t *testing.T) { submitMany(ctx, t, client) })
	t.Run("batch", func(t *testing.T) { submitBatch(ctx, t, client) })
	t.Run("failure and cancellation", func(t *testing.T) { failAndCancel(ctx, t, client, lingers) })
	t.Run("operators", func(t *testing.T) { operate(ctx, t, client) })
	worker.Stop(ctx)
	if err := client.Close(); err != nil {
		t.Error(err)
	}
}

// runQuickstart makes a fresh project of the program that the README shows and runs it against the
// server.
func runQuickstart(t *testing.T, endpoint string) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	program, _, _ := strings.Cut(rest, "```")
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("main.go", strings.ReplaceAll(program, "127.0.0.1:7070", endpoint))
	write("go.mod", consumerModule(t))
	sums, err := os.ReadFile("go.sum")
	if err != nil {
		t.Fatal(err)
	}
	write("go.sum", string(sums))
	command := exec.Command("go", "run", "-mod=mod", ".")
	command.Dir = folder
	output, err := command.CombinedOutput()
	if err != nil || !strings.Contains(string(output), "hello world\n") {
		t.Fatalf("%v: %s", err, output)
	}
}

// runFirstSteps runs what docs/getting-started.md shows.
func runFirstSteps(t *testing.T, endpoint string) {
	output, err := exec.Command("go", "run", "./examples/first_steps", endpoint).Output()
	if err != nil || string(output) != "Ada owes 12.50\nsucceeded in attempt 3\ntrue true\n30\n" {
		t.Fatalf("%v: %s", err, output)
	}
}

// consumerModule is the go.mod of a project that uses this folder, with the same versions.
func consumerModule(t *testing.T) string {
	own, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	const name = "github.com/cronoq/cronoq/sdk-go"
	text := strings.Replace(string(own), "module "+name, "module quickstart", 1)
	text, _, _ = strings.Cut(text, "\ntool ")
	return text + "\nrequire " + name + " v0.0.0\nreplace " + name + " => " + here + "\n"
}

func submitMany(ctx context.Context, t *testing.T, client *Client) {
	specs := make([]TaskSpec, 300)
	for number := range specs {
		specs[number] = TaskSpec{Kind: "square", Payload: number, Tags: map[string]string{"set": "many"}}
	}
	var ids []uint64
	for _, outcome := range client.SubmitMany(ctx, specs) {
		if outcome.Err != nil {
			t.Fatal(outcome.Err)
		}
		ids = append(ids, outcome.Handle.ID)
	}
	results, err := client.WaitMany(ctx, ids...)
	if err != nil {
		t.Fatal(err)
	}
	for number, result := range results {
		var square int
		if err := client.Decode(result, &square); err != nil || square != number*number {
			t.Fatalf("task %d: %d, %v", number, square, err)
		}
	}
	count := 0
	pages := client.List(TaskFilter{Tags: map[string]string{"set": "many"}}, ListOptions{PageSize: 100})
	for _, err := range pages.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		count++
	}
	if count != len(specs) {
		t.Errorf("%d tasks are listed", count)
	}
}

func submitBatch(ctx context.Context, t *testing.T, client *Client) {
	handles, err := client.SubmitBatch(ctx, []TaskSpec{
		{Kind: "total", Key: "sum", Deps: []Dep{{Target: ByKey("a")}, {Target: ByKey("b")}}},
		{Kind: "square", Payload: 3, Key: "a"},
		{Kind: "square", Payload: 4, Key: "b"},
	})
	if err != nil {
		t.Fatal(err)
	}
	if sum, err := Result[int](ctx, handles[0]); err != nil || sum != 25 {
		t.Fatalf("%d, %v", sum, err)
	}
	detail, err := client.Detail(ctx, ByKey("sum"))
	if err != nil || len(detail.Parents) != 2 {
		t.Fatalf("%+v, %v", detail, err)
	}
	again, err := client.Submit(ctx, TaskSpec{Kind: "square", Payload: 3, Key: "a"})
	if err != nil || !again.Duplicate {
		t.Fatalf("%+v, %v", again, err)
	}
}

func failAndCancel(ctx context.Context, t *testing.T, client *Client, lingers <-chan uint64) {
	refused, err := client.Submit(ctx, TaskSpec{Kind: "refuse", Payload: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	result, err := refused.Wait(ctx)
	if err != nil || result.Status != Failed || result.Message != "never" {
		t.Fatalf("%+v, %v", result, err)
	}
	lingering, err := client.Submit(ctx, TaskSpec{Kind: "linger"})
	if err != nil {
		t.Fatal(err)
	}
	if running := <-lingers; running != lingering.ID {
		t.Fatalf("task %d runs", running)
	}
	if isCancelled, err := lingering.Cancel(ctx); err != nil || !isCancelled {
		t.Fatalf("%v, %v", isCancelled, err)
	}
	for event, err := range client.Watch(ctx, WatchOptions{IDs: []uint64{lingering.ID}}) {
		if err != nil || event.Status != Cancelled {
			t.Fatalf("%+v, %v", event, err)
		}
		break
	}
}

func operate(ctx context.Context, t *testing.T, client *Client) {
	spec := ScheduleSpec{Name: "nightly", Cron: "0 3 * * *", Template: TaskSpec{Kind: "square", Payload: 2}}
	if err := client.PutSchedule(ctx, spec); err != nil {
		t.Fatal(err)
	}
	nightly := ScheduleRef{Name: "nightly"}
	id, err := client.TriggerSchedule(ctx, nightly)
	if err != nil {
		t.Fatal(err)
	}
	var square int
	if err := client.Result(ctx, ByID(id), &square); err != nil || square != 4 {
		t.Fatalf("%d, %v", square, err)
	}
	if at, err := client.PreviewSchedule(ctx, nightly, 3); err != nil || len(at) != 3 || at[0].Hour() != 3 {
		t.Fatalf("%v, %v", at, err)
	}
	if wasThere, err := client.RemoveSchedule(ctx, nightly); err != nil || !wasThere {
		t.Fatalf("%v, %v", wasThere, err)
	}
	workers, err := client.Workers(ctx)
	if err != nil || !slices.ContainsFunc(workers.Items, func(worker WorkerInfo) bool {
		return worker.Name == "gopher" && worker.SDK == "go/"+Version
	}) {
		t.Fatalf("%+v, %v", workers, err)
	}
	snapshot, err := client.Snapshot(ctx)
	if err != nil || snapshot.Totals.Succeeded == 0 {
		t.Fatalf("%+v, %v", snapshot, err)
	}
}
