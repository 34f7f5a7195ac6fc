// Command submit_and_wait is a client: it submits tasks for hello_worker and waits for their results.
//
//	go run ./examples/submit_and_wait [ENDPOINT]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/cronoq/cronoq/sdk-go"
)

func main() {
	var options cronoq.ClientOptions
	if len(os.Args) > 1 {
		options.Endpoint = os.Args[1]
	}
	client, err := cronoq.NewClient(options)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx := context.Background()
	for _, part := range []func(context.Context, *cronoq.Client) error{one, failing, many, stopped} {
		if err := part(ctx, client); err != nil {
			log.Fatal(err)
		}
	}
}

// one submits with a key: submitting again after a lost answer returns the same task.
func one(ctx context.Context, client *cronoq.Client) error {
	handle, err := client.Submit(ctx, cronoq.TaskSpec{
		Kind: "greet", Payload: "world", Key: cronoq.NewKey(),
	})
	if err != nil {
		return err
	}
	greeting, err := cronoq.Result[string](ctx, handle)
	fmt.Println(greeting)
	return err
}

func failing(ctx context.Context, client *cronoq.Client) error {
	refused, err := client.Submit(ctx, cronoq.TaskSpec{
		Kind: "bill", Payload: map[string]any{"customer": "bob", "cents": -1},
	})
	if err != nil {
		return err
	}
	err = refused.Result(ctx, nil)
	var failed *cronoq.TaskFailedError
	if errors.As(err, &failed) {
		fmt.Println(failed)
		return nil
	}
	return err
}

func many(ctx context.Context, client *cronoq.Client) error {
	specs := make([]cronoq.TaskSpec, 1000)
	for number := range specs {
		specs[number] = cronoq.TaskSpec{Kind: "square", Payload: number}
	}
	var ids []uint64
	for _, outcome := range client.SubmitMany(ctx, specs) {
		if outcome.Err != nil {
			return outcome.Err
		}
		ids = append(ids, outcome.Handle.ID)
	}
	results, err := client.WaitMany(ctx, ids...)
	if err != nil {
		return err
	}
	sum := 0
	for _, result := range results {
		var square int
		if err := client.Decode(result, &square); err != nil {
			return err
		}
		sum += square
	}
	fmt.Printf("%d squares, together %d\n", len(results), sum)
	return nil
}

// stopped watches a task and cancels it when it runs.
func stopped(ctx context.Context, client *cronoq.Client) error {
	counting, err := client.Submit(ctx, cronoq.TaskSpec{Kind: "count", Payload: 100})
	if err != nil {
		return err
	}
	options := cronoq.WatchOptions{IDs: []uint64{counting.ID}, AllTransitions: true}
	for event, err := range client.Watch(ctx, options) {
		if err != nil {
			return err
		}
		fmt.Println("count is", event.Status)
		if event.Status == cronoq.Running {
			if _, err := counting.Cancel(ctx); err != nil {
				return err
			}
		}
		if event.Status.IsTerminal() {
			break
		}
	}
	return nil
}
