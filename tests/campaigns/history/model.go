package main

import (
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

// stage is how far an attempt is; it only rises while the number of the attempt stays, but for an
// attempt that was decided and never reached a worker.
type stage int

const (
	runs stage = iota
	backsOff
	waits
)

// task is the earliest point in its life at which a task can be, after what was seen of it. What
// the server does by itself, a lease that ends or a wait that is over, moves it on unseen: so each
// operation is held against this point, and moves it.
type task struct {
	exists  bool
	id      uint64 // 0: nobody was told
	attempt int
	stage   stage
	// backedOff says that the wait after this attempt was seen: it is not offered again.
	backedOff bool
	// started is the highest attempt that a worker was given.
	started int
	// completed and failed have a bit for each attempt that was reported so.
	completed, failed uint64
	// mayBeCancelled says that a cancel without an answer is under way, or has been.
	mayBeCancelled bool
	// ended is the terminal status; empty: it lives.
	ended string
	// settled says that the attempt of an ended task is known; else it may be a higher one.
	settled bool
}

// attemptsMax is the budget of every task in a history, and the width of the sets above.
const attemptsMax = 60

var stages = map[string]stage{
	"blocked": waits, "scheduled": waits, "ready": waits, "running": runs, "retrying": backsOff,
}

var terminal = map[string]bool{
	"succeeded": true, "failed": true, "dead_lettered": true, "cancelled": true,
}

func outputOf(key string, attempt int) string { return fmt.Sprintf("%s:%d", key, attempt) }

var model = porcupine.NondeterministicModel{
	Partition: byKey,
	Init:      func() []interface{} { return []interface{}{task{stage: waits}} },
	Step: func(state, input, _ interface{}) []interface{} {
		var next []interface{}
		for _, each := range step(state.(task), input.(operation)) {
			next = append(next, each)
		}
		return next
	},
	Equal: func(a, b interface{}) bool { return a.(task) == b.(task) },
	DescribeOperation: func(input, _ interface{}) string {
		return input.(operation).String()
	},
	DescribeState: func(state interface{}) string { return fmt.Sprintf("%+v", state) },
}

func byKey(history []porcupine.Operation) [][]porcupine.Operation {
	found := map[string][]porcupine.Operation{}
	for _, each := range history {
		key := each.Input.(operation).Key
		found[key] = append(found[key], each)
	}
	keys := make([]string, 0, len(found))
	for key := range found {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	parts := make([][]porcupine.Operation, 0, len(keys))
	for _, key := range keys {
		parts = append(parts, found[key])
	}
	return parts
}

// step returns where a task can be after an operation; nothing: it cannot have happened now.
func step(at task, done operation) []task {
	switch done.Op {
	case "submit":
		return submitted(at, done)
	case "get", "wait", "watch":
		return seen(at, done)
	case "cancel":
		return cancelled(at, done)
	case "start":
		return begun(at, done)
	case "complete":
		at.completed |= 1 << uint(done.Attempt)
		return only(at)
	case "fail":
		at.failed |= 1 << uint(done.Attempt)
		return only(at)
	case "receipt":
		return receipted(at, done)
	}
	return nil
}

func only(at task) []task { return []task{at} }

func submitted(at task, done operation) []task {
	if done.known() && done.Duplicate != at.exists {
		return nil
	}
	if at.id != 0 && done.known() && done.ID != at.id {
		return nil
	}
	if done.known() {
		at.id = done.ID
	}
	at.exists = true
	return only(at)
}

func seen(at task, done operation) []task {
	if done.Missing {
		if at.exists {
			return nil
		}
		return only(at)
	}
	if !at.exists || (at.id != 0 && done.ID != 0 && done.ID != at.id) {
		return nil
	}
	if done.ID != 0 {
		at.id = done.ID
	}
	if terminal[done.Status] {
		return seenEnded(at, done)
	}
	there, ok := stages[done.Status]
	if !ok || at.ended != "" || !at.reaches(done.Attempt, there) {
		return nil
	}
	return only(at.moved(done.Attempt, there))
}

// reaches tells whether a living task can come to this point, or is there.
func (t task) reaches(attempt int, there stage) bool {
	if attempt != t.attempt {
		return attempt > t.attempt
	}
	return there >= t.stage || t.offeredAgain(there)
}

// offeredAgain tells whether an attempt that no worker was given can go to and fro.
func (t task) offeredAgain(there stage) bool {
	return t.started < t.attempt && !t.backedOff && there == runs
}

func (t task) moved(attempt int, there stage) task {
	if attempt != t.attempt {
		t.backedOff = false
	}
	t.attempt, t.stage = attempt, there
	t.backedOff = t.backedOff || there == backsOff
	return t
}

func seenEnded(at task, done operation) []task {
	attempt := done.Attempt
	if attempt < 0 && done.Status == "succeeded" {
		attempt = attemptOf(done.Key, done.Output)
	}
	if at.ended == "" && !at.canEnd(done.Status, attempt) {
		return nil
	}
	if at.ended != "" && at.ended != done.Status {
		return nil
	}
	if done.Output != "" && done.Output != outputOf(done.Key, attempt) {
		return nil
	}
	at.ended = done.Status
	return at.endedWith(attempt)
}

// canEnd tells whether a living task can end so, with this attempt as its last; -1: with any.
func (t task) canEnd(status string, attempt int) bool {
	switch status {
	case "succeeded":
		// Somebody has to have said so, and the attempt must not have been another's by then.
		return attempt > 0 && t.completed&(1<<uint(attempt)) != 0 && t.attempt == attempt && t.stage == runs
	case "cancelled":
		return t.mayBeCancelled
	case "dead_lettered":
		return t.failed != 0 && attempt == attemptsMax
	}
	return false // nobody reports what would make it so
}

// endedWith narrows down what is known of the last attempt of an ended task.
func (t task) endedWith(attempt int) []task {
	switch {
	case attempt < 0:
		return only(t)
	case attempt < t.attempt || (t.settled && attempt != t.attempt):
		return nil
	}
	t.attempt, t.settled = attempt, true
	return only(t)
}

// attemptOf reads the number out of what a worker reported; 0: somebody else wrote it.
func attemptOf(key, output string) int {
	number, err := strconv.Atoi(strings.TrimPrefix(output, key+":"))
	if err != nil || number < 1 || number > attemptsMax {
		return 0
	}
	return number
}

func cancelled(at task, done operation) []task {
	if !done.known() {
		at.mayBeCancelled = true
		return only(at)
	}
	if done.Missing {
		if at.exists {
			return nil
		}
		return only(at)
	}
	if !at.exists {
		return nil
	}
	if at.ended != "" {
		if done.Cancelled != (at.ended == "cancelled") {
			return nil
		}
		return only(at)
	}
	if done.Cancelled {
		at.ended = "cancelled"
		return only(at)
	}
	// It says that the task has ended well, if the last word of its attempt was under way.
	if at.completed&(1<<uint(at.attempt)) != 0 && at.stage == runs {
		at.ended, at.settled = "succeeded", true
		return only(at)
	}
	return nil
}

func begun(at task, done operation) []task {
	if !at.exists || at.ended != "" || done.Attempt <= at.started {
		return nil
	}
	if !at.reaches(done.Attempt, runs) {
		return nil
	}
	at = at.moved(done.Attempt, runs)
	at.started = done.Attempt
	return only(at)
}

// receipted is the server's word that a completion is durable: the attempt runs no more.
func receipted(at task, done operation) []task {
	if at.ended != "" || at.attempt > done.Attempt || at.stage != runs {
		return only(at)
	}
	if at.attempt < done.Attempt {
		return nil
	}
	taken, refused := at, at.moved(done.Attempt, backsOff)
	taken.ended, taken.settled = "succeeded", true
	return []task{taken, refused}
}
