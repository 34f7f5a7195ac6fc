package cronoq

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// wire collects what a session writes.
type wire struct{ written []*pb.WorkerMessage }

func (w *wire) write(message *pb.WorkerMessage) { w.written = append(w.written, message) }

func (w *wire) take() []*pb.WorkerMessage {
	taken := w.written
	w.written = nil
	return taken
}

func openSession(answer *pb.Registered) (*session, *wire) {
	made, to := newSession(&pb.Register{}, 4*1024*1024), &wire{}
	made.opening(0)
	if answer.ProtocolVersion == 0 {
		answer.ProtocolVersion = protocolVersion
	}
	made.accepted(answer, to.write, 0)
	return made, to
}

func leaseOf(numbers ...uint64) *pb.ServerMessage {
	batch := &pb.LeaseBatch{}
	for _, number := range numbers {
		batch.Leases = append(batch.Leases, lease(number, "k", ""))
	}
	return &pb.ServerMessage{Message: &pb.ServerMessage_Leases{Leases: batch}}
}

func receiptOf(reports, heartbeats uint64) *pb.ServerMessage {
	receipt := &pb.Receipt{Reports: reports, Heartbeats: heartbeats}
	return &pb.ServerMessage{Message: &pb.ServerMessage_Receipt{Receipt: receipt}}
}

// TestSession_BeatsEveryThirdOfTheTTL follows heartbeats by a clock of its own (WP-23).
func TestSession_BeatsEveryThirdOfTheTTL(t *testing.T) {
	made, to := openSession(&pb.Registered{LeaseTtlS: new(30.0)})
	run := made.receive(leaseOf(5), time.Second).begun[0]
	if due := made.nextPulse(time.Second); due != 10*time.Second {
		t.Errorf("due at %s", due)
	}
	made.pulse(10 * time.Second)
	beat := to.take()[0].GetHeartbeats()
	if !slices.Equal(beat.GetLeases(), []uint64{5}) || beat.GetLastLease() != 5 || beat.GetNumber() != 1 {
		t.Errorf("got %v", beat)
	}
	made.report([]endedRun{{run, completed{}}}, 11*time.Second)
	to.take()
	made.pulse(20 * time.Second)
	if last := to.take()[0].GetHeartbeats(); len(last.GetLeases()) != 0 || last.GetNumber() != 2 {
		t.Errorf("got %v", last)
	}
	made.pulse(30 * time.Second)
	if rest := to.take(); len(rest) != 0 {
		t.Errorf("nothing runs, yet %v", rest)
	}
}

// TestSession_LeasesEndByTheWorkersOwnClock counts from the last heartbeat with a receipt (WP-24).
func TestSession_LeasesEndByTheWorkersOwnClock(t *testing.T) {
	made, _ := openSession(&pb.Registered{LeaseTtlS: new(30.0)})
	run := made.receive(leaseOf(1), 0).begun[0]
	made.pulse(10 * time.Second)
	made.pulse(20 * time.Second)
	made.receive(receiptOf(0, 1), 21*time.Second)
	if expired := made.pulse(39 * time.Second); len(expired) != 0 {
		t.Error("expired early")
	}
	if expired := made.pulse(40 * time.Second); len(expired) != 1 || run.stop() != stopExpired {
		t.Errorf("got %v, %q", expired, run.stop())
	}
	if how := afterStop(run, failed{isPermanent: true}, nil); how.(failed).isPermanent {
		t.Error("a failure after the lease's end is permanent")
	}
}

// TestSession_SendsProgressBeforeTheReport keeps the last word only (WP-25).
// Covers R33.
func TestSession_SendsProgressBeforeTheReport(t *testing.T) {
	made, to := openSession(&pb.Registered{})
	run := made.receive(leaseOf(1), 0).begun[0]
	made.setProgress(run, &pb.Progress{Fraction: new(0.1)})
	made.setProgress(run, &pb.Progress{Fraction: new(0.2)})
	if due := made.nextPulse(0); due != progressInterval {
		t.Errorf("due at %s", due)
	}
	made.report([]endedRun{{run, completed{}}}, 0)
	written := to.take()
	if len(written) != 2 || written[0].GetHeartbeats().GetProgress()[0].GetProgress().GetFraction() != 0.2 ||
		written[1].GetReports() == nil {
		t.Errorf("got %v", written)
	}
}

