package cronoq

import (
	"context"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// What a worker says to its server and believes of its leases: one session, no IO. Rules WP-01 … of
// docs/spec/worker-protocol.md are cited below. A session outlives its streams: reports keep their
// numbers and are kept until their receipt, leases are named in every resume. Messages in, messages
// out: write is whatever puts a message on the present stream, in order, without waiting.
//
// Called from the goroutine that reads the stream, the one that keeps time and the one that reports,
// so every method takes the lock; none waits for anything else.

const (
	protocolVersion   = 4
	receiptsSince     = 4 // Older servers know no batches, receipts or resume.
	leaseTTLDefault   = 30 * time.Second
	beatsPerTTL       = 3
	progressInterval  = time.Second
	progressBytesMax  = 1024
	reportsPerMessage = 500
	recentMax         = 4096
	reportRoom        = 64 // Bytes around one report in its message.
	reportSizeMin     = 256 * 1024
)

// stopCause is why a handler was told to stop: the cause of its context's end.
type stopCause struct {
	kind   stopKind
	reason string
}

type stopKind string

const (
	stopAborted stopKind = "aborted by the server"
	stopExpired stopKind = "lease expired: the server confirmed no heartbeat in time"
	stopLost    stopKind = "lease lost: the server no longer holds it for this worker"
	stopStopped stopKind = "worker stopped"
)

func (s *stopCause) Error() string { return or(s.reason, string(s.kind)) }

// Unwrap makes it one of the ways in which a context is cancelled.
func (s *stopCause) Unwrap() error { return context.Canceled }

// run is one lease in this process, from its arrival until its report is written.
type run struct {
	message   *pb.Lease
	arrivedAt instant
	ttl       time.Duration
	ctx       context.Context
	cancel    context.CancelCauseFunc

	// Guarded by the session's lock.
	isAborted     bool
	progress      *pb.Progress
	isNewProgress bool
}

func newRun(message *pb.Lease, now instant, ttl time.Duration) *run {
	if message.LeaseTtlS != nil {
		ttl = durationOf(message.GetLeaseTtlS())
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	return &run{message: message, arrivedAt: now, ttl: ttl, ctx: ctx, cancel: cancel}
}

// tell tells the handler to stop; the first reason counts.
func (r *run) tell(kind stopKind, reason string) { r.cancel(&stopCause{kind, reason}) }

// stop is why the handler was told to stop; empty if it was not.
func (r *run) stop() stopKind {
	if cause, isTold := context.Cause(r.ctx).(*stopCause); isTold {
		return cause.kind
	}
	return ""
}

// received is what one message of the server means for the worker.
type received struct {
	begun    []*run
	stopped  []*run
	shutdown *pb.Shutdown
}

// sentReports is a Reports message without receipt.
type sentReports struct {
	number uint64
	leases []uint64
	tasks  []uint64
	write  *pb.WorkerMessage
}

type sentBeat struct {
	number uint64
	at     instant
}

// endedRun is a run and how it ended.
type endedRun struct {
	run *run
	how outcome
}

// session is one worker's session over all its streams.
type session struct {
	mu              sync.Mutex
	register        *pb.Register
	write           func(*pb.WorkerMessage)
	token           []byte
	version         uint32
	ttl             time.Duration
	maxMessageBytes int
	runs            map[uint64]*run
	recent          []uint64 // A ring once it is full.
	recentNext      int
	recentSet       map[uint64]struct{}
	sent            []*sentReports
	reportNumber    uint64
	confirmedNumber uint64
	lastLease       uint64
	beatNumber      uint64
	beats           []sentBeat
	beatAt          instant
	hasNamed        bool
	confirmedAt     instant
	openedAt        instant
	isDraining      bool
	isRegistered    bool
	isServing       bool
	notLeader       bool
	hasProgress     bool
}

func newSession(register *pb.Register, maxMessageBytes int) *session {
	return &session{
		register: register, maxMessageBytes: maxMessageBytes, version: protocolVersion,
		ttl: leaseTTLDefault, runs: map[uint64]*run{}, recentSet: map[uint64]struct{}{},
	}
}

// opening returns the first message of a new stream (WP-01, WP-30).
func (s *session) opening(now instant) *pb.WorkerMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	register := proto.CloneOf(s.register)
	if len(s.token) > 0 {
		register.Resume = &pb.Resume{SessionToken: s.token}
		for lease := range s.runs {
			register.Resume.Leases = append(register.Resume.Leases, lease)
		}
		slices.Sort(register.Resume.Leases)
		for _, sent := range s.sent {
			register.Resume.Leases = append(register.Resume.Leases, sent.leases...)
		}
	}
	s.openedAt = now
	s.notLeader = false
	return &pb.WorkerMessage{Message: &pb.WorkerMessage_Register{Register: register}}
}

// accepted takes the server's acceptance and returns the runs that it did not adopt.
func (s *session) accepted(
	answer *pb.Registered, write func(*pb.WorkerMessage), now instant,
) []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = or(answer.GetProtocolVersion(), 1)
	s.token = answer.GetSessionToken()
	s.ttl = leaseTTLDefault
	if answer.LeaseTtlS != nil {
		s.ttl = durationOf(answer.GetLeaseTtlS())
	}
	s.maxMessageBytes = or(int(answer.GetMaxMessageBytes()), s.maxMessageBytes)
	s.write = write
	s.confirmedAt = s.openedAt
	s.beatAt = now
	s.beats = nil
	s.isRegistered = true
	s.isServing = !s.isDraining
	lost := s.loseUnadopted(answer.GetAdopted())
	if len(answer.GetAdopted()) == 0 && answer.GetReportsSeen() == 0 {
		s.beginAnew()
	}
	s.sendAgain(answer.GetReportsSeen())
	if s.isDraining {
		s.putNoSlots()
	}
	return lost
}

