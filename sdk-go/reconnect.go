package cronoq

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/grpc/codes"
)

// When and where a worker connects: pure policy without sockets, clock or chance. Rules RR-01 … of
// docs/spec/redirect-and-reconnect.md are cited below. Input is what happened and when (an instant
// of a monotonic clock), output is one decision. The same events and fractions of chance lead to the
// same decisions in every language; conformance/vectors/reconnect.json holds them.

const (
	redirectsMax        = 3  // RR-10
	triesMax            = 4  // RR-05
	triesWindowBackoffs = 10 // RR-05: the span, in initial backoffs
)

// isFatal tells the codes that end a worker (RR-06).
func isFatal(code codes.Code) bool {
	switch code {
	case codes.Unauthenticated, codes.PermissionDenied, codes.NotFound, codes.InvalidArgument,
		codes.Unimplemented, codes.FailedPrecondition:
		return true
	}
	return false
}

// instant is a reading of a monotonic clock.
type instant = time.Duration

// event is what happened to a worker's connection.
type event interface{ isEvent() }

// started: the worker was started.
type started struct{}

// registered: the server accepted the worker.
type registered struct{}

// redirected: the stream ended with FAILED_PRECONDITION and a shard endpoint in its metadata.
type redirected struct{ endpoint string }

// ended: the stream ended, or there was no connection (then as UNAVAILABLE).
type ended struct {
	code      codes.Code
	notLeader bool
	message   string
}

// elapsed: the time of the last wait has come.
type elapsed struct{}

func (started) isEvent()    {}
func (registered) isEvent() {}
func (redirected) isEvent() {}
func (ended) isEvent()      {}
func (elapsed) isEvent()    {}

// decision is what to do about an event.
type decision interface{ isDecision() }

// connect: open a fresh connection there, now.
type connect struct {
	endpoint     endpoint
	maySendToken bool
	refused      string
}

// wait: do nothing until then, and say elapsed.
type wait struct {
	until   instant
	refused string
}

// giveUp: stop; no retry can change this answer.
type giveUp struct {
	code    codes.Code
	message string
}

// stay: go on with the stream as it is.
type stay struct{}

func (connect) isDecision() {}
func (wait) isDecision()    {}
func (giveUp) isDecision()  {}
func (stay) isDecision()    {}

// reconnectSettings is what the policy needs to know of the worker's options.
type reconnectSettings struct {
	endpoint             endpoint
	hasToken             bool
	insecureRedirectHTTP bool
	backoffInitial       time.Duration
	backoffMax           time.Duration
	sessionReset         time.Duration
}

// reconnectPolicy is one worker's policy; it is fed every event in order.
type reconnectPolicy struct {
	settings reconnectSettings
	chance   func() float64

	at           endpoint // where the current or last stream is
	next         endpoint // where elapsed leads
	hops         int
	failures     int
	isRegistered bool
	registeredAt instant
	tries        []instant
}

func newReconnectPolicy(settings reconnectSettings, chance func() float64) *reconnectPolicy {
	return &reconnectPolicy{
		settings: settings, chance: chance, at: settings.endpoint, next: settings.endpoint,
	}
}

// backoffBound is the upper end of the next delay (RR-03).
func backoffBound(initial, maximum time.Duration, failures int) time.Duration {
	// The exponent is capped: a float overflows long before the backoff matters.
	grown := float64(initial) * math.Pow(2, float64(min(failures, 64)))
	return time.Duration(min(grown, float64(maximum)))
}

// decide returns what to do about an event that happened at an instant.
func (p *reconnectPolicy) decide(what event, now instant) decision {
	switch what := what.(type) {
	case started:
		return p.connect(p.settings.endpoint, now, "")
	case elapsed:
		return p.connect(p.next, now, "")
	case registered:
		p.isRegistered, p.registeredAt = true, now
		p.hops = 0 // RR-11
		return stay{}
	case redirected:
		return p.redirected(what.endpoint, now)
	case ended:
		return p.ended(what, now)
	}
	panic(fmt.Sprintf("cronoq: unknown event %T", what))
}

func (p *reconnectPolicy) redirected(text string, now instant) decision {
	p.isRegistered = false
	if p.hops >= redirectsMax { // RR-10
		return p.refuse(fmt.Sprintf("redirect %d in a row to %s", p.hops+1, text), now)
	}
	target, err := parseRedirect(text)
	if err != nil {
		return p.refuse(err.Error(), now)
	}
	if problem := p.forbidden(target); problem != "" {
		return p.refuse(problem, now)
	}
	p.hops++
	return p.connect(target, now, "") // RR-09: at once
}

func (p *reconnectPolicy) forbidden(target endpoint) string {
	switch {
	case target.isEncrypted():
		return ""
	case p.at.isEncrypted(): // RR-14
		return fmt.Sprintf("redirect from https to %s", target)
	case p.settings.hasToken && !target.isLoopback() && !p.settings.insecureRedirectHTTP: // RR-15
		return fmt.Sprintf("token over http to %s", target)
	}
	return ""
}

// refuse is RR-16: not followed, reported, back to the configured endpoint with backoff.
func (p *reconnectPolicy) refuse(why string, now instant) decision {
	p.hops = 0
	return p.wait(p.settings.endpoint, now, p.delay(), why)
}

func (p *reconnectPolicy) ended(what ended, now instant) decision {
	wasRegistered := p.isRegistered
	p.isRegistered = false
	p.hops = 0              // RR-11
	if isFatal(what.code) { // RR-06
		return giveUp{what.code, what.message}
	}
	hasLived := wasRegistered && now-p.registeredAt >= p.settings.sessionReset
	if hasLived || what.notLeader { // RR-04
		p.failures = 0
	}
	if !wasRegistered { // RR-18, RR-19
		return p.wait(p.settings.endpoint, now, p.delay(), "")
	}
	if what.notLeader { // RR-07
		return p.wait(p.at, now, 0, "")
	}
	return p.wait(p.at, now, p.delay(), "") // RR-17
}

func (p *reconnectPolicy) delay() time.Duration {
	bound := backoffBound(p.settings.backoffInitial, p.settings.backoffMax, p.failures)
	p.failures++
	return time.Duration(p.chance() * float64(bound))
}

func (p *reconnectPolicy) wait(target endpoint, now instant, delay time.Duration, refused string) decision {
	until := now + delay
	if len(p.tries) == triesMax { // RR-05
		until = max(until, p.tries[0]+triesWindowBackoffs*p.settings.backoffInitial)
	}
	if until <= now {
		return p.connect(target, now, refused)
	}
	p.next = target
	return wait{until, refused}
}

func (p *reconnectPolicy) connect(target endpoint, now instant, refused string) decision {
	p.at, p.next = target, target
	if len(p.tries) == triesMax {
		p.tries = append(p.tries[:0], p.tries[1:]...)
	}
	p.tries = append(p.tries, now)
	return connect{target, p.maySendToken(target), refused}
}

func (p *reconnectPolicy) maySendToken(target endpoint) bool {
	return p.settings.hasToken && (target == p.settings.endpoint || // RR-02
		target.isEncrypted() || target.isLoopback() || p.settings.insecureRedirectHTTP)
}
