package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/cronoq/cronoq/sdk-go"
)

// Which call of the Go client each command of the participant protocol makes.

type request struct {
	Target         target   `json:"target"`
	Targets        []string `json:"targets"`
	Timeout        *seconds `json:"timeout"`
	CallDeadline   *seconds `json:"call_deadline"`
	Task           task     `json:"task"`
	Tasks          []task   `json:"tasks"`
	Count          int      `json:"count"`
	Action         string   `json:"action"`
	Filter         filter   `json:"filter"`
	Limit          int      `json:"limit"`
	DryRun         bool     `json:"dry_run"`
	PageSize       int      `json:"page_size"`
	NewestFirst    bool     `json:"newest_first"`
	Pools          []string `json:"pools"`
	IDs            []string `json:"ids"`
	Keys           []string `json:"keys"`
	AllTransitions bool     `json:"all_transitions"`
	Schedule       schedule `json:"schedule"`
	Name           string   `json:"name"`
}

type command func(context.Context, *cronoq.Client, request) (object, error)

var commands = map[string]command{
	"submit": submit, "submit_together": submitTogether, "submit_many": submitMany,
	"submit_batch": submitBatch, "get": get, "detail": detail, "wait": wait,
	"wait_many": waitMany, "result": result, "cancel": changed((*cronoq.Client).Cancel),
	"retry": changed((*cronoq.Client).Retry), "delete": changed((*cronoq.Client).Delete),
	"bulk": bulk, "list": list, "put_schedule": putSchedule, "get_schedule": getSchedule,
	"remove_schedule": removeSchedule,
}

func toldHandle(handle *cronoq.TaskHandle) object {
	return object{"task_id": toldID(handle.ID), "duplicate": handle.Duplicate}
}

func toldOutcome(handle *cronoq.TaskHandle, err error) object {
	if err != nil {
		return toldError(err)
	}
	return toldHandle(handle)
}

func submit(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	handle, err := client.Submit(ctx, from.Task.spec())
	if err != nil {
		return nil, err
	}
	return toldHandle(handle), nil
}

func submitTogether(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	tasks := from.Tasks
	for number := 1; number <= from.Count; number++ {
		each := from.Task
		if each.Key != "" {
			each.Key = fmt.Sprintf("%s-%d", each.Key, number)
		}
		tasks = append(tasks, each)
	}
	outcomes := make([]object, len(tasks))
	var all sync.WaitGroup
	for index, each := range tasks {
		all.Go(func() { outcomes[index] = toldOutcome(client.Submit(ctx, each.spec())) })
	}
	all.Wait()
	return object{"outcomes": outcomes}, nil
}

func submitMany(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	var outcomes []object
	for _, each := range client.SubmitMany(ctx, specs(from.Tasks)) {
		outcomes = append(outcomes, toldOutcome(each.Handle, each.Err))
	}
	return object{"outcomes": outcomes}, nil
}

func submitBatch(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	handles, err := client.SubmitBatch(ctx, specs(from.Tasks))
	var outcomes []object
	for _, each := range handles {
		outcomes = append(outcomes, toldHandle(each))
	}
	return object{"outcomes": outcomes}, err
}

func get(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	info, err := client.Get(ctx, from.Target.ref())
	return object{"task": toldInfo(info)}, err
}

func detail(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	found, err := client.Detail(ctx, from.Target.ref())
	if err != nil {
		return nil, err
	}
	var attempts, parents []object
	for _, each := range found.Attempts {
		told := toldStruct(each)
		told["started_at"], told["ended_at"] = toldInstant(each.StartedAt), toldInstant(each.EndedAt)
		attempts = append(attempts, told)
	}
	for _, each := range found.Parents {
		told := with(toldTarget(each.Target), "cond", wordOf(conditions, each.Cond))
		parents = append(parents, with(told, "status", each.Status.String()))
	}
	return object{
		"task": toldInfo(found.Task), "spec": toldSpec(found.Spec), "attempts": attempts,
		"parents": parents, "children": toldIDs(found.Children),
	}, nil
}

func wait(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	found, err := client.Wait(ctx, from.Target.ref())
	return object{"result": toldResult(found)}, err
}

func waitMany(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	found, err := client.WaitMany(ctx, ids(from.Targets)...)
	var results []object
	for _, each := range found {
		results = append(results, toldResult(each))
	}
	return object{"results": results}, err
}

func result(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	var output any
	if err := client.Result(ctx, from.Target.ref(), &output); err != nil {
		return nil, err
	}
	if raw, isBytes := output.([]byte); isBytes {
		return withSized(object{}, "output", raw), nil
	}
	return object{"output": output}, nil
}

func changed(call func(*cronoq.Client, context.Context, cronoq.TaskRef) (bool, error)) command {
	return func(ctx context.Context, client *cronoq.Client, from request) (object, error) {
		isChanged, err := call(client, ctx, from.Target.ref())
		return object{"changed": isChanged}, err
	}
}

func bulk(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	options := cronoq.BulkOptions{Limit: from.Limit, DryRun: from.DryRun}
	done, err := client.Bulk(ctx, actions[from.Action], from.Filter.wanted(), options)
	return object{
		"matched": done.Matched, "changed": done.Changed, "next_after": toldID(done.NextAfter),
	}, err
}

func list(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	options := cronoq.ListOptions{PageSize: from.PageSize, NewestFirst: from.NewestFirst}
	pages := client.List(from.Filter.wanted(), options)
	tasks := []object{}
	for each, err := range pages.All(ctx) {
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, toldInfo(each))
	}
	return object{"tasks": tasks, "unavailable_shards": pages.UnavailableShards()}, nil
}

func (p *participant) watch(ctx context.Context, client *cronoq.Client, from request) error {
	options := cronoq.WatchOptions{
		Pools: from.Pools, IDs: ids(from.IDs), Keys: from.Keys,
		AllTransitions: from.AllTransitions,
	}
	for event, err := range client.Watch(ctx, options) {
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		p.emit("event", object{
			"task_id": toldID(event.ID), "pool": event.Pool, "key": event.Key,
			"status": event.Status.String(), "attempt": event.Attempt,
			"at": toldInstant(event.At), "message": event.Message, "cursor_b64": event.Cursor,
			"progress": toldProgress(event.Progress),
		})
	}
	return nil
}

func putSchedule(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	return object{}, client.PutSchedule(ctx, from.Schedule.spec())
}

func getSchedule(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	found, err := client.Schedule(ctx, cronoq.ScheduleRef{Name: from.Name})
	told := toldStruct(found.Schedule)
	told["overlap"] = wordOf(overlaps, found.Schedule.Overlap)
	told["gap"] = wordOf(gaps, found.Schedule.Gap)
	told["fold"] = wordOf(folds, found.Schedule.Fold)
	told["catch_up"] = wordOf(catchUps, found.Schedule.CatchUp)
	told["next_at"] = toldInstant(found.Schedule.NextAt)
	told["tz"], told["last_task_id"] = found.Schedule.TZ, toldID(found.Schedule.LastTaskID)
	return object{"schedule": told}, err
}

func removeSchedule(ctx context.Context, client *cronoq.Client, from request) (object, error) {
	isRemoved, err := client.RemoveSchedule(ctx, cronoq.ScheduleRef{Name: from.Name})
	return object{"changed": isRemoved}, err
}

func ids(texts []string) []uint64 {
	found := make([]uint64, len(texts))
	for index, text := range texts {
		if err := json.Unmarshal([]byte(text), &found[index]); err != nil {
			panic(err) // The runner's mistake.
		}
	}
	return found
}