// TestSession_SplitsReports bounds a message by count and by size (WP-20).
func TestSession_SplitsReports(t *testing.T) {
	made, to := openSession(&pb.Registered{MaxMessageBytes: 300_000})
	numbers := make([]uint64, 501)
	for index := range numbers {
		numbers[index] = uint64(index + 1)
	}
	var ends []endedRun
	for _, run := range made.receive(leaseOf(numbers...), 0).begun {
		ends = append(ends, endedRun{run, completed{}})
	}
	ends[0].how = completed{output: make([]byte, 200_000)}
	ends[1].how = completed{output: make([]byte, 200_000)}
	made.report(ends, 0)
	var counts []int
	for index, message := range to.take() {
		if message.GetReports().GetNumber() != uint64(index+1) {
			t.Errorf("message %d has number %d", index, message.GetReports().GetNumber())
		}
		counts = append(counts, len(message.GetReports().GetReports()))
	}
	if !slices.Equal(counts, []int{1, 500}) {
		t.Errorf("got %v", counts)
	}
	made.receive(receiptOf(2, 0), 0)
	if !made.isSettled() {
		t.Error("owes the server something")
	}
}

// TestSession_BeginsAnewWithAServerThatDoes drops what it cannot hold (WP-34).
func TestSession_BeginsAnewWithAServerThatDoes(t *testing.T) {
	made, to := openSession(&pb.Registered{SessionToken: []byte("a")})
	begun := made.receive(leaseOf(1, 2), 0).begun
	made.report([]endedRun{{begun[0], completed{}}}, 0)
	made.receive(receiptOf(1, 0), 0)
	made.report([]endedRun{{begun[1], completed{}}}, 0)
	made.broken()
	resume := made.opening(1).GetRegister().GetResume()
	if !slices.Equal(resume.GetLeases(), []uint64{2}) {
		t.Errorf("got %v", resume)
	}
	to.take()
	made.accepted(&pb.Registered{ProtocolVersion: 4}, to.write, 1)
	if again := to.take(); len(again) != 0 || !made.isSettled() {
		t.Errorf("got %v", again)
	}
	if run := made.receive(leaseOf(1), 1).begun; len(run) != 1 {
		t.Error("an id of the old server is still taken for seen")
	}
}

// TestSession_KeepsTheFirstReasonButCancelsTheAborted aborts what had expired (WP-16).
func TestSession_KeepsTheFirstReasonButCancelsTheAborted(t *testing.T) {
	made, to := openSession(&pb.Registered{LeaseTtlS: new(1.0)})
	run := made.receive(leaseOf(1), 0).begun[0]
	made.pulse(2 * time.Second)
	batch := &pb.AbortBatch{Aborts: []*pb.Abort{{Lease: 1}}}
	got := made.receive(&pb.ServerMessage{Message: &pb.ServerMessage_Aborts{Aborts: batch}}, 0)
	if len(got.stopped) != 1 || context.Cause(run.ctx).Error() != string(stopExpired) {
		t.Errorf("got %v, %v", got, context.Cause(run.ctx))
	}
	to.take()
	made.report([]endedRun{{run, completed{}}}, 0)
	if report := to.take()[0].GetReports().GetReports()[0]; report.GetCancelled() == nil {
		t.Errorf("got %v", report)
	}
}

// TestSession_SendsProgressAsFarAsItFits bounds heartbeats: the rest goes with the next ones (WP-25).
func TestSession_SendsProgressAsFarAsItFits(t *testing.T) {
	const limit, count = 4 * 1024 * 1024, 6000
	made, to := openSession(&pb.Registered{MaxMessageBytes: limit})
	numbers := make([]uint64, count)
	for index := range numbers {
		numbers[index] = uint64(index + 1)
	}
	runs := made.receive(leaseOf(numbers...), 0).begun
	ends := make([]endedRun, count)
	for index, run := range runs {
		ends[index] = endedRun{run, completed{}}
		made.setProgress(run, &pb.Progress{Data: make([]byte, progressBytesMax), Fraction: new(0.5)})
	}
	made.pulse(progressInterval)
	if due := made.nextPulse(progressInterval); due != 2*progressInterval {
		t.Errorf("the rest is due at %s", due)
	}
	made.report(ends, progressInterval)
	told := 0
	for _, message := range to.take() {
		if size := proto.Size(message); size > limit {
			t.Errorf("a message of %d bytes", size)
		}
		if reports := message.GetReports(); reports != nil && told < count {
			t.Fatalf("a report after %d of %d words of progress", told, count)
		}
		told += len(message.GetHeartbeats().GetProgress())
	}
	if told != count {
		t.Errorf("%d words of progress", told)
	}
}

// TestSession_RestsAfterTheLastWord hears of progress when nothing runs that it could be told of.
func TestSession_RestsAfterTheLastWord(t *testing.T) {
	made, to := openSession(&pb.Registered{LeaseTtlS: new(30.0)})
	run := made.receive(leaseOf(1), 0).begun[0]
	made.report([]endedRun{{run, completed{}}}, 0)
	made.pulse(10 * time.Second)
	made.setProgress(run, &pb.Progress{})
	made.pulse(11 * time.Second)
	if due := made.nextPulse(11 * time.Second); due != 21*time.Second {
		t.Errorf("due at %s", due)
	}
	for _, message := range to.take() {
		if len(message.GetHeartbeats().GetProgress()) > 0 {
			t.Errorf("got %v", message)
		}
	}
}
