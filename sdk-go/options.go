package cronoq

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"strings"
	"time"
)

const (
	keepaliveMin = 10 * time.Second
	// messageRoom is how many bytes of a message are kept free around one payload or output.
	messageRoom = 64 * 1024
)

// TLSOptions names the files for TLS. They are read for each connection.
type TLSOptions struct {
	// CA holds the certificates to trust, PEM; empty means the system's.
	CA string
	// Cert is this side's certificate chain, PEM, for servers that ask for one.
	Cert string
	// Key is its private key, PEM.
	Key string
}

// Backoff bounds the exponential backoff with full jitter.
type Backoff struct {
	// Initial is the upper end of the first delay; 100 ms when zero.
	Initial time.Duration
	// Maximum is the upper end that no delay exceeds; 5 s when zero.
	Maximum time.Duration
}

// Keepalive says how a dead connection is noticed.
type Keepalive struct {
	// Interval is the silence before a ping; 20 s when zero, at least 10 s, since servers close on
	// pings that come too often.
	Interval time.Duration
	// Timeout is the wait for the answer; 10 s when zero.
	Timeout time.Duration
}

// ClientOptions are the options of a [Client]. The zero value is the default of each.
type ClientOptions struct {
	// Endpoint is host:port, http://… or https://…; 127.0.0.1:7070 when empty.
	Endpoint string
	// Token is a bearer token. It is never printed or logged.
	Token string `json:"-"`
	// TLS names files for TLS; with https:// alone the system's certificates are trusted.
	TLS *TLSOptions
	// Backoff bounds the delays between tries.
	Backoff Backoff
	// ConnectTimeout is the time to get a connection; 5 s when zero.
	ConnectTimeout time.Duration
	// Keepalive says how a dead connection is noticed.
	Keepalive Keepalive
	// Codec makes bytes of values; JSON when nil.
	Codec Codec
	// MaxMessageBytes is the largest message that is built; 4 MiB when zero. The server's limit must
	// not be smaller.
	MaxMessageBytes int
	// Deadline is the time that a call may take with all its tries when its context has no deadline;
	// 60 s when zero. Wait and Result have none unless their context does.
	Deadline time.Duration
	// MaxWait is the length of one slice of a wait; 60 s when zero. The server's max_wait_s or less.
	MaxWait time.Duration
	// MaxTasksPerBatch bounds the tasks of one request; 1000 when zero.
	MaxTasksPerBatch int
	// TraceContext is asked for the W3C trace context of each task that names none, with the context
	// of the call that submits it; nil asks nobody. The module cronoqotel has one for OpenTelemetry.
	TraceContext func(ctx context.Context) map[string]string `json:"-"`
	// OnSubmit is called as a submission begins, with the context of the call; what it returns is
	// called with the error, or nil, as it ends. The module cronoqotel has one for OpenTelemetry.
	OnSubmit func(ctx context.Context, submission *Submission) (ended func(error)) `json:"-"`
}

// Submission is one call that submits tasks, as ClientOptions.OnSubmit sees it.
type Submission struct {
	// Operation is submit, submit_many or submit_batch.
	Operation string
	// Tasks are the tasks.
	Tasks []TaskSpec
	// TraceContext goes with each task that names none; set it as the submission begins.
	TraceContext map[string]string
	// TaskIDs are, once it has ended without an error, the id of each task; 0 where it was refused.
	TaskIDs []uint64
}

// hiddenToken stands for a token wherever options are printed.
const hiddenToken = "(hidden)"

// Format prints the options without their token.
func (o ClientOptions) Format(state fmt.State, verb rune) {
	type plain ClientOptions // Without this method.
	if o.Token != "" {
		o.Token = hiddenToken
	}
	fmt.Fprintf(state, fmt.FormatString(state, verb), plain(o))
}

// Interceptor is called around every handler; it calls next, once, and returns what next returned or
// another end of the attempt.
type Interceptor func(ctx context.Context, attempt *Attempt, next func(context.Context) error) error

