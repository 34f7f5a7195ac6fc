package main

import (
	"context"
	"encoding/json"
	"errors"
	"sync"
	"time"

	"github.com/cronoq/cronoq/sdk-go"
)

// What handlers of the Go participant do: the behaviours of the participant protocol.

type step struct {
	DataB64  []byte   `json:"data_b64"`
	Fraction *float64 `json:"fraction"`
}

type behaviour struct {
	Act         string          `json:"act"`
	Output      json.RawMessage `json:"output"`
	OutputB64   []byte          `json:"output_b64"`
	OutputBytes *int            `json:"output_bytes"`
	Message     string          `json:"message"`
	RetryAfter  *seconds        `json:"retry_after"`
	IgnoreStop  bool            `json:"ignore_stop"`
	Seconds     seconds         `json:"seconds"`
	Steps       []step          `json:"steps"`
	Then        *behaviour      `json:"then"`
	Attempts    []behaviour     `json:"attempts"`
	Quiet       bool            `json:"quiet"`
}

func (b behaviour) next() behaviour {
	if b.Then == nil {
		return behaviour{Act: "complete"}
	}
	return *b.Then
}

// gates is where handlers wait until they are told how to end, by task.
type gates struct {
	mu     sync.Mutex
	byTask map[uint64]chan behaviour
}

func (g *gates) of(task uint64) chan behaviour {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byTask[task] == nil {
		g.byTask[task] = make(chan behaviour, 64)
	}
	return g.byTask[task]
}

// handler is what is given to the SDK.
func (p *participant) handler(does behaviour) func(context.Context, any) (any, error) {
	return func(ctx context.Context, payload any) (any, error) {
		attempt := cronoq.AttemptFrom(ctx)
		if does.Quiet {
			return p.act(ctx, does, attempt, payload)
		}
		p.emit("attempt_started", withSized(object{
			"task_id": toldID(attempt.TaskID()), "attempt": attempt.Number(),
			"kind": attempt.Kind(), "key": attempt.Key(), "pool": attempt.Pool(),
			"priority": attempt.Priority().String(), "content_type": attempt.ContentType(),
			"tags": attempt.Tags(), "deadline": toldInstant(attempt.Deadline()),
			"timeout": toldSeconds(attempt.Timeout()), "trace_context": attempt.TraceContext(),
			"parents":       toldIDs(attempt.Parents()),
			"last_progress": toldProgress(attempt.LastProgress()),
		}, "payload", attempt.Payload()))
		defer p.emit("attempt_ended", object{
			"task_id": toldID(attempt.TaskID()), "attempt": attempt.Number(),
		})
		return p.act(ctx, does, attempt, payload)
	}
}

func (p *participant) act(
	ctx context.Context, does behaviour, attempt *cronoq.Attempt, payload any,
) (any, error) {
	switch does.Act {
	case "complete":
		return value{does.Output, does.OutputB64, does.OutputBytes}.get(), nil
	case "echo":
		return payload, nil
	case "fail":
		if does.RetryAfter != nil {
			return nil, cronoq.RetryAfter(does.RetryAfter.duration(), "%s", does.Message)
		}
		return nil, cronoq.Retryable("%s", does.Message)
	case "permanent":
		return nil, cronoq.Permanent("%s", does.Message)
	case "cancel":
		return nil, cronoq.Cancel(does.Message)
	case "reject":
		return nil, cronoq.Reject(does.Message)
	case "throw":
		panic(does.Message)
	case "unencodable":
		return func() {}, nil
	case "block":
		told := ctx.Done()
		if does.IgnoreStop {
			told = nil
		}
		select {
		case next := <-p.gates.of(attempt.TaskID()):
			return p.act(ctx, next, attempt, payload)
		case <-told:
			return nil, ctx.Err()
		}
	case "busy":
		for until := time.Now().Add(does.Seconds.duration()); time.Now().Before(until); {
		}
		return p.act(ctx, does.next(), attempt, payload)
	case "progress":
		for _, each := range does.Steps {
			if err := attempt.Progress(each.DataB64, each.Fraction); err != nil {
				return nil, err
			}
		}
		return p.act(ctx, does.next(), attempt, payload)
	case "by_attempt":
		index := min(attempt.Number(), len(does.Attempts)) - 1
		return p.act(ctx, does.Attempts[index], attempt, payload)
	case "parent_outputs":
		outputs := make([]any, len(attempt.Parents()))
		for index, parent := range attempt.Parents() {
			if err := attempt.Output(ctx, parent, &outputs[index]); err != nil {
				return nil, err
			}
		}
		return outputs, nil
	}
	return nil, errors.New("no such behaviour: " + does.Act)
}