// loseUnadopted is WP-32: what the server does not adopt is no longer ours; told are those that run.
func (s *session) loseUnadopted(adopted []uint64) []*run {
	var running []*run
	isAdopted := make(map[uint64]bool, len(adopted))
	for _, lease := range adopted {
		isAdopted[lease] = true
	}
	for lease, each := range s.runs {
		if isAdopted[lease] {
			continue
		}
		if each.stop() == "" {
			running = append(running, each)
		}
		each.tell(stopLost, "")
		// Its id may come again, from a server that counts anew.
		delete(s.runs, lease)
	}
	return running
}

// beginAnew is WP-34: the server may have begun anew, so what was seen before tells nothing.
func (s *session) beginAnew() {
	if s.confirmedNumber > 0 {
		// It has: what it confirmed is gone, and with it every lease of these reports.
		s.sent = nil
		s.confirmedNumber = 0
	}
	s.recent, s.recentNext = nil, 0
	clear(s.recentSet)
	s.lastLease = 0
}

// sendAgain is WP-33: everything the server has not read; it tells stale reports by itself.
func (s *session) sendAgain(seen uint64) {
	if s.version < receiptsSince {
		s.sent = nil
		return
	}
	for _, sent := range s.sent {
		if sent.number > seen {
			s.write(sent.write)
		}
	}
}

// broken: the stream is gone, and nothing is written until the next acceptance.
func (s *session) broken() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.write = nil
	s.isRegistered = false
	s.isServing = false
}

// receive takes one message of the server.
func (s *session) receive(message *pb.ServerMessage, now instant) received {
	s.mu.Lock()
	defer s.mu.Unlock()
	var got received
	switch message := message.GetMessage().(type) {
	case *pb.ServerMessage_Leases:
		got.begun = s.begin(message.Leases.GetLeases(), now)
	case *pb.ServerMessage_Lease:
		got.begun = s.begin([]*pb.Lease{message.Lease}, now)
	case *pb.ServerMessage_Receipt:
		s.confirm(message.Receipt)
	case *pb.ServerMessage_Aborts:
		got.stopped = s.abort(message.Aborts.GetAborts())
	case *pb.ServerMessage_Abort:
		got.stopped = s.abort([]*pb.Abort{message.Abort})
	case *pb.ServerMessage_Shutdown:
		got.shutdown = message.Shutdown
		s.notLeader = message.Shutdown.GetNotLeader()
		s.isServing = false
	}
	// Anything else is a newer server's message: not for us.
	return got
}

func (s *session) begin(leases []*pb.Lease, now instant) []*run {
	var begun []*run
	var late []endedRun
	for _, message := range leases {
		lease := message.GetLease()
		_, isRunning := s.runs[lease]
		if _, isRecent := s.recentSet[lease]; isRunning || isRecent {
			continue // WP-12
		}
		s.lastLease = max(s.lastLease, lease)
		made := newRun(message, now, s.ttl)
		s.runs[lease] = made
		if s.isDraining { // WP-41
			late = append(late, endedRun{made, nacked{"worker is stopping"}})
		} else {
			begun = append(begun, made)
		}
	}
	s.put(late)
	return begun
}

func (s *session) abort(aborts []*pb.Abort) []*run {
	var stopped []*run
	for _, abort := range aborts {
		aborted, isHere := s.runs[abort.GetLease()]
		if !isHere || aborted.isAborted {
			continue // WP-15
		}
		aborted.isAborted = true
		aborted.tell(stopAborted, abort.GetReason())
		stopped = append(stopped, aborted)
	}
	return stopped
}