// WorkerOptions are the options of a [Worker]. The zero value is the default of each.
type WorkerOptions struct {
	// Endpoint is host:port, http://… or https://…; 127.0.0.1:7070 when empty.
	Endpoint string
	// Token is a bearer token. It is never printed or logged.
	Token string `json:"-"`
	// TLS names files for TLS; with https:// alone the system's certificates are trusted.
	TLS *TLSOptions
	// Backoff bounds the delays between connections.
	Backoff Backoff
	// ConnectTimeout is the time to get a connection; 5 s when zero.
	ConnectTimeout time.Duration
	// Keepalive says how a dead connection is noticed.
	Keepalive Keepalive
	// Codec makes values of bytes and bytes of values; JSON when nil.
	Codec Codec
	// MaxMessageBytes is the largest message until a server names its own; 4 MiB when zero.
	MaxMessageBytes int

	// Pool is the pool to work for; empty is the server's default.
	Pool string
	// Slots is how many attempts may run at once; 1 when zero.
	Slots int
	// Name is shown in listings and identifies nothing; host and process id when empty.
	Name string
	// Labels are what this worker can do; tasks may ask for labels.
	Labels map[string]string
	// InsecureRedirectHTTP sends the token over plain http to hosts that a server named.
	InsecureRedirectHTTP bool
	// DrainTimeout is the time that running attempts get when the worker stops; 30 s when zero.
	DrainTimeout time.Duration
	// SessionReset is the length of a session that starts the backoff anew; 50 s when zero.
	SessionReset time.Duration

	// Interceptors are called around every handler, the first outermost.
	Interceptors []Interceptor `json:"-"`
	// OnConnect is called with the endpoint when a server accepted the worker.
	OnConnect func(endpoint string) `json:"-"`
	// OnDisconnect is called with endpoint and reason when such a stream ended.
	OnDisconnect func(endpoint, reason string) `json:"-"`
	// OnRedirect is called with the endpoint that a server named, and why it is not followed (empty
	// if it is).
	OnRedirect func(endpoint, refused string) `json:"-"`
	// OnAbort is called with attempt and reason when a handler is told to stop.
	OnAbort func(attempt *Attempt, reason string) `json:"-"`
	// Logger hears what the worker does; slog.Default() when nil.
	Logger *slog.Logger `json:"-"`
}

// Format prints the options without their token.
func (o WorkerOptions) Format(state fmt.State, verb rune) {
	type plain WorkerOptions // Without this method.
	if o.Token != "" {
		o.Token = hiddenToken
	}
	fmt.Fprintf(state, fmt.FormatString(state, verb), plain(o))
}

// connectOptions is what every connection to a server needs, with the defaults filled in.
type connectOptions struct {
	endpoint       endpoint
	token          string
	tls            *TLSOptions
	backoff        Backoff
	connectTimeout time.Duration
	keepalive      Keepalive
}

const (
	defaultEndpoint        = "127.0.0.1:7070"
	defaultBackoffInitial  = 100 * time.Millisecond
	defaultBackoffMax      = 5 * time.Second
	defaultConnectTimeout  = 5 * time.Second
	defaultKeepalive       = 20 * time.Second
	defaultKeepaliveWait   = 10 * time.Second
	defaultMaxMessageBytes = 4 * 1024 * 1024
	defaultDeadline        = 60 * time.Second
	defaultMaxWait         = 60 * time.Second
	defaultMaxTasks        = 1000
	defaultSlots           = 1
	defaultDrainTimeout    = 30 * time.Second
	defaultSessionReset    = 50 * time.Second
)

