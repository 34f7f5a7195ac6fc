package cronoqotel_test

import (
	"testing"

	"github.com/cronoq/cronoq/sdk-go"
	"github.com/cronoq/cronoq/sdk-go/cronoqotel"
)

// TestReadme_TracesAreAskedFor does what the README shows.
func TestReadme_TracesAreAskedFor(t *testing.T) {
	// docs: traces
	clientOptions := cronoq.ClientOptions{OnSubmit: cronoqotel.Submitting(nil)}
	workerOptions := cronoq.WorkerOptions{
		Interceptors: []cronoq.Interceptor{cronoqotel.Tracing(nil)},
	}
	// docs: end
	client, err := cronoq.NewClient(clientOptions)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := cronoq.NewWorker(workerOptions); err != nil {
		t.Fatal(err)
	}
}
