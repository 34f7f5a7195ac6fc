package cronoq

import (
	"bytes"
	"context"
	"errors"
	"math"
	"testing"
	"time"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// What a Go value can hold and the wire cannot is refused; nothing wraps around on its way.

// unasked fails the test when a request that should have been refused is sent.
type unasked struct {
	pb.UnimplementedTasksServer
	pb.UnimplementedAdminServer
	t *testing.T
}

func (u *unasked) fail(request any) { u.t.Errorf("sent: %v", request) }

func (u *unasked) Bulk(_ context.Context, request *pb.BulkRequest) (*pb.BulkResponse, error) {
	u.fail(request)
	return &pb.BulkResponse{}, nil
}

func (u *unasked) ListTasks(
	_ context.Context, request *pb.ListTasksRequest,
) (*pb.ListTasksResponse, error) {
	u.fail(request)
	return &pb.ListTasksResponse{}, nil
}

func (u *unasked) SubmitMany(
	_ context.Context, request *pb.SubmitManyRequest,
) (*pb.SubmitManyResponse, error) {
	u.fail(request)
	outcome := &pb.SubmitOutcome{Outcome: &pb.SubmitOutcome_Response{Response: &pb.SubmitResponse{}}}
	return &pb.SubmitManyResponse{Outcomes: []*pb.SubmitOutcome{outcome}}, nil
}

func (u *unasked) PreviewRecurring(
	_ context.Context, request *pb.PreviewRecurringRequest,
) (*pb.PreviewRecurringResponse, error) {
	u.fail(request)
	return &pb.PreviewRecurringResponse{}, nil
}

func (u *unasked) BackfillRecurring(
	_ context.Context, request *pb.BackfillRecurringRequest,
) (*pb.BackfillRecurringResponse, error) {
	u.fail(request)
	return &pb.BackfillRecurringResponse{}, nil
}

func TestWhatTheWireCannotHold_IsRefused(t *testing.T) {
	server := &unasked{t: t}
	played := startScripted(t, server, server)
	client, err := NewClient(ClientOptions{Endpoint: played.endpoint})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	early, late := time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)
	submit := func(change func(*TaskSpec)) func(context.Context) error {
		return func(ctx context.Context) error {
			spec := TaskSpec{Kind: "echo"}
			change(&spec)
			_, err := client.Submit(ctx, spec)
			return err
		}
	}
	list := func(size int) func(context.Context) error {
		return func(ctx context.Context) error {
			for _, err := range client.List(TaskFilter{}, ListOptions{PageSize: size}).All(ctx) {
				return err
			}
			return nil
		}
	}
	bulk := func(limit int) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := client.Bulk(ctx, BulkCancel, TaskFilter{}, BulkOptions{Limit: limit})
			return err
		}
	}
	for name, call := range map[string]func(context.Context) error{
		"deadline":   submit(func(spec *TaskSpec) { spec.DeadlineAt = late }),
		"start":      submit(func(spec *TaskSpec) { spec.StartAt = early }),
		"not before": submit(func(spec *TaskSpec) { spec.NotBefore = late }),
		"page":       list(-1),
		"large page": list(math.MaxUint32 + 1),
		"bulk":       bulk(-1),
		"large bulk": bulk(math.MaxUint32 + 1),
		"preview": func(ctx context.Context) error {
			_, err := client.PreviewSchedule(ctx, ScheduleRef{Name: "s"}, -1)
			return err
		},
		"preview spec": func(ctx context.Context) error {
			_, err := client.PreviewScheduleSpec(ctx, ScheduleSpec{Name: "s"}, -1)
			return err
		},
		"backfill from": func(ctx context.Context) error {
			_, err := client.BackfillSchedule(ctx, ScheduleRef{Name: "s"}, early, time.Now(), true)
			return err
		},
		"backfill of nothing": func(ctx context.Context) error {
			_, err := client.BackfillSchedule(ctx, ScheduleRef{Name: "s"}, time.Time{}, time.Now(), true)
			return err
		},
		"backfill to": func(ctx context.Context) error {
			_, err := client.BackfillSchedule(ctx, ScheduleRef{Name: "s"}, time.Now(), late, true)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := call(within(t)); !errors.Is(err, ErrInvalidField) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestTheFarthestInstants_AreHeld(t *testing.T) {
	for _, unix := range []int64{math.MinInt64, -1, 0, 1, math.MaxInt64} {
		spec := TaskSpec{NotBefore: time.Unix(0, unix)}
		written, err := writeSpec(&spec, JSONCodec{})
		if err != nil || written.GetNotBeforeUnixNs() != unix {
			t.Errorf("%d became %d, %v", unix, written.GetNotBeforeUnixNs(), err)
		}
	}
}

func TestZlib_WithoutALimitUnpacksAll(t *testing.T) {
	plain := bytes.Repeat([]byte("cronoq"), 1000)
	packed, isPacked, err := ZlibTransform{}.Wrap(plain)
	if err != nil || !isPacked {
		t.Fatal(isPacked, err)
	}
	unpacked, err := ZlibTransform{MaxBytes: math.MaxInt64}.Unwrap(packed)
	if err != nil || !bytes.Equal(unpacked, plain) {
		t.Errorf("%d of %d bytes, %v", len(unpacked), len(plain), err)
	}
}

func TestATokenThatNoMetadataHolds_IsAMistake(t *testing.T) {
	for _, token := range []string{"line\n", "two words", "nul\x00", "ünï", "\xff"} {
		_, clientErr := NewClient(ClientOptions{Token: token})
		_, workerErr := NewWorker(WorkerOptions{Token: token})
		for _, err := range []error{clientErr, workerErr} {
			if err == nil || err.Error() != "cronoq: token: printable ASCII without spaces" {
				t.Errorf("%q: %v", token, err)
			}
		}
	}
}
