// Command hello_worker is a worker: run it beside a server, then run submit_and_wait and pipeline.
//
//	go run ./examples/hello_worker [ENDPOINT [POOL]]
package main

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/cronoq/cronoq/sdk-go"
)

// order is what a client submits for bill: any JSON object with these fields will do.
type order struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

type receipt struct {
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
	Attempt  int    `json:"attempt"`
}

func main() {
	options := cronoq.WorkerOptions{Slots: 8}
	if len(os.Args) > 1 {
		options.Endpoint = os.Args[1]
	}
	if len(os.Args) > 2 {
		options.Pool = os.Args[2]
	}
	worker, err := cronoq.NewWorker(options)
	if err != nil {
		log.Fatal(err)
	}
	cronoq.Handle(worker, "greet", greet)
	cronoq.Handle(worker, "bill", bill)
	cronoq.Handle(worker, "count", count)
	cronoq.Handle(worker, "total", total)
	cronoq.Handle(worker, "square", square)
	if err := worker.RunForever(); err != nil {
		log.Fatal(err)
	}
}

func greet(_ context.Context, name string) (string, error) { return "hello " + name, nil }

// bill fails in two ways; task id and number are a fencing token for outside systems.
func bill(ctx context.Context, asked order) (receipt, error) {
	attempt := cronoq.AttemptFrom(ctx)
	if asked.Cents < 0 {
		return receipt{}, cronoq.Permanent("%s cannot owe %d cents", asked.Customer, asked.Cents)
	}
	if attempt.Number() == 1 {
		return receipt{}, cronoq.RetryAfter(200*time.Millisecond, "the bank asks to come back")
	}
	return receipt{asked.Customer, asked.Cents, attempt.Number()}, nil
}

// count is long: it tells how far it is and stops when it is told to.
func count(ctx context.Context, steps int) (int, error) {
	attempt := cronoq.AttemptFrom(ctx)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for step := range steps {
		if err := attempt.Progress(nil, new(float64(step)/float64(steps))); err != nil {
			return 0, err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return step, ctx.Err()
		}
	}
	return steps, nil
}

// total reads the outputs of those that its task depended on.
func total(ctx context.Context, _ struct{}) (int, error) {
	attempt := cronoq.AttemptFrom(ctx)
	sum := 0
	for _, parent := range attempt.Parents() {
		var part int
		if err := attempt.Output(ctx, parent, &part); err != nil {
			return 0, err
		}
		sum += part
	}
	return sum, nil
}

func square(_ context.Context, number int) (int, error) { return number * number, nil }
