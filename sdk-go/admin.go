package cronoq

import (
	"context"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// The part of a client that operators use: snapshot, workers, schedules, pools, resources.

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// Snapshot returns pools, totals and resources at one moment.
func (c *Client) Snapshot(ctx context.Context) (Snapshot, error) {
	answer, err := call(ctx, c.caller, "snapshot", c.caller.admin.Snapshot, &pb.Empty{}, true)
	if err != nil {
		return Snapshot{}, err
	}
	totals := answer.GetTotals()
	return Snapshot{
		Pools: each(answer.GetPools(), readPool), LiveTasks: answer.GetLiveTasks(),
		Running: answer.GetRunning(), Pending: answer.GetPending(),
		Totals: Totals{
			Submitted: totals.GetSubmitted(), Dispatched: totals.GetDispatched(),
			Succeeded: totals.GetSucceeded(), Failed: totals.GetFailed(),
			DeadLettered: totals.GetDeadLettered(), Cancelled: totals.GetCancelled(),
			Skipped: totals.GetSkipped(), Missed: totals.GetMissed(), Shed: totals.GetShed(),
			Retries: totals.GetRetries(), Timeouts: totals.GetTimeouts(),
			LeaseExpiries: totals.GetLeaseExpiries(), StaleCompletions: totals.GetStaleCompletions(),
		},
		WorkersConnected:  answer.GetWorkersConnected(),
		UnavailableShards: answer.GetUnavailableShards(),
		Resources:         each(answer.GetResources(), readResource),
	}, nil
}

// Workers returns the connected workers.
func (c *Client) Workers(ctx context.Context) (Gathered[WorkerInfo], error) {
	answer, err := call(ctx, c.caller, "workers", c.caller.admin.ListWorkers, &pb.Empty{}, true)
	if err != nil {
		return Gathered[WorkerInfo]{}, err
	}
	workers := each(answer.GetWorkers(), func(worker *pb.WorkerInfo) WorkerInfo {
		return WorkerInfo{
			ID: worker.GetId(), Name: worker.GetName(), Pool: worker.GetPool(),
			Labels: worker.GetLabels(), Slots: int(worker.GetSlots()), Busy: int(worker.GetBusy()),
			ConnectedAt: instantOf(worker.GetConnectedUnixNs()), SDK: worker.GetSdk(),
			Kinds: worker.GetKinds(),
		}
	})
	return Gathered[WorkerInfo]{workers, answer.GetUnavailableShards()}, nil
}

// PutSchedule creates a schedule, or replaces the one of its name. It fails with ErrCronInvalid,
// ErrCronNeverFires or ErrZoneUnknown.
func (c *Client) PutSchedule(ctx context.Context, spec ScheduleSpec) error {
	request, err := c.writeSchedule(&spec)
	if err != nil {
		return err
	}
	_, err = call(ctx, c.caller, "put schedule", c.caller.admin.AddRecurring, request, true)
	return err
}

func (c *Client) writeSchedule(spec *ScheduleSpec) (*pb.RecurringRequest, error) {
	template, err := writeSpec(&spec.Template, c.caller.options.Codec)
	if err != nil {
		return nil, err
	}
	return &pb.RecurringRequest{
		Name: spec.Name, Cron: spec.Cron, Tz: or(spec.TZ, "UTC"), Template: template,
		Overlap: pb.Overlap(spec.Overlap), Gap: pb.Gap(spec.Gap), Fold: pb.Fold(spec.Fold),
		CatchUp: pb.CatchUp(spec.CatchUp), Paused: spec.Paused,
	}, nil
}

// RemoveSchedule removes a schedule; its tasks stay. True if it was there.
func (c *Client) RemoveSchedule(ctx context.Context, target ScheduleRef) (bool, error) {
	request := &pb.RemoveRecurringRequest{Name: target.Name, Pool: optional(target.Pool)}
	answer, err := call(ctx, c.caller, "remove schedule", c.caller.admin.RemoveRecurring, request, true)
	return answer.GetRemoved(), err
}

// Schedules returns all schedules.
func (c *Client) Schedules(ctx context.Context) (Gathered[ScheduleInfo], error) {
	answer, err := call(ctx, c.caller, "schedules", c.caller.admin.ListRecurring, &pb.Empty{}, true)
	if err != nil {
		return Gathered[ScheduleInfo]{}, err
	}
	schedules := each(answer.GetSchedules(), readSchedule)
	return Gathered[ScheduleInfo]{schedules, answer.GetUnavailableShards()}, nil
}

// Schedule returns all that is known about one schedule. It fails with ErrScheduleUnknown.
func (c *Client) Schedule(ctx context.Context, target ScheduleRef) (ScheduleDetail, error) {
	request := &pb.GetRecurringRequest{Name: target.Name, Pool: optional(target.Pool)}
	answer, err := call(ctx, c.caller, "schedule", c.caller.admin.GetRecurring, request, true)
	if err != nil {
		return ScheduleDetail{}, err
	}
	spec := answer.GetSpec()
	return ScheduleDetail{
		Schedule: readSchedule(answer.GetInfo()),
		Spec: ScheduleSpec{
			Name: spec.GetName(), Cron: spec.GetCron(), Template: readSpec(spec.GetTemplate()),
			TZ: spec.GetTz(), Overlap: Overlap(spec.GetOverlap()), Gap: Gap(spec.GetGap()),
			Fold: Fold(spec.GetFold()), CatchUp: CatchUp(spec.GetCatchUp()), Paused: spec.GetPaused(),
		},
		Skipped: answer.GetSkipped(), ChainBroken: answer.GetChainBroken(),
	}, nil
}

// PauseSchedule lets a schedule rest; pausing twice is pausing once.
func (c *Client) PauseSchedule(ctx context.Context, target ScheduleRef) error {
	return c.setPaused(ctx, target, true)
}

// ResumeSchedule lets a schedule go on.
func (c *Client) ResumeSchedule(ctx context.Context, target ScheduleRef) error {
	return c.setPaused(ctx, target, false)
}

func (c *Client) setPaused(ctx context.Context, target ScheduleRef, paused bool) error {
	request := &pb.PauseRecurringRequest{
		Name: target.Name, Paused: paused, Pool: optional(target.Pool),
	}
	_, err := call(ctx, c.caller, "pause schedule", c.caller.admin.PauseRecurring, request, true)
	return err
}

// TriggerSchedule makes an occurrence now and returns its task's id; never repeated by itself.
func (c *Client) TriggerSchedule(ctx context.Context, target ScheduleRef) (uint64, error) {
	request := &pb.TriggerRecurringRequest{Name: target.Name, Pool: optional(target.Pool)}
	answer, err := call(ctx, c.caller, "trigger schedule", c.caller.admin.TriggerRecurring, request, false)
	return answer.GetTaskId(), err
}

// BackfillSchedule makes the occurrences of a past range that have no task, or with dryRun only
// counts them; never repeated by itself.
func (c *Client) BackfillSchedule(
	ctx context.Context, target ScheduleRef, start, end time.Time, dryRun bool,
) (Backfill, error) {
	if start.IsZero() || end.IsZero() {
		return Backfill{}, failure(ErrInvalidField, "backfill: a range has a start and an end")
	}
	if err := checkInstants("backfill", start, end); err != nil {
		return Backfill{}, err
	}
	request := &pb.BackfillRecurringRequest{
		Name: target.Name, FromUnixNs: start.UnixNano(), ToUnixNs: end.UnixNano(),
		Pool: optional(target.Pool), DryRun: dryRun,
	}
	answer, err := call(ctx, c.caller, "backfill schedule", c.caller.admin.BackfillRecurring, request, dryRun)
	if err != nil {
		return Backfill{}, err
	}
	return Backfill{Created: answer.GetCreated(), NextAt: instantPtr(answer.NextUnixNs)}, nil
}

// PreviewSchedule returns the next instants of a schedule that is there; count is at most 100, and 0
// the server's choice.
func (c *Client) PreviewSchedule(
	ctx context.Context, target ScheduleRef, count int,
) ([]time.Time, error) {
	return c.preview(ctx, &pb.PreviewRecurringRequest{
		Schedule: &pb.PreviewRecurringRequest_Name{Name: target.Name}, Pool: optional(target.Pool),
	}, count)
}

// PreviewScheduleSpec returns the next instants of a schedule as it might be put.
func (c *Client) PreviewScheduleSpec(
	ctx context.Context, spec ScheduleSpec, count int,
) ([]time.Time, error) {
	request, err := c.writeSchedule(&spec)
	if err != nil {
		return nil, err
	}
	return c.preview(ctx, &pb.PreviewRecurringRequest{
		Schedule: &pb.PreviewRecurringRequest_Spec{Spec: request},
	}, count)
}

func (c *Client) preview(
	ctx context.Context, request *pb.PreviewRecurringRequest, count int,
) ([]time.Time, error) {
	wanted, err := countOf("preview: count", count)
	if err != nil {
		return nil, err
	}
	request.Count = wanted
	answer, err := call(ctx, c.caller, "preview schedule", c.caller.admin.PreviewRecurring, request, true)
	if err != nil {
		return nil, err
	}
	return each(answer.GetAtUnixNs(), instantOf), nil
}

// Pools returns the pools at one moment.
func (c *Client) Pools(ctx context.Context) (Gathered[PoolSnapshot], error) {
	answer, err := call(ctx, c.caller, "pools", c.caller.admin.ListPools, &pb.Empty{}, true)
	if err != nil {
		return Gathered[PoolSnapshot]{}, err
	}
	return Gathered[PoolSnapshot]{each(answer.GetPools(), readPool), answer.GetUnavailableShards()}, nil
}

// PausePool starts no more attempts in a pool; running ones go on.
func (c *Client) PausePool(ctx context.Context, pool string) error {
	request := &pb.PausePoolRequest{Pool: pool}
	_, err := call(ctx, c.caller, "pause pool", c.caller.admin.PausePool, request, true)
	return err
}

// ResumePool starts attempts in a pool again.
func (c *Client) ResumePool(ctx context.Context, pool string) error {
	request := &pb.ResumePoolRequest{Pool: pool}
	_, err := call(ctx, c.caller, "resume pool", c.caller.admin.ResumePool, request, true)
	return err
}

// Resources returns the resources at one moment.
func (c *Client) Resources(ctx context.Context) (Gathered[ResourceInfo], error) {
	answer, err := call(ctx, c.caller, "resources", c.caller.admin.ListResources, &pb.Empty{}, true)
	if err != nil {
		return Gathered[ResourceInfo]{}, err
	}
	resources := each(answer.GetResources(), readResource)
	return Gathered[ResourceInfo]{resources, answer.GetUnavailableShards()}, nil
}

// ResourceSize is another size for a resource; what is nil stays as it is.
type ResourceSize struct {
	// Permits of a semaphore.
	Permits *uint32
	// Rate of a token bucket, per second.
	Rate *float64
	// Burst of a token bucket.
	Burst *uint32
}

// SetResource changes the size of a resource until its configured size changes.
func (c *Client) SetResource(
	ctx context.Context, name string, size ResourceSize,
) (ResourceInfo, error) {
	request := &pb.SetResourceRequest{
		Name: name, Permits: size.Permits, Rate: size.Rate, Burst: size.Burst,
	}
	answer, err := call(ctx, c.caller, "set resource", c.caller.admin.SetResource, request, true)
	if err != nil {
		return ResourceInfo{}, err
	}
	return readResource(answer), nil
}

func each[From, To any](items []From, read func(From) To) []To {
	made := make([]To, len(items))
	for index, item := range items {
		made[index] = read(item)
	}
	return made
}

func readPool(pool *pb.PoolSnapshot) PoolSnapshot {
	return PoolSnapshot{
		Name: pool.GetName(), Capacity: int(pool.GetCapacity()), Busy: int(pool.GetBusy()),
		Held: int(pool.GetHeld()), Desired: int(pool.GetDesired()),
		PendingByClass: pool.GetPendingByClass(), Reservations: pool.GetReservations(),
		Dispatched: pool.GetDispatched(), Succeeded: pool.GetSucceeded(), Failed: pool.GetFailed(),
		PriorityAdherence: pool.GetPriorityAdherence(), FixedStartHitRate: pool.GetFixedStartHitRate(),
		Utilization: pool.GetUtilization(), ScheduleEfficiency: pool.GetScheduleEfficiency(),
		WaitP50: durationOf(pool.GetWaitP50S()), WaitP90: durationOf(pool.GetWaitP90S()),
		WaitP99: durationOf(pool.GetWaitP99S()), Cost: pool.GetCost(),
		WorkersConnected: pool.GetWorkersConnected(),
		Groups: each(pool.GetGroups(), func(group *pb.WorkerGroup) WorkerGroup {
			return WorkerGroup{group.GetLabels(), int(group.GetCapacity()), int(group.GetBusy())}
		}),
		Paused: pool.GetPaused(), OldestReady: durationOf(pool.GetOldestReadyS()),
	}
}

func readResource(resource *pb.Resource) ResourceInfo {
	return ResourceInfo{
		Name: resource.GetName(), Kind: resource.GetKind(), Permits: resource.GetPermits(),
		Rate: resource.GetRate(), Burst: resource.GetBurst(), Held: resource.GetHeld(),
		Tokens: resource.GetTokens(), Waiting: resource.GetWaiting(),
		Overridden: resource.GetOverridden(), PerValue: resource.GetPerValue(),
	}
}

func readSchedule(schedule *pb.RecurringInfo) ScheduleInfo {
	return ScheduleInfo{
		Name: schedule.GetName(), Cron: schedule.GetCron(), TZ: schedule.GetTz(),
		Pool: schedule.GetPool(), Kind: schedule.GetKind(),
		Overlap: or(Overlap(schedule.GetOverlap()), OverlapSkip),
		NextAt:  instantPtr(schedule.NextUnixNs), LastTaskID: schedule.GetLastTaskId(),
		Paused: schedule.GetPaused(), Gap: or(Gap(schedule.GetGap()), GapRunAfter),
		Fold: or(Fold(schedule.GetFold()), FoldFirst), CatchUp: or(CatchUp(schedule.GetCatchUp()), CatchUpLatest),
	}
}
