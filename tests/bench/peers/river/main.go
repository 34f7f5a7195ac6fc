// River over PostgreSQL, as the bench talks to it: `river client`, `river worker`.
//
// It is the same conversation as that of speaking.py, which says more about it. Jobs go in by
// InsertManyFast, results are recorded with the job, the mix has River's four priorities.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	callers   = 64
	chunk     = 1000
	poolSize  = 32
	lineBytes = 20
)

var (
	pad   = strings.Repeat("x", 180)
	plain = "-" + strings.Repeat("0", 19) + pad
	notes *os.File
	open  sync.Once
)

// job is the work: nothing, but for a probe's note.
type job struct {
	Text string `json:"text"`
}

// Kind names the work.
func (job) Kind() string { return "job" }

type worker struct {
	river.WorkerDefaults[job]
}

// Work does it and records eight characters as the result.
func (worker) Work(ctx context.Context, it *river.Job[job]) error {
	text := it.Args.Text
	if text[0] == 'P' {
		made, err := strconv.ParseInt(text[1:20], 10, 64)
		if err != nil {
			return err
		}
		note(time.Now().UnixNano() - made)
	}
	return river.RecordOutput(ctx, text[:8])
}

func note(took int64) {
	open.Do(func() {
		file, err := os.OpenFile(os.Getenv("PEER_PROBES"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			panic(err)
		}
		notes = file
	})
	fmt.Fprintf(notes, "%0*d\n", lineBytes-1, took)
}

func probe() string { return fmt.Sprintf("P%019d%s", time.Now().UnixNano(), pad) }

// peer is the client's side.
type peer struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
}

func (p *peer) prepare(ctx context.Context) (map[string]string, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(p.pool), nil)
	if err != nil {
		return nil, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, err
	}
	versions := map[string]string{}
	info, _ := debug.ReadBuildInfo()
	versions["go"] = info.GoVersion
	for _, module := range info.Deps {
		switch module.Path {
		case "github.com/riverqueue/river", "github.com/jackc/pgx/v5":
			versions[module.Path] = module.Version
		}
	}
	return versions, nil
}

func (p *peer) bulk(ctx context.Context, count int, mixed bool) error {
	for first := 0; first < count; first += chunk {
		jobs := make([]river.InsertManyParams, min(chunk, count-first))
		for at := range jobs {
			jobs[at].Args = job{plain}
			if mixed {
				jobs[at].InsertOpts = &river.InsertOpts{Priority: 1 + at%4}
			}
		}
		if _, err := p.client.InsertManyFast(ctx, jobs); err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) single(ctx context.Context, count int) error {
	work := make(chan struct{}, count)
	for range count {
		work <- struct{}{}
	}
	close(work)
	errs := make(chan error, callers)
	for range callers {
		go func() {
			for range work {
				if _, err := p.client.Insert(ctx, job{plain}, nil); err != nil {
					errs <- err
					return
				}
			}
			errs <- nil
		}()
	}
	for range callers {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func (p *peer) probe(ctx context.Context) error {
	_, err := p.client.Insert(ctx, job{probe()}, nil)
	return err
}

// left counts what has not ended: those states are few rows at the end, and have an index.
func (p *peer) left(ctx context.Context) (count int, err error) {
	const query = `SELECT count(*) FROM river_job
		WHERE state IN ('available', 'running', 'retryable', 'scheduled', 'pending')`
	err = p.pool.QueryRow(ctx, query).Scan(&count)
	return count, err
}

// serve works with a number of slots and fetches as often as the command line says.
func serve(ctx context.Context, pool *pgxpool.Pool, cooldown time.Duration) error {
	slots, err := strconv.Atoi(os.Getenv("PEER_SLOTS"))
	if err != nil {
		return err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, worker{})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		FetchCooldown: cooldown,
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})),
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: slots}},
		Workers:       workers,
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-client.Stopped()
	return nil
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	config, err := pgxpool.ParseConfig(os.Getenv("PEER_URL"))
	if err != nil {
		return err
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer pool.Close()
	// A client says that there is something to fetch as seldom as it would fetch itself.
	cooldown, err := time.ParseDuration(os.Args[2])
	if err != nil {
		return err
	}
	if os.Args[1] == "worker" {
		return serve(ctx, pool, cooldown)
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{FetchCooldown: cooldown})
	if err != nil {
		return err
	}
	return converse(ctx, &peer{pool: pool, client: client})
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
