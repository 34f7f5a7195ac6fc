package cronoq

import (
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/cronoq/cronoq/sdk-go/internal/cronoqpb"
)

// When a session sends signs of life, and which of its leases have run out meanwhile.

const (
	leaseRoom    = 10 // What one lease takes in a heartbeat, at most.
	progressRoom = 8  // Bytes around one lease's progress there.
)

// nextPulse returns when pulse is to be called next.
func (s *session) nextPulse(now instant) instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.beatDue()
	for _, each := range s.runs {
		if each.stop() == "" {
			due = min(due, s.expiresAt(each))
		}
	}
	return max(due, now)
}

// pulse sends the heartbeat that is due and returns the runs whose lease ran out (WP-24).
func (s *session) pulse(now instant) []*run {
	s.mu.Lock()
	defer s.mu.Unlock()
	var expired []*run
	for _, each := range s.runs {
		if each.stop() == "" && s.expiresAt(each) <= now {
			each.tell(stopExpired, "")
			expired = append(expired, each)
		}
	}
	if s.beatDue() <= now {
		s.beat(now)
	}
	return expired
}

func (s *session) beatDue() instant {
	ttl := s.ttl
	for _, each := range s.runs {
		ttl = min(ttl, each.ttl)
	}
	due := s.beatAt + beatsEvery(ttl)
	if s.hasProgress && s.isRegistered {
		due = min(due, s.beatAt+progressInterval)
	}
	return due
}

// expiresAt counts by our clock alone: the server granted no more than this.
func (s *session) expiresAt(each *run) instant {
	return max(each.arrivedAt, s.confirmedAt) + each.ttl
}

// beat is WP-23: one message names every lease that runs.
func (s *session) beat(now instant) {
	s.beatAt = now
	if s.write == nil {
		return
	}
	if s.version < receiptsSince {
		s.hasProgress = false
		for lease := range s.runs {
			beat := &pb.WorkerMessage_Heartbeat{Heartbeat: &pb.Heartbeat{Lease: lease}}
			s.write(&pb.WorkerMessage{Message: beat})
		}
		s.confirmedAt = now
		return
	}
	if len(s.runs) == 0 && !s.hasNamed {
		s.hasProgress = false
		return // Nothing runs and the server knows.
	}
	s.hasNamed = len(s.runs) > 0
	s.beatNumber++
	beat := &pb.Heartbeats{Number: s.beatNumber, LastLease: s.lastLease, Progress: s.news()}
	for lease := range s.runs {
		beat.Leases = append(beat.Leases, lease)
	}
	slices.Sort(beat.Leases)
	s.beats = append(s.beats, sentBeat{s.beatNumber, now})
	s.write(&pb.WorkerMessage{Message: &pb.WorkerMessage_Heartbeats{Heartbeats: beat}})
}

// news is the progress that the server has not heard of, as much as fits beside the leases.
func (s *session) news() []*pb.LeaseProgress {
	if !s.hasProgress {
		return nil
	}
	s.hasProgress = false
	left := s.room() - len(s.runs)*leaseRoom
	var news []*pb.LeaseProgress
	for lease, each := range s.runs {
		if !each.isNewProgress {
			continue
		}
		word := &pb.LeaseProgress{Lease: lease, Progress: each.progress}
		left -= proto.Size(word) + progressRoom
		if left < 0 && len(news) > 0 {
			s.hasProgress = true // The rest goes with the next one.
			break
		}
		each.isNewProgress = false
		news = append(news, word)
	}
	return news
}

// setProgress keeps the last word of a run; true if it is the first one since the last heartbeat.
func (s *session) setProgress(of *run, progress *pb.Progress) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	of.progress, of.isNewProgress = progress, true
	isFirst := !s.hasProgress
	s.hasProgress = true
	return isFirst
}

func tooLarge(size, limit int) string {
	return fmt.Sprintf("output too large (%d > %d)", size, limit)
}

// beatsEvery is how often a lease of this length is named.
func beatsEvery(ttl time.Duration) time.Duration { return ttl / beatsPerTTL }