// or returns the value, or the default when it is zero.
func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// filled returns the options with their defaults; it fails when one is out of its range.
func (o ClientOptions) filled() (ClientOptions, connectOptions, error) {
	o.MaxMessageBytes = or(o.MaxMessageBytes, defaultMaxMessageBytes)
	o.Deadline = or(o.Deadline, defaultDeadline)
	o.MaxWait = or(o.MaxWait, defaultMaxWait)
	o.MaxTasksPerBatch = or(o.MaxTasksPerBatch, defaultMaxTasks)
	if o.Codec == nil {
		o.Codec = JSONCodec{}
	}
	if min(o.MaxMessageBytes-messageRoom, int(o.Deadline), int(o.MaxWait), o.MaxTasksPerBatch) <= 0 {
		return o, connectOptions{}, errors.New("cronoq: a limit or duration of the client is not positive")
	}
	connection, err := connectOptions{
		token: o.Token, tls: o.TLS, backoff: o.Backoff,
		connectTimeout: o.ConnectTimeout, keepalive: o.Keepalive,
	}.filled(o.Endpoint)
	return o, connection, err
}

// filled returns the options with their defaults; it fails when one is out of its range.
func (o WorkerOptions) filled() (WorkerOptions, connectOptions, error) {
	o.MaxMessageBytes = or(o.MaxMessageBytes, defaultMaxMessageBytes)
	o.Slots = or(o.Slots, defaultSlots)
	o.DrainTimeout = or(o.DrainTimeout, defaultDrainTimeout)
	o.SessionReset = or(o.SessionReset, defaultSessionReset)
	o.Labels = maps.Clone(o.Labels)
	if o.Codec == nil {
		o.Codec = JSONCodec{}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "unknown"
		}
		o.Name = fmt.Sprintf("%s:%d", host, os.Getpid())
	}
	if o.Slots < 1 {
		return o, connectOptions{}, errors.New("cronoq: slots: at least 1")
	}
	if min(o.MaxMessageBytes-messageRoom, int(o.DrainTimeout), int(o.SessionReset)) <= 0 {
		return o, connectOptions{}, errors.New("cronoq: a limit or duration of the worker is not positive")
	}
	connection, err := connectOptions{
		token: o.Token, tls: o.TLS, backoff: o.Backoff,
		connectTimeout: o.ConnectTimeout, keepalive: o.Keepalive,
	}.filled(o.Endpoint)
	return o, connection, err
}

// isUnsendable tells what metadata cannot carry: no call with such a token would ever be made.
func isUnsendable(letter rune) bool { return letter <= ' ' || letter > '~' }

func (o connectOptions) filled(configured string) (connectOptions, error) {
	o.backoff.Initial = or(o.backoff.Initial, defaultBackoffInitial)
	o.backoff.Maximum = or(o.backoff.Maximum, max(defaultBackoffMax, o.backoff.Initial))
	o.connectTimeout = or(o.connectTimeout, defaultConnectTimeout)
	o.keepalive.Interval = or(o.keepalive.Interval, defaultKeepalive)
	o.keepalive.Timeout = or(o.keepalive.Timeout, defaultKeepaliveWait)
	switch {
	case strings.ContainsFunc(o.token, isUnsendable):
		return o, errors.New("cronoq: token: printable ASCII without spaces")
	case o.backoff.Initial < 0 || o.backoff.Maximum < o.backoff.Initial:
		return o, errors.New("cronoq: backoff: 0 < initial <= maximum does not hold")
	case o.connectTimeout < 0:
		return o, errors.New("cronoq: connect timeout is not positive")
	case o.keepalive.Interval < keepaliveMin:
		return o, fmt.Errorf("cronoq: keepalive: interval is below %s", keepaliveMin)
	case o.keepalive.Timeout < 0:
		return o, errors.New("cronoq: keepalive: timeout is not positive")
	case o.tls != nil && (o.tls.Cert == "") != (o.tls.Key == ""):
		return o, errors.New("cronoq: tls: cert and key go together")
	}
	parsed, err := parseConfigured(or(configured, defaultEndpoint), o.tls != nil)
	if err != nil {
		return o, fmt.Errorf("cronoq: %w", err)
	}
	o.endpoint = parsed
	return o, nil
}
