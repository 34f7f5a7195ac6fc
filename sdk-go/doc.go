// Package cronoq is the Go SDK of cronoq, a durable task queue: a [Client] that submits tasks and
// reads their results, and a [Worker] that runs them.
//
//	worker, err := cronoq.NewWorker(cronoq.WorkerOptions{Slots: 4})
//	cronoq.Handle(worker, "greet", func(ctx context.Context, name string) (string, error) {
//		return "hello " + name, nil
//	})
//	err = worker.RunForever()
//
// Work may run twice, never zero times. Toward outside systems use TaskID and Number of the [Attempt]
// as a fencing token: of two attempts the one with the higher number is the newer.
//
// A client's calls end at their context's deadline or after ClientOptions.Deadline. A call whose
// answer was lost is repeated if that is safe: give a task a key ([NewKey]) and its submission is.
// Errors wrap one sentinel per reason, drawn as a tree at [ErrInvalidRequest].
package cronoq

// Version is that of this SDK.
const Version = "0.3.0"
