package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	tick          = 10 * time.Millisecond
	ticksPerProbe = 3
	stuckAfter    = time.Minute
)

// question is what the bench asks; which fields count follows from Do.
type question struct {
	Do      string  `json:"do"`
	Count   int     `json:"count"`
	How     string  `json:"how"`
	PauseS  float64 `json:"pause_s"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"rate"`
}

type answer map[string]any

// converse answers line by line until standard input ends.
func converse(ctx context.Context, p *peer) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			return err
		}
		found, err := reply(ctx, p, asked)
		if err != nil {
			found = answer{"error": err.Error()}
		}
		line, err := json.Marshal(found)
		if err != nil {
			return err
		}
		fmt.Println(string(line))
	}
	return lines.Err()
}

func reply(ctx context.Context, p *peer, asked question) (answer, error) {
	begun := time.Now()
	var err error
	switch asked.Do {
	case "prepare":
		versions, err := p.prepare(ctx)
		return answer{"versions": versions}, err
	case "submit":
		err = hand(ctx, p, asked)
	case "settle":
		err = settle(ctx, p)
	case "through":
		if err = hand(ctx, p, asked); err == nil {
			err = settle(ctx, p)
		}
	case "idle":
		return idle(ctx, p, asked)
	case "load":
		return load(ctx, p, asked)
	default:
		err = fmt.Errorf("asked for %q", asked.Do)
	}
	return answer{"seconds": time.Since(begun).Seconds()}, err
}

func hand(ctx context.Context, p *peer, asked question) error {
	if asked.How == "single" {
		return p.single(ctx, asked.Count)
	}
	return p.bulk(ctx, asked.Count, asked.How == "mixed")
}

func settle(ctx context.Context, p *peer) error {
	until, last := time.Now().Add(stuckAfter), -1
	for {
		left, err := p.left(ctx)
		if err != nil || left == 0 {
			return err
		}
		if left < last || last < 0 {
			until, last = time.Now().Add(stuckAfter), left
		} else if time.Now().After(until) {
			return fmt.Errorf("%d jobs do not end", left)
		}
		time.Sleep(tick)
	}
}

func noted() int64 {
	info, err := os.Stat(os.Getenv("PEER_PROBES"))
	if err != nil {
		return 0
	}
	return info.Size() / lineBytes
}

// idle sends one probe at a time, the next one a pause after the start of the one before.
func idle(ctx context.Context, p *peer, asked question) (answer, error) {
	before, end := noted(), time.Now().Add(seconds(asked.Seconds))
	sent := 0
	for sent < asked.Count && (sent == 0 || time.Now().Before(end)) {
		if err := p.probe(ctx); err != nil {
			return nil, err
		}
		sent++
		stuck := time.Now().Add(stuckAfter)
		for noted() < before+int64(sent) {
			if time.Now().After(stuck) {
				return nil, errors.New("a probe did not start")
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(seconds(asked.PauseS))
	}
	return answer{"sent": sent}, nil
}

// load sends plain jobs at a rate, in one bulk call a tick, and now and then a probe by itself.
func load(ctx context.Context, p *peer, asked question) (answer, error) {
	begun, sent, probes := time.Now(), 0, 0
	for ticks := 0; time.Since(begun).Seconds() < asked.Seconds; {
		due := min(int(asked.Rate*time.Since(begun).Seconds())-sent, chunk)
		if due > 0 {
			if err := p.bulk(ctx, due, false); err != nil {
				return nil, err
			}
			sent += due
		}
		if ticks%ticksPerProbe == 0 {
			if err := p.probe(ctx); err != nil {
				return nil, err
			}
			probes++
		}
		ticks++
		time.Sleep(time.Until(begun.Add(time.Duration(ticks) * tick)))
	}
	return answer{"rate": float64(sent) / time.Since(begun).Seconds(), "probes": probes}, nil
}

func seconds(of float64) time.Duration { return time.Duration(of * float64(time.Second)) }
