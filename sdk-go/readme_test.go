package cronoq_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/cronoq/cronoq/sdk-go"
	"github.com/cronoq/cronoq/sdk-go/cronoqtest"
)

func greet(_ context.Context, name string) (string, error) { return "hello " + name, nil }

// TestReadme_AHandlerIsTried does what the README shows.
func TestReadme_AHandlerIsTried(t *testing.T) {
	ctx := t.Context()
	// docs: handler
	outcome, err := cronoq.TryHandler(ctx, greet, "world", cronoq.FakeAttempt{})
	// docs: end
	if err != nil {
		t.Fatal(err)
	}
	var said string
	if err := outcome.Decode(&said); err != nil || said != "hello world" {
		t.Fatalf("it said %q, %v", said, err)
	}
}

// TestReadme_AServerIsMoved does what the README shows; it needs a server on the path.
func TestReadme_AServerIsMoved(t *testing.T) {
	if _, err := exec.LookPath("cronoq-server"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if err := moved(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func moved(ctx context.Context) error {
	// docs: server
	server, err := cronoqtest.Start(ctx, cronoqtest.Options{})
	if err != nil {
		return err
	}
	defer server.Stop()
	if err := server.Advance(ctx, 3*time.Hour); err != nil {
		return err
	}
	err = server.Settle(ctx) // All that is due has been done.
	// docs: end
	return err
}
