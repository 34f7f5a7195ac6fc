// The Go participant runs a worker and a client of the Go SDK as commands say, and tells facts. It
// decides nothing and knows no scenario; the protocol is in conformance/PROTOCOL.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"github.com/cronoq/cronoq/sdk-go"
)

type participant struct {
	out   sync.Mutex
	gates gates

	mu        sync.Mutex
	worker    *cronoq.Worker
	client    *cronoq.Client
	stopWatch context.CancelFunc
}

type workerCommand struct {
	Options        options              `json:"options"`
	Handlers       map[string]behaviour `json:"handlers"`
	DefaultHandler *behaviour           `json:"default_handler"`
	UntilSignal    bool                 `json:"until_signal"`
	DrainTimeout   *seconds             `json:"drain_timeout"`
	TaskID         uint64               `json:"task_id,string"`
	Behaviour      behaviour            `json:"behaviour"`
}

type line struct {
	ID int    `json:"id"`
	Do string `json:"do"`
}

func main() {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	p := &participant{gates: gates{byTask: map[uint64]chan behaviour{}}}
	p.emit("hello", object{"language": "go", "sdk": cronoq.Version})
	commands := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		raw, err := commands.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			os.Exit(0)
		}
		var head line
		if err != nil || json.Unmarshal(raw, &head) != nil {
			fmt.Fprintln(os.Stderr, "no command:", string(raw), err)
			os.Exit(2)
		}
		if head.Do == "exit" {
			os.Exit(0)
		}
		go p.answer(head, raw)
	}
}

// emit writes one fact.
func (p *participant) emit(fact string, fields object) {
	fields["fact"] = fact
	raw, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	p.out.Lock()
	defer p.out.Unlock()
	os.Stdout.Write(append(raw, '\n'))
}

func (p *participant) answer(head line, raw []byte) {
	told, err := p.do(head.Do, raw)
	if errors.Is(err, errors.ErrUnsupported) {
		p.emit("failed", object{
			"id": head.ID, "type": "protocol", "family": "protocol", "message": head.Do,
		})
		return
	}
	if err != nil {
		p.emit("failed", with(toldError(err), "id", head.ID))
		return
	}
	if told == nil {
		told = object{}
	}
	p.emit("done", with(told, "id", head.ID))
}

func (p *participant) do(name string, raw []byte) (object, error) {
	switch name {
	case "start_worker", "stop_worker", "finish_attempt", "is_ready":
		var from workerCommand
		if err := json.Unmarshal(raw, &from); err != nil {
			return nil, err
		}
		return p.doWorker(name, from)
	}
	var from struct {
		request
		Options options `json:"options"`
	}
	if err := json.Unmarshal(raw, &from); err != nil {
		return nil, err
	}
	return p.doClient(name, from.request, from.Options)
}

func (p *participant) doWorker(name string, from workerCommand) (object, error) {
	switch name {
	case "start_worker":
		return nil, p.startWorker(from)
	case "finish_attempt":
		p.gates.of(from.TaskID) <- from.Behaviour
		return nil, nil
	}
	p.mu.Lock()
	worker := p.worker
	p.mu.Unlock()
	if name == "is_ready" {
		return object{"ready": worker != nil && worker.IsReady()}, nil
	}
	ctx := context.Background()
	if from.DrainTimeout != nil {
		bounded, cancel := context.WithTimeout(ctx, from.DrainTimeout.duration())
		defer cancel()
		ctx = bounded
	}
	worker.Stop(ctx)
	return nil, nil
}

func (p *participant) startWorker(from workerCommand) error {
	made := from.Options.worker()
	made.OnConnect = func(endpoint string) { p.emit("connected", object{"endpoint": endpoint}) }
	made.OnDisconnect = func(endpoint, reason string) {
		p.emit("disconnected", object{"endpoint": endpoint, "reason": reason})
	}
	made.OnRedirect = func(endpoint, refused string) {
		p.emit("redirected", object{"endpoint": endpoint, "refused": refused})
	}
	made.OnAbort = func(attempt *cronoq.Attempt, reason string) {
		p.emit("told_to_stop", object{
			"task_id": toldID(attempt.TaskID()), "attempt": attempt.Number(), "reason": reason,
		})
	}
	worker, err := cronoq.NewWorker(made)
	if err != nil {
		return err
	}
	for kind, does := range from.Handlers {
		cronoq.Handle(worker, kind, p.handler(does))
	}
	if from.DefaultHandler != nil {
		cronoq.HandleDefault(worker, p.handler(*from.DefaultHandler))
	}
	p.mu.Lock()
	p.worker = worker
	p.mu.Unlock()
	go p.run(worker, from.UntilSignal)
	return nil
}

func (p *participant) run(worker *cronoq.Worker, untilSignal bool) {
	run := func() error { return worker.Run(context.Background()) }
	if untilSignal {
		run = worker.RunForever
	}
	if err := run(); err != nil {
		code := ""
		if failure := new(cronoq.Error); errors.As(err, &failure) {
			code = failure.Details["code"]
		}
		p.emit("gave_up", object{"code": code, "message": err.Error()})
	}
	if untilSignal {
		p.emit("stopped", object{})
		os.Exit(0)
	}
}

func (p *participant) doClient(name string, from request, made options) (object, error) {
	if name == "start_client" {
		client, err := cronoq.NewClient(made.client())
		p.mu.Lock()
		defer p.mu.Unlock()
		p.client = client
		return nil, err
	}
	p.mu.Lock()
	client := p.client
	p.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, bound := range []*seconds{from.Timeout, from.CallDeadline} {
		if bound != nil {
			bounded, end := context.WithTimeout(ctx, bound.duration())
			defer end()
			ctx = bounded
		}
	}
	switch name {
	case "close_client":
		return nil, client.Close()
	case "watch":
		p.mu.Lock()
		p.stopWatch = cancel
		p.mu.Unlock()
		return nil, p.watch(ctx, client, from)
	case "stop_watch":
		p.mu.Lock()
		defer p.mu.Unlock()
		p.stopWatch()
		return nil, nil
	}
	call, isKnown := commands[name]
	if !isKnown {
		return nil, errors.ErrUnsupported
	}
	return call(ctx, client, from)
}
