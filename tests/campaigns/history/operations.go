package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
)

// operation is one thing that a client or a worker did or saw. Instants are nanoseconds of one
// monotonic clock; an operation without a return may take effect at any later time, or never.
type operation struct {
	// Who is the process and thread of it, for people.
	Who string `json:"who"`
	// Op is one of submit, get, wait, watch, cancel, start, complete, fail, receipt, outcome.
	Op string `json:"op"`
	// Key names the task.
	Key string `json:"key"`
	// Call is when it began.
	Call int64 `json:"call"`
	// Return is when its outcome was known; absent: never.
	Return *int64 `json:"return"`
	// ID is the task's, of a submit; 0: not told.
	ID uint64 `json:"id"`
	// Duplicate is what a submit answered.
	Duplicate bool `json:"duplicate"`
	// Missing says of a get that there was no such task.
	Missing bool `json:"missing"`
	// Status is what was seen, in lower case.
	Status string `json:"status"`
	// Attempt is the number seen, started or reported; -1: not told.
	Attempt int `json:"attempt"`
	// Output is what a wait returned, or a worker reported.
	Output string `json:"output"`
	// Cancelled is what a cancel answered.
	Cancelled bool `json:"cancelled"`
	// Held says of a receipt that it came over the stream that had brought the lease: the leader
	// who gave it out has made the report durable.
	Held bool `json:"held"`
	// Outcome is how the server says that an attempt ended which did not succeed.
	Outcome string `json:"outcome"`
}

func (o operation) known() bool { return o.Return != nil }

func (o operation) end() int64 {
	if o.Return == nil {
		return math.MaxInt64
	}
	return *o.Return
}

func (o operation) String() string {
	text, err := json.Marshal(o)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// reads are the operations that change nothing: without an outcome they say nothing.
var reads = map[string]bool{"get": true, "wait": true, "watch": true}

// reports are the operations of one attempt.
var reports = map[string]bool{
	"start": true, "complete": true, "fail": true, "receipt": true, "outcome": true,
}

var kinds = map[string]bool{
	"submit": true, "get": true, "wait": true, "watch": true, "cancel": true,
	"start": true, "complete": true, "fail": true, "receipt": true,
	"outcome": true,
}

func readFile(path string) ([]operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	found, err := readOperations(file)
	if err != nil {
		return nil, fmt.Errorf("%s, %w", path, err)
	}
	return found, nil
}

func readOperations(source io.Reader) ([]operation, error) {
	var found []operation
	lines := bufio.NewScanner(source)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		said := operation{Attempt: -1}
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&said); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if !kinds[said.Op] || said.Key == "" {
			return nil, fmt.Errorf("line %d: op %q of key %q is none that is known", number, said.Op, said.Key)
		}
		if said.Attempt > attemptsMax {
			return nil, fmt.Errorf("line %d: attempt %d is above %d, the most there may be", number, said.Attempt, attemptsMax)
		}
		if reports[said.Op] && said.Attempt < 1 {
			return nil, fmt.Errorf("line %d: %s needs an attempt from 1", number, said.Op)
		}
		if said.end() < said.Call {
			return nil, fmt.Errorf("line %d: it returned before it was called", number)
		}
		if reads[said.Op] && !said.known() {
			continue
		}
		found = append(found, said)
	}
	return found, lines.Err()
}
