package main

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// verdict is what came of a history.
type verdict struct {
	Operations int `json:"operations"`
	Tasks      int `json:"tasks"`
	// Acknowledged counts the tasks of which somebody was told that they were admitted.
	Acknowledged int `json:"acknowledged"`
	// Lost names acknowledged tasks that somebody was told, later, do not exist.
	Lost []string `json:"lost"`
	// Forgotten names reports with a receipt whose attempt went down with a leader all the same.
	Forgotten []string `json:"forgotten"`
	// Stale says which report was taken though its attempt was another's by then.
	Stale []string `json:"stale"`
	// Ids says where ids do not rise, or stand for two tasks.
	Ids []string `json:"ids"`
	// Inexplicable holds the operations of each task whose history no life explains.
	Inexplicable map[string][]string `json:"inexplicable"`
	// Undecided says that the search took too long.
	Undecided bool `json:"undecided"`
}

func (v verdict) holds() bool {
	return len(v.Lost)+len(v.Forgotten)+len(v.Stale)+len(v.Ids)+len(v.Inexplicable) == 0 && !v.Undecided
}

func judge(operations []operation, patience time.Duration) verdict {
	found := verdict{
		Operations:   len(operations),
		Lost:         lost(operations),
		Forgotten:    forgotten(operations),
		Stale:        stale(operations),
		Ids:          ids(operations),
		Inexplicable: map[string][]string{},
	}
	keys := map[string]bool{}
	acknowledged := map[string]bool{}
	for _, each := range operations {
		keys[each.Key] = true
		if each.Op == "submit" && each.known() {
			acknowledged[each.Key] = true
		}
	}
	found.Tasks, found.Acknowledged = len(keys), len(acknowledged)
	until := time.Now().Add(patience)
	for _, part := range byKey(history(operations)) {
		left := time.Until(until)
		if left <= 0 {
			found.Undecided = true
			break
		}
		model := model.ToModel()
		model.Partition = nil
		switch porcupine.CheckOperationsTimeout(model, part, left) {
		case porcupine.Unknown:
			found.Undecided = true
		case porcupine.Illegal:
			key := part[0].Input.(operation).Key
			found.Inexplicable[key] = described(part)
		}
	}
	return found
}

func history(operations []operation) []porcupine.Operation {
	clients := map[string]int{}
	all := make([]porcupine.Operation, 0, len(operations))
	for _, each := range operations {
		if each.Op == "outcome" {
			continue // it says what happened, not when
		}
		client, ok := clients[each.Who]
		if !ok {
			client = len(clients)
			clients[each.Who] = client
		}
		all = append(all, porcupine.Operation{
			ClientId: client, Input: each, Call: each.Call, Output: each, Return: each.end(),
		})
	}
	return all
}

func described(part []porcupine.Operation) []string {
	sort.SliceStable(part, func(a, b int) bool { return part[a].Call < part[b].Call })
	var lines []string
	for _, each := range part {
		lines = append(lines, each.Input.(operation).String())
	}
	return lines
}

// lost finds tasks that were missing after somebody was told that they are there.
func lost(operations []operation) []string {
	told := map[string]int64{}
	for _, each := range operations {
		if each.Op == "submit" && each.known() {
			if at, ok := told[each.Key]; !ok || each.end() < at {
				told[each.Key] = each.end()
			}
		}
	}
	found := []string{}
	for _, each := range operations {
		at, ok := told[each.Key]
		if each.Missing && ok && each.Call > at {
			found = append(found, each.String())
		}
	}
	return found
}

// forgotten finds attempts that the server counts as lost with a leader, though that leader had
// confirmed their end.
func forgotten(operations []operation) []string {
	type attempt struct {
		key    string
		number int
	}
	confirmed := map[attempt]bool{}
	for _, each := range operations {
		if each.Op == "receipt" && each.Held {
			confirmed[attempt{each.Key, each.Attempt}] = true
		}
	}
	found := []string{}
	for _, each := range operations {
		if each.Outcome == "leader_lost" && confirmed[attempt{each.Key, each.Attempt}] {
			found = append(found, each.String())
		}
	}
	return found
}

// stale finds successes that are not the last attempt's own: with the output of an attempt after
// which another one had begun, or under an attempt that nobody has reported to be complete.
func stale(operations []operation) []string {
	begun := map[string]int{}
	reported := map[string]uint64{}
	for _, each := range operations {
		if each.Op == "start" {
			begun[each.Key] = max(begun[each.Key], each.Attempt)
		}
		if each.Op == "complete" {
			reported[each.Key] |= 1 << uint(each.Attempt)
		}
	}
	found := []string{}
	for _, each := range operations {
		if each.Status != "succeeded" {
			continue
		}
		last := begun[each.Key]
		if each.Output != "" && each.Output != outputOf(each.Key, last) {
			found = append(found, fmt.Sprintf("attempt %d had begun: %s", last, each))
		} else if each.Attempt > 0 && reported[each.Key]&(1<<uint(each.Attempt)) == 0 {
			found = append(found, fmt.Sprintf("attempt %d was not complete: %s", each.Attempt, each))
		}
	}
	return found
}

// ids holds the ids that were told against each other: each is one task's, and whoever submits
// after somebody was told an id gets a higher one.
func ids(operations []operation) []string {
	found := []string{}
	owners := map[uint64]string{}
	var submits []operation
	for _, each := range operations {
		if each.ID == 0 {
			continue
		}
		if owner, ok := owners[each.ID]; ok && owner != each.Key {
			found = append(found, fmt.Sprintf("%d is the id of %s and %s", each.ID, owner, each.Key))
		}
		owners[each.ID] = each.Key
		if each.Op == "submit" && each.known() && !each.Duplicate {
			submits = append(submits, each)
		}
	}
	byEnd := append([]operation(nil), submits...)
	sort.Slice(byEnd, func(a, b int) bool { return byEnd[a].end() < byEnd[b].end() })
	sort.Slice(submits, func(a, b int) bool { return submits[a].Call < submits[b].Call })
	next, highest := 0, uint64(0)
	for _, each := range submits {
		for next < len(byEnd) && byEnd[next].end() < each.Call {
			highest = max(highest, byEnd[next].ID)
			next++
		}
		if each.ID <= highest && each.end() != math.MaxInt64 {
			found = append(found, fmt.Sprintf("%d had been told before: %s", highest, each))
		}
	}
	return found
}
