package cronoq

import (
	"math"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// How the SDK's values stand on the wire, in both directions. Filling a message sets only what the
// caller said.

func secondsOf(duration time.Duration) float64 { return duration.Seconds() }

func secondsPtr(duration *time.Duration) *float64 {
	if duration == nil {
		return nil
	}
	return new(duration.Seconds())
}

// durationOf reads seconds of the wire; what no duration can hold counts as none, since Go leaves
// open what converting such a number yields.
func durationOf(seconds float64) time.Duration {
	nanoseconds := seconds * float64(time.Second)
	if nanoseconds >= 0 && nanoseconds < math.MaxInt64 {
		return time.Duration(nanoseconds)
	}
	return 0
}

func durationPtr(seconds *float64) *time.Duration {
	if seconds == nil {
		return nil
	}
	return new(durationOf(*seconds))
}

func unixNs(at time.Time) *int64 {
	if at.IsZero() {
		return nil
	}
	return new(at.UnixNano())
}

// The wire's instants are nanoseconds; what lies beyond these would wrap around to another time.
var (
	firstInstant = time.Unix(0, math.MinInt64)
	lastInstant  = time.Unix(0, math.MaxInt64)
)

// checkInstants fails when one of them, unless nothing was said, is none that the wire can hold.
func checkInstants(of string, instants ...time.Time) error {
	for _, at := range instants {
		if !at.IsZero() && (at.Before(firstInstant) || at.After(lastInstant)) {
			return failure(ErrInvalidField, "%s: the year %d is beyond what can be said", of, at.Year())
		}
	}
	return nil
}

// countOf returns a number as the wire holds it.
func countOf(name string, count int) (uint32, error) {
	if count < 0 || int64(count) > math.MaxUint32 {
		return 0, failure(ErrInvalidField, "%s: %d is out of range", name, count)
	}
	return uint32(count), nil
}

func instantOf(unixNs int64) time.Time { return time.Unix(0, unixNs).UTC() }

func instantPtr(unixNs *int64) time.Time {
	if unixNs == nil {
		return time.Time{}
	}
	return instantOf(*unixNs)
}

func writeRef(ref TaskRef) *pb.TaskRef {
	if ref.Key != "" {
		return &pb.TaskRef{Ref: &pb.TaskRef_Key{Key: ref.Key}}
	}
	return &pb.TaskRef{Ref: &pb.TaskRef_Id{Id: ref.ID}}
}

func readRef(ref *pb.TaskRef) TaskRef { return TaskRef{ID: ref.GetId(), Key: ref.GetKey()} }

// writeSpec puts a spec into a message; it fails when the payload cannot be encoded or a number does
// not fit the wire.
func writeSpec(spec *TaskSpec, codec Codec) (*pb.TaskSpec, error) {
	of := "task of kind \"" + spec.Kind + "\""
	if err := checkInstants(of, spec.DeadlineAt, spec.StartAt, spec.NotBefore); err != nil {
		return nil, err
	}
	message := &pb.TaskSpec{
		Kind: spec.Kind, Pool: spec.Pool, Key: spec.Key, Tenant: spec.Tenant,
		Priority: pb.Priority(spec.Priority), OnMiss: pb.MissPolicy(spec.OnMiss),
		DeadlineInS: secondsPtr(spec.DeadlineIn), DeadlineUnixNs: unixNs(spec.DeadlineAt),
		StartInS: secondsPtr(spec.StartIn), StartUnixNs: unixNs(spec.StartAt),
		ToleranceS: secondsPtr(spec.Tolerance), DurationHintS: secondsPtr(spec.DurationHint),
		TimeoutS: secondsPtr(spec.Timeout), DelayS: secondsPtr(spec.Delay),
		NotBeforeUnixNs: unixNs(spec.NotBefore), ExpiresInS: secondsPtr(spec.ExpiresIn),
		Resources: spec.Resources, Tags: spec.Tags, Labels: spec.Labels,
		TraceContext: spec.TraceContext,
	}
	if spec.Payload != nil {
		payload, contentType, err := codec.Encode(spec.Payload)
		if err != nil {
			return nil, payloadError(err)
		}
		message.Payload, message.ContentType = payload, contentType
	}
	if spec.ContentType != "" {
		message.ContentType = spec.ContentType
	}
	if retry := spec.Retry; retry != nil {
		attempts, err := countOf(of+": retry: max attempts", retry.MaxAttempts)
		if err != nil {
			return nil, err
		}
		message.Retry = &pb.RetryPolicy{
			MaxAttempts: attempts, InitialBackoffS: secondsOf(retry.InitialBackoff),
			Multiplier: retry.Multiplier, MaxBackoffS: secondsOf(retry.MaxBackoff),
			Jitter: retry.Jitter == nil || *retry.Jitter,
		}
	}
	for _, dep := range spec.Deps {
		edge := &pb.Dep{Target: writeRef(dep.Target), Cond: pb.EdgeCond(dep.Cond)}
		message.Deps = append(message.Deps, edge)
	}
	return message, nil
}

// readSpec returns a spec as the server keeps it; the payload stays bytes.
func readSpec(message *pb.TaskSpec) TaskSpec {
	spec := TaskSpec{
		Kind: message.GetKind(), Payload: message.GetPayload(),
		ContentType: message.GetContentType(), Pool: message.GetPool(),
		Priority: Priority(message.GetPriority()), Key: message.GetKey(),
		DeadlineIn: durationPtr(message.DeadlineInS), DeadlineAt: instantPtr(message.DeadlineUnixNs),
		StartIn: durationPtr(message.StartInS), StartAt: instantPtr(message.StartUnixNs),
		Tolerance: durationPtr(message.ToleranceS), OnMiss: MissPolicy(message.GetOnMiss()),
		DurationHint: durationPtr(message.DurationHintS), Timeout: durationPtr(message.TimeoutS),
		Resources: message.GetResources(), Tags: message.GetTags(), Labels: message.GetLabels(),
		Tenant: message.GetTenant(), TraceContext: message.GetTraceContext(),
		Delay: durationPtr(message.DelayS), NotBefore: instantPtr(message.NotBeforeUnixNs),
		ExpiresIn: durationPtr(message.ExpiresInS),
	}
	if retry := message.GetRetry(); retry != nil {
		spec.Retry = &RetryPolicy{
			MaxAttempts: int(retry.GetMaxAttempts()), InitialBackoff: durationOf(retry.GetInitialBackoffS()),
			Multiplier: retry.GetMultiplier(), MaxBackoff: durationOf(retry.GetMaxBackoffS()),
			Jitter: new(retry.GetJitter()),
		}
	}
	for _, dep := range message.GetDeps() {
		cond := or(EdgeCond(dep.GetCond()), OnSuccess)
		spec.Deps = append(spec.Deps, Dep{Target: readRef(dep.GetTarget()), Cond: cond})
	}
	return spec
}

func writeStatuses(statuses []TaskStatus) []pb.TaskStatus {
	written := make([]pb.TaskStatus, len(statuses))
	for index, status := range statuses {
		written[index] = pb.TaskStatus(status)
	}
	return written
}

func writeFilter(wanted TaskFilter) *pb.TaskFilter {
	return &pb.TaskFilter{
		Pools: wanted.Pools, Statuses: writeStatuses(wanted.Statuses), Kinds: wanted.Kinds,
		Keys: wanted.Keys, Tags: wanted.Tags, Tenants: wanted.Tenants, Schedule: wanted.Schedule,
	}
}

func readResult(message *pb.TaskResult) TaskResult {
	return TaskResult{
		ID: message.GetId(), Status: TaskStatus(message.GetStatus()), Output: message.Output,
		ContentType: message.GetContentType(), Message: message.GetMessage(),
		OutputAvailable: message.GetOutputAvailable(),
	}
}

func readProgress(message *pb.Progress) *Progress {
	if message == nil {
		return nil
	}
	return &Progress{Data: message.GetData(), Fraction: message.Fraction}
}

func readInfo(message *pb.TaskInfo) TaskInfo {
	return TaskInfo{
		ID: message.GetId(), Status: TaskStatus(message.GetStatus()), Pool: message.GetPool(),
		Kind: message.GetKind(), Key: message.GetKey(), Attempt: int(message.GetAttempt()),
		MaxAttempts: int(message.GetMaxAttempts()), CreatedAt: instantPtr(message.CreatedUnixNs),
		StartedAt: instantPtr(message.StartedUnixNs), FinishedAt: instantPtr(message.FinishedUnixNs),
		NextRunAt: instantPtr(message.NextRunUnixNs), Message: message.GetMessage(),
		OutputAvailable: message.GetOutputAvailable(), Tenant: message.GetTenant(),
		Priority: or(Priority(message.GetPriority()), Normal), Tags: message.GetTags(),
		Labels: message.GetLabels(), Progress: readProgress(message.GetProgress()),
		WaitingFor: message.GetWaitingFor(), Schedule: message.GetSchedule(),
	}
}

func readEvent(message *pb.StatusEvent) StatusEvent {
	return StatusEvent{
		ID: message.GetId(), Pool: message.GetPool(), Key: message.GetKey(),
		Status: TaskStatus(message.GetStatus()), Attempt: int(message.GetAttempt()),
		At: instantOf(message.GetAtUnixNs()), Message: message.GetMessage(),
		Cursor: message.GetCursor(), Progress: readProgress(message.GetProgress()),
	}
}

func readDetail(message *pb.TaskDetail) TaskDetail {
	detail := TaskDetail{
		Task: readInfo(message.GetInfo()), Spec: readSpec(message.GetSpec()),
		Children: message.GetChildren(),
	}
	for _, attempt := range message.GetAttempts() {
		detail.Attempts = append(detail.Attempts, AttemptRecord{
			Number: int(attempt.GetNumber()), Worker: attempt.GetWorker(),
			StartedAt: instantOf(attempt.GetStartedUnixNs()), EndedAt: instantPtr(attempt.EndedUnixNs),
			Outcome: attempt.GetOutcome(), Message: attempt.GetMessage(),
		})
	}
	for _, parent := range message.GetParents() {
		detail.Parents = append(detail.Parents, ParentRecord{
			Target: readRef(parent.GetTask()), Cond: or(EdgeCond(parent.GetCond()), OnSuccess),
			Status: TaskStatus(parent.GetStatus()),
		})
	}
	return detail
}
