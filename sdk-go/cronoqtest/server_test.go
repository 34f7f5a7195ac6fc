package cronoqtest

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cronoq/cronoq/sdk-go"
)

const patience = 60 * time.Second

func start(t *testing.T) *Server {
	t.Helper()
	path := os.Getenv("CRONOQ_SERVER")
	if path == "" {
		path = "../../.venv/bin/cronoq-server"
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("there is no server to test against: %v; see CRONOQ_SERVER", err)
		}
		t.Skipf("there is no server to test against: %v; see CRONOQ_SERVER", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := Start(ctx, Options{Command: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// TestServer_RunsWhatIsDueWhenTimeIsMoved takes a task that is hours away to its end.
func TestServer_RunsWhatIsDueWhenTimeIsMoved(t *testing.T) {
	server := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := cronoq.NewClient(cronoq.ClientOptions{Endpoint: server.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	worker, err := cronoq.NewWorker(cronoq.WorkerOptions{Endpoint: server.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	cronoq.Handle(worker, "late", func(context.Context, struct{}) (string, error) {
		return "done", nil
	})
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	defer worker.Stop(ctx)
	handle, err := client.Submit(ctx, cronoq.TaskSpec{Kind: "late", Delay: new(3 * time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	info, err := client.Get(ctx, handle.Ref())
	if err != nil || info.Status != cronoq.Scheduled {
		t.Fatalf("before its time it is %s, %v", info.Status, err)
	}
	if err := server.Advance(ctx, 3*time.Hour); err != nil {
		t.Fatal(err)
	}
	output, err := cronoq.Result[string](ctx, handle)
	if err != nil || output != "done" {
		t.Fatalf("got %q, %v", output, err)
	}
	if err := server.Advance(ctx, -time.Second); err == nil {
		t.Fatal("time went back")
	}
}

// TestStart_SaysWhyThereIsNoServer: what the program said is in the error.
func TestStart_SaysWhyThereIsNoServer(t *testing.T) {
	_, err := Start(t.Context(), Options{Command: "/bin/sh", Args: []string{"--no-such-option"}})
	if err == nil || !strings.Contains(err.Error(), "ended before it served") {
		t.Fatalf("got %v", err)
	}
	if _, err := Start(t.Context(), Options{Command: "/no/such/program"}); err == nil {
		t.Fatal("a program that is not there was started")
	}
}
