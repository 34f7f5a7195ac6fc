// Command first_steps is what docs/getting-started.md shows: a worker and a client in one program.
//
//	go run ./examples/first_steps [ENDPOINT]
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/cronoq/cronoq/sdk-go"
)

// docs: payload

type order struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

func invoice(_ context.Context, asked order) (string, error) {
	return fmt.Sprintf("%s owes %.2f", asked.Customer, float64(asked.Cents)/100), nil
}

// docs: end

// docs: retry

func flaky(ctx context.Context, _ struct{}) (int, error) {
	number := cronoq.AttemptFrom(ctx).Number()
	if number < 3 {
		return 0, cronoq.RetryAfter(50*time.Millisecond, "not yet")
	}
	return number, nil
}

// docs: end

// docs: deps

func square(_ context.Context, number int) (int, error) { return number * number, nil }

func sum(ctx context.Context, _ struct{}) (int, error) {
	attempt, total := cronoq.AttemptFrom(ctx), 0
	for _, parent := range attempt.Parents() {
		var part int
		if err := attempt.Output(ctx, parent, &part); err != nil {
			return 0, err
		}
		total += part
	}
	return total, nil
}

// docs: end

func main() {
	endpoint := "127.0.0.1:7070"
	if len(os.Args) > 1 {
		endpoint = os.Args[1]
	}
	// docs: worker
	worker, err := cronoq.NewWorker(cronoq.WorkerOptions{Endpoint: endpoint, Slots: 8})
	if err != nil {
		log.Fatal(err)
	}
	cronoq.Handle(worker, "invoice", invoice)
	cronoq.Handle(worker, "flaky", flaky)
	cronoq.Handle(worker, "square", square)
	cronoq.Handle(worker, "sum", sum)
	if err := worker.Start(); err != nil { // or worker.RunForever(), until SIGTERM or Ctrl-C
		log.Fatal(err)
	}
	// docs: end
	// docs: client
	client, err := cronoq.NewClient(cronoq.ClientOptions{Endpoint: endpoint})
	if err != nil {
		log.Fatal(err)
	}
	// docs: end
	ctx := context.Background()
	for _, step := range []func(context.Context, *cronoq.Client) error{typed, tried, keyed, joined} {
		if err := step(ctx, client); err != nil {
			log.Fatal(err)
		}
	}
	if err := client.Close(); err != nil {
		log.Fatal(err)
	}
	worker.Stop(ctx)
}

func typed(ctx context.Context, client *cronoq.Client) error {
	// docs: payload
	task, err := client.Submit(ctx, cronoq.TaskSpec{Kind: "invoice", Payload: order{"Ada", 1250}})
	if err != nil {
		return err
	}
	text, err := cronoq.Result[string](ctx, task)
	fmt.Println(text) // Ada owes 12.50
	// docs: end
	return err
}

func tried(ctx context.Context, client *cronoq.Client) error {
	// docs: retry
	task, err := client.Submit(ctx, cronoq.TaskSpec{
		Kind: "flaky", Retry: &cronoq.RetryPolicy{MaxAttempts: 5},
	})
	if err != nil {
		return err
	}
	number, err := cronoq.Result[int](ctx, task)
	fmt.Println("succeeded in attempt", number) // 3
	// docs: end
	return err
}

func keyed(ctx context.Context, client *cronoq.Client) error {
	// docs: key
	mail := cronoq.TaskSpec{Kind: "mail", Payload: "hi", Key: "mail-42", Delay: new(time.Hour)}
	first, err := client.Submit(ctx, mail)
	if err != nil {
		return err
	}
	again, err := client.Submit(ctx, mail)
	if err != nil {
		return err
	}
	fmt.Println(again.ID == first.ID, again.Duplicate) // true true
	_, err = first.Cancel(ctx)
	// docs: end
	return err
}

func joined(ctx context.Context, client *cronoq.Client) error {
	// docs: deps
	last := cronoq.TaskSpec{Kind: "sum", Key: "sum-1-4"}
	var specs []cronoq.TaskSpec
	for number := 1; number <= 4; number++ {
		key := fmt.Sprintf("square-%d", number)
		specs = append(specs, cronoq.TaskSpec{Kind: "square", Payload: number, Key: key})
		last.Deps = append(last.Deps, cronoq.Dep{Target: cronoq.ByKey(key)})
	}
	handles, err := client.SubmitBatch(ctx, append(specs, last))
	if err != nil {
		return err
	}
	total, err := cronoq.Result[int](ctx, handles[len(handles)-1])
	fmt.Println(total) // 30
	// docs: end
	return err
}