// confirm is WP-22: reports are durable, and this heartbeat was read.
func (s *session) confirm(receipt *pb.Receipt) {
	s.confirmedNumber = max(s.confirmedNumber, receipt.GetReports())
	for len(s.sent) > 0 && s.sent[0].number <= receipt.GetReports() {
		s.sent = s.sent[1:]
	}
	for len(s.beats) > 0 && s.beats[0].number <= receipt.GetHeartbeats() {
		s.confirmedAt = max(s.confirmedAt, s.beats[0].at)
		s.beats = s.beats[1:]
	}
}

// report reports how runs ended, in as few messages as fit (WP-20, WP-21).
func (s *session) report(ends []endedRun, now instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hasNews := func(end endedRun) bool { return end.run.isNewProgress }
	// WP-25: the last progress goes out before the report, in as many as it takes.
	for s.hasProgress && s.write != nil && slices.ContainsFunc(ends, hasNews) {
		s.beat(now)
	}
	s.put(ends)
}

func (s *session) put(ends []endedRun) {
	room := s.room()
	left := room
	var filling *sentReports
	var reports *pb.Reports
	for _, end := range ends {
		lease := end.run.message.GetLease()
		if s.runs[lease] != end.run {
			continue // Lost, or reported already by a stop that could not wait for it.
		}
		delete(s.runs, lease)
		s.remember(lease)
		how := s.sendable(end)
		report := writeReport(lease, how)
		size := proto.Size(report) + reportRoom
		if filling != nil && (size > left || len(filling.leases) >= reportsPerMessage) {
			s.putReports(filling, reports)
			filling = nil
		}
		if filling == nil {
			filling, reports, left = &sentReports{}, &pb.Reports{}, room
		}
		reports.Reports = append(reports.Reports, report)
		filling.leases = append(filling.leases, lease)
		filling.tasks = append(filling.tasks, end.run.message.GetTaskId())
		left -= size
	}
	if filling != nil {
		s.putReports(filling, reports)
	}
}

// room is what a message of many parts may take.
func (s *session) room() int { return max(reportSizeMin, s.maxMessageBytes) - messageRoom/2 }

func (s *session) sendable(end endedRun) outcome {
	if end.run.isAborted {
		return cancelled{} // WP-16: whatever it came to, the task is cancelled.
	}
	limit := s.maxMessageBytes - messageRoom
	if done, isCompleted := end.how.(completed); isCompleted && len(done.output) > limit { // WP-18
		return failed{message: tooLarge(len(done.output), limit), isPermanent: true}
	}
	return end.how
}

func (s *session) remember(lease uint64) {
	s.recentSet[lease] = struct{}{}
	if len(s.recent) < recentMax {
		s.recent = append(s.recent, lease)
		return
	}
	delete(s.recentSet, s.recent[s.recentNext])
	s.recent[s.recentNext] = lease
	s.recentNext = (s.recentNext + 1) % recentMax
}

func (s *session) putReports(filled *sentReports, reports *pb.Reports) {
	if s.version < receiptsSince {
		// Forgotten once written: an old server knows no resume.
		for _, report := range reports.GetReports() {
			if s.write != nil {
				s.write(singleReport(report))
			}
		}
		return
	}
	s.reportNumber++
	reports.Number = s.reportNumber
	filled.number = s.reportNumber
	filled.write = &pb.WorkerMessage{Message: &pb.WorkerMessage_Reports{Reports: reports}}
	s.sent = append(s.sent, filled)
	if s.write != nil {
		s.write(filled.write)
	}
}

// drain is WP-40: no more leases; what arrives late is given back.
func (s *session) drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isDraining {
		s.isDraining, s.isServing = true, false
		s.putNoSlots()
	}
}

func (s *session) putNoSlots() {
	if s.write != nil {
		none := &pb.WorkerMessage_SetSlots{SetSlots: &pb.SetSlots{Slots: 0}}
		s.write(&pb.WorkerMessage{Message: none})
	}
}

// stopRuns tells every run to stop that was not told yet, and returns them.
func (s *session) stopRuns(kind stopKind) []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var stopped []*run
	for _, each := range s.runs {
		if each.stop() == "" {
			each.tell(kind, "")
			stopped = append(stopped, each)
		}
	}
	return stopped
}

// openRuns returns the runs without a report.
func (s *session) openRuns() []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := make([]*run, 0, len(s.runs))
	for _, each := range s.runs {
		open = append(open, each)
	}
	return open
}

// unconfirmedTasks returns the tasks whose report has no receipt yet.
func (s *session) unconfirmedTasks() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var tasks []uint64
	for _, sent := range s.sent {
		tasks = append(tasks, sent.tasks...)
	}
	return tasks
}

// isSettled is true when nothing runs and every report has its receipt: the server is owed nothing.
func (s *session) isSettled() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs) == 0 && len(s.sent) == 0
}

// isReady is WP-03.
func (s *session) isReady() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.isServing
}

// sawNotLeader tells whether the server said that it leads no more.
func (s *session) sawNotLeader() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.notLeader
}
