package cronoq

import (
	"context"
	"iter"
	"slices"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// ListOptions say how a listing is read.
type ListOptions struct {
	// After lists only tasks beyond this id.
	After uint64
	// PageSize is the number of tasks per request; 0 is the server's choice.
	PageSize int
	// NewestFirst lists the highest ids first.
	NewestFirst bool
}

// TaskPages is a listing, fetched page by page while it is read.
type TaskPages struct {
	client      *Client
	wanted      TaskFilter
	options     ListOptions
	unavailable []string
}

// List lists tasks in id order; iterate over its All.
func (c *Client) List(wanted TaskFilter, options ListOptions) *TaskPages {
	return &TaskPages{client: c, wanted: wanted, options: options}
}

// UnavailableShards names the shards that the pages read so far lack.
func (p *TaskPages) UnavailableShards() []string { return slices.Clone(p.unavailable) }

// All yields the tasks. When a page cannot be had, the last pair holds the error.
func (p *TaskPages) All(ctx context.Context) iter.Seq2[TaskInfo, error] {
	return func(yield func(TaskInfo, error) bool) {
		size, err := countOf("list: page size", p.options.PageSize)
		if err != nil {
			yield(TaskInfo{}, err)
			return
		}
		request := &pb.ListTasksRequest{
			Pools: p.wanted.Pools, Statuses: writeStatuses(p.wanted.Statuses),
			Kinds: p.wanted.Kinds, Keys: p.wanted.Keys, Tags: p.wanted.Tags,
			Tenants: p.wanted.Tenants, Schedule: p.wanted.Schedule,
			After: p.options.After, Limit: size,
			NewestFirst: p.options.NewestFirst,
		}
		for {
			tasks := p.client.caller.tasks
			page, err := call(ctx, p.client.caller, "list", tasks.ListTasks, request, true)
			if err != nil {
				yield(TaskInfo{}, err)
				return
			}
			for _, shard := range page.GetUnavailableShards() {
				if !slices.Contains(p.unavailable, shard) {
					p.unavailable = append(p.unavailable, shard)
				}
			}
			for _, message := range page.GetTasks() {
				if !yield(readInfo(message), nil) {
					return
				}
			}
			// Pages may be short or empty; only 0 is the end.
			if page.GetNextAfter() == 0 {
				return
			}
			request.After = page.GetNextAfter()
		}
	}
}
