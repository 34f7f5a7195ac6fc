package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/cronoq/cronoq/sdk-go"
)

// How JSON values of the participant protocol become values of the Go SDK, and back.

const bytesShownMax = 64 * 1024

type object = map[string]any

// value is a payload or an output: a JSON value, bytes, or so many zero bytes.
type value struct {
	json  json.RawMessage
	bytes []byte
	count *int
}

// get returns what the SDK is given; nil if nothing was said.
func (v value) get() any {
	switch {
	case v.json != nil:
		return v.json
	case v.bytes != nil:
		return v.bytes
	case v.count != nil:
		return make([]byte, *v.count)
	}
	return nil
}

type target struct {
	ID  uint64 `json:"id,string"`
	Key string `json:"key"`
}

func (t target) ref() cronoq.TaskRef { return cronoq.TaskRef{ID: t.ID, Key: t.Key} }

// seconds is a duration as JSON holds it.
type seconds float64

func (s seconds) duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

func (s *seconds) pointer() *time.Duration {
	if s == nil {
		return nil
	}
	return new(s.duration())
}

// instant is Unix nanoseconds as JSON holds them.
type instant string

func (i instant) time() time.Time {
	if i == "" {
		return time.Time{}
	}
	ns, err := strconv.ParseInt(string(i), 10, 64)
	if err != nil {
		panic(err) // The runner's mistake.
	}
	return time.Unix(0, ns)
}

type options struct {
	Endpoint             string            `json:"endpoint"`
	Pool                 string            `json:"pool"`
	Slots                int               `json:"slots"`
	Name                 string            `json:"name"`
	Labels               map[string]string `json:"labels"`
	Token                string            `json:"token"`
	TLSCA                string            `json:"tls_ca"`
	TLSCert              string            `json:"tls_cert"`
	TLSKey               string            `json:"tls_key"`
	InsecureRedirectHTTP bool              `json:"insecure_redirect_http"`
	DrainTimeout         seconds           `json:"drain_timeout"`
	BackoffInitial       seconds           `json:"backoff_initial"`
	BackoffMax           seconds           `json:"backoff_max"`
	SessionReset         seconds           `json:"session_reset"`
	ConnectTimeout       seconds           `json:"connect_timeout"`
	KeepaliveInterval    seconds           `json:"keepalive_interval"`
	KeepaliveTimeout     seconds           `json:"keepalive_timeout"`
	MaxMessageBytes      int               `json:"max_message_bytes"`
	Deadline             seconds           `json:"deadline"`
	MaxWait              seconds           `json:"max_wait"`
	MaxTasksPerBatch     int               `json:"max_tasks_per_batch"`
}

func (o options) tls() *cronoq.TLSOptions {
	if o.TLSCA == "" && o.TLSCert == "" && o.TLSKey == "" {
		return nil
	}
	return &cronoq.TLSOptions{CA: o.TLSCA, Cert: o.TLSCert, Key: o.TLSKey}
}

func (o options) backoff() cronoq.Backoff {
	return cronoq.Backoff{Initial: o.BackoffInitial.duration(), Maximum: o.BackoffMax.duration()}
}

func (o options) keepalive() cronoq.Keepalive {
	return cronoq.Keepalive{
		Interval: o.KeepaliveInterval.duration(), Timeout: o.KeepaliveTimeout.duration(),
	}
}

func (o options) client() cronoq.ClientOptions {
	return cronoq.ClientOptions{
		Endpoint: o.Endpoint, Token: o.Token, TLS: o.tls(), Backoff: o.backoff(),
		ConnectTimeout: o.ConnectTimeout.duration(), Keepalive: o.keepalive(),
		MaxMessageBytes: o.MaxMessageBytes, Deadline: o.Deadline.duration(),
		MaxWait: o.MaxWait.duration(), MaxTasksPerBatch: o.MaxTasksPerBatch,
	}
}

func (o options) worker() cronoq.WorkerOptions {
	return cronoq.WorkerOptions{
		Endpoint: o.Endpoint, Token: o.Token, TLS: o.tls(), Backoff: o.backoff(),
		ConnectTimeout: o.ConnectTimeout.duration(), Keepalive: o.keepalive(),
		MaxMessageBytes: o.MaxMessageBytes, Pool: o.Pool, Slots: o.Slots, Name: o.Name,
		Labels: o.Labels, InsecureRedirectHTTP: o.InsecureRedirectHTTP,
		DrainTimeout: o.DrainTimeout.duration(), SessionReset: o.SessionReset.duration(),
	}
}

// number returns the number of an enum's word, by asking each number for its word.
func number[E interface {
	~int32
	String() string
}](word string) E {
	for each := E(1); each < 32; each++ {
		if each.String() == word {
			return each
		}
	}
	return 0
}

var (
	conditions = map[string]cronoq.EdgeCond{
		"on_success": cronoq.OnSuccess, "on_complete": cronoq.OnComplete,
		"on_failure": cronoq.OnFailure,
	}
	misses = map[string]cronoq.MissPolicy{
		"run_late": cronoq.MissRunLate, "skip": cronoq.MissSkip, "fail": cronoq.MissFail,
	}
	overlaps = map[string]cronoq.Overlap{
		"skip": cronoq.OverlapSkip, "allow": cronoq.OverlapAllow, "queue": cronoq.OverlapQueue,
		"queue_on_success": cronoq.OverlapQueueOnSuccess,
	}
	gaps  = map[string]cronoq.Gap{"run_after": cronoq.GapRunAfter, "skip": cronoq.GapSkip}
	folds = map[string]cronoq.Fold{
		"first": cronoq.FoldFirst, "last": cronoq.FoldLast, "both": cronoq.FoldBoth,
	}
	catchUps = map[string]cronoq.CatchUp{
		"latest": cronoq.CatchUpLatest, "none": cronoq.CatchUpNone, "all": cronoq.CatchUpAll,
	}
	actions = map[string]cronoq.BulkAction{
		"cancel": cronoq.BulkCancel, "retry": cronoq.BulkRetry,
	}
)

// wordOf is the reverse of one of the tables above.
func wordOf[E comparable](table map[string]E, wanted E) string {
	for word, each := range table {
		if each == wanted {
			return word
		}
	}
	return ""
}

type retry struct {
	MaxAttempts    int     `json:"max_attempts"`
	InitialBackoff seconds `json:"initial_backoff"`
	Multiplier     float64 `json:"multiplier"`
	MaxBackoff     seconds `json:"max_backoff"`
	Jitter         *bool   `json:"jitter"`
}

type dep struct {
	target
	Cond string `json:"cond"`
}

type task struct {
	Kind         string            `json:"kind"`
	Payload      json.RawMessage   `json:"payload"`
	PayloadB64   []byte            `json:"payload_b64"`
	PayloadBytes *int              `json:"payload_bytes"`
	ContentType  string            `json:"content_type"`
	Pool         string            `json:"pool"`
	Priority     string            `json:"priority"`
	Key          string            `json:"key"`
	DeadlineIn   *seconds          `json:"deadline_in"`
	DeadlineAt   instant           `json:"deadline_at"`
	StartIn      *seconds          `json:"start_in"`
	StartAt      instant           `json:"start_at"`
	Tolerance    *seconds          `json:"tolerance"`
	OnMiss       string            `json:"on_miss"`
	DurationHint *seconds          `json:"duration_hint"`
	Timeout      *seconds          `json:"timeout"`
	Retry        *retry            `json:"retry"`
	Deps         []dep             `json:"deps"`
	Resources    map[string]uint32 `json:"resources"`
	Tags         map[string]string `json:"tags"`
	Labels       map[string]string `json:"labels"`
	Tenant       string            `json:"tenant"`
	TraceContext map[string]string `json:"trace_context"`
	Delay        *seconds          `json:"delay"`
	NotBefore    instant           `json:"not_before"`
	ExpiresIn    *seconds          `json:"expires_in"`
}

func (t task) spec() cronoq.TaskSpec {
	spec := cronoq.TaskSpec{
		Kind: t.Kind, Payload: value{t.Payload, t.PayloadB64, t.PayloadBytes}.get(),
		ContentType: t.ContentType, Pool: t.Pool, Priority: number[cronoq.Priority](t.Priority),
		Key: t.Key, DeadlineIn: t.DeadlineIn.pointer(), DeadlineAt: t.DeadlineAt.time(),
		StartIn: t.StartIn.pointer(), StartAt: t.StartAt.time(), Tolerance: t.Tolerance.pointer(),
		OnMiss: misses[t.OnMiss], DurationHint: t.DurationHint.pointer(),
		Timeout: t.Timeout.pointer(), Resources: t.Resources, Tags: t.Tags, Labels: t.Labels,
		Tenant: t.Tenant, TraceContext: t.TraceContext, Delay: t.Delay.pointer(),
		NotBefore: t.NotBefore.time(), ExpiresIn: t.ExpiresIn.pointer(),
	}
	if t.Retry != nil {
		spec.Retry = &cronoq.RetryPolicy{
			MaxAttempts: t.Retry.MaxAttempts, InitialBackoff: t.Retry.InitialBackoff.duration(),
			Multiplier: t.Retry.Multiplier, MaxBackoff: t.Retry.MaxBackoff.duration(),
			Jitter: t.Retry.Jitter,
		}
	}
	for _, each := range t.Deps {
		edge := cronoq.Dep{Target: each.ref(), Cond: conditions[each.Cond]}
		spec.Deps = append(spec.Deps, edge)
	}
	return spec
}

func specs(tasks []task) []cronoq.TaskSpec {
	made := make([]cronoq.TaskSpec, len(tasks))
	for index, each := range tasks {
		made[index] = each.spec()
	}
	return made
}

type filter struct {
	Pools    []string          `json:"pools"`
	Statuses []string          `json:"statuses"`
	Kinds    []string          `json:"kinds"`
	Keys     []string          `json:"keys"`
	Tags     map[string]string `json:"tags"`
	Tenants  []string          `json:"tenants"`
	Schedule string            `json:"schedule"`
}

func (f filter) wanted() cronoq.TaskFilter {
	made := cronoq.TaskFilter{
		Pools: f.Pools, Kinds: f.Kinds, Keys: f.Keys, Tags: f.Tags, Tenants: f.Tenants,
		Schedule: f.Schedule,
	}
	for _, word := range f.Statuses {
		made.Statuses = append(made.Statuses, number[cronoq.TaskStatus](word))
	}
	return made
}

type schedule struct {
	Name     string `json:"name"`
	Cron     string `json:"cron"`
	TZ       string `json:"tz"`
	Template task   `json:"template"`
	Overlap  string `json:"overlap"`
	Gap      string `json:"gap"`
	Fold     string `json:"fold"`
	CatchUp  string `json:"catch_up"`
	Paused   bool   `json:"paused"`
}

func (s schedule) spec() cronoq.ScheduleSpec {
	return cronoq.ScheduleSpec{
		Name: s.Name, Cron: s.Cron, TZ: s.TZ, Template: s.Template.spec(),
		Overlap: overlaps[s.Overlap], Gap: gaps[s.Gap], Fold: folds[s.Fold],
		CatchUp: catchUps[s.CatchUp], Paused: s.Paused,
	}
}

// withSized puts bytes with their size into a fact, and without themselves when they are many.
func withSized(into object, name string, raw []byte) object {
	into[name+"_size"] = len(raw)
	if len(raw) <= bytesShownMax {
		into[name+"_b64"] = raw
	}
	return into
}

func toldInstant(at time.Time) any {
	if at.IsZero() {
		return nil
	}
	return strconv.FormatInt(at.UnixNano(), 10)
}

func toldSeconds(duration *time.Duration) any {
	if duration == nil {
		return nil
	}
	return duration.Seconds()
}

func toldProgress(progress *cronoq.Progress) any {
	if progress == nil {
		return nil
	}
	return object{"data_b64": progress.Data, "fraction": progress.Fraction}
}

func toldIDs(ids []uint64) []string {
	told := make([]string, len(ids))
	for index, each := range ids {
		told[index] = toldID(each)
	}
	return told
}

func toldID(id uint64) string { return strconv.FormatUint(id, 10) }

func toldInfo(info cronoq.TaskInfo) object {
	return object{
		"task_id": toldID(info.ID), "status": info.Status.String(), "pool": info.Pool,
		"kind": info.Kind, "key": info.Key, "attempt": info.Attempt,
		"max_attempts": info.MaxAttempts, "message": info.Message,
		"output_available": info.OutputAvailable, "tenant": info.Tenant,
		"priority": info.Priority.String(), "tags": info.Tags, "labels": info.Labels,
		"waiting_for": info.WaitingFor, "schedule": info.Schedule,
		"created_at": toldInstant(info.CreatedAt), "started_at": toldInstant(info.StartedAt),
		"finished_at": toldInstant(info.FinishedAt), "next_run_at": toldInstant(info.NextRunAt),
		"progress": toldProgress(info.Progress),
	}
}

func toldSpec(spec cronoq.TaskSpec) object {
	told := object{
		"kind": spec.Kind, "content_type": spec.ContentType, "pool": spec.Pool, "key": spec.Key,
		"deadline_in": toldSeconds(spec.DeadlineIn), "deadline_at": toldInstant(spec.DeadlineAt),
		"start_in": toldSeconds(spec.StartIn), "start_at": toldInstant(spec.StartAt),
		"tolerance": toldSeconds(spec.Tolerance), "on_miss": wordOf(misses, spec.OnMiss),
		"duration_hint": toldSeconds(spec.DurationHint), "timeout": toldSeconds(spec.Timeout),
		"resources": spec.Resources, "tags": spec.Tags, "labels": spec.Labels,
		"tenant": spec.Tenant, "trace_context": spec.TraceContext,
		"delay": toldSeconds(spec.Delay), "not_before": toldInstant(spec.NotBefore),
		"expires_in": toldSeconds(spec.ExpiresIn),
	}
	if spec.Priority != 0 {
		told["priority"] = spec.Priority.String()
	}
	if policy := spec.Retry; policy != nil {
		told["retry"] = object{
			"max_attempts": policy.MaxAttempts, "initial_backoff": policy.InitialBackoff.Seconds(),
			"multiplier": policy.Multiplier, "max_backoff": policy.MaxBackoff.Seconds(),
			"jitter": policy.Jitter,
		}
	}
	var deps []object
	for _, each := range spec.Deps {
		deps = append(deps, with(toldTarget(each.Target), "cond", wordOf(conditions, each.Cond)))
	}
	told["deps"] = deps
	raw, _ := spec.Payload.([]byte)
	return withSized(told, "payload", raw)
}

func toldTarget(ref cronoq.TaskRef) object {
	if ref.Key != "" {
		return object{"key": ref.Key}
	}
	return object{"id": toldID(ref.ID)}
}

func with(into object, name string, field any) object {
	into[name] = field
	return into
}

func toldResult(result cronoq.TaskResult) object {
	told := object{
		"task_id": toldID(result.ID), "status": result.Status.String(),
		"content_type": result.ContentType, "message": result.Message,
		"output_available": result.OutputAvailable,
	}
	if result.Output == nil {
		return told
	}
	return withSized(told, "output", result.Output)
}

// families are the errors that others belong to; an error is of the first that errors.Is finds.
var families = map[string]error{
	"invalid_request": cronoq.ErrInvalidRequest, "unauthenticated": cronoq.ErrUnauthenticated,
	"permission_denied": cronoq.ErrPermissionDenied, "not_found": cronoq.ErrNotFound,
	"conflict": cronoq.ErrConflict, "exhausted": cronoq.ErrExhausted,
	"unavailable": cronoq.ErrUnavailable, "deadline": cronoq.ErrDeadline,
	"watch_lost": cronoq.ErrWatchLost, "unsupported": cronoq.ErrUnsupported,
	"internal": cronoq.ErrInternal, "task_failed": cronoq.ErrTaskFailed,
	"output_unavailable": cronoq.ErrOutputUnavailable, "payload": cronoq.ErrPayload,
	"gave_up": cronoq.ErrGaveUp, "closed": cronoq.ErrClosed,
}

// kinds are the errors of each family that have a reason of their own.
var kinds = map[string]error{
	"invalid_field": cronoq.ErrInvalidField, "field_conflict": cronoq.ErrFieldConflict,
	"too_large": cronoq.ErrTooLarge, "cycle": cronoq.ErrCycle,
	"duplicate_key_in_batch":    cronoq.ErrDuplicateKeyInBatch,
	"batch_too_large":           cronoq.ErrBatchTooLarge,
	"resource_unknown":          cronoq.ErrResourceUnknown,
	"resource_exceeds_capacity": cronoq.ErrResourceExceedsCapacity,
	"cross_shard_dependency":    cronoq.ErrCrossShardDependency,
	"cross_shard_batch":         cronoq.ErrCrossShardBatch,
	"cross_shard_resource":      cronoq.ErrCrossShardResource,
	"cron_invalid":              cronoq.ErrCronInvalid,
	"cron_never_fires":          cronoq.ErrCronNeverFires,
	"zone_unknown":              cronoq.ErrZoneUnknown,
	"role_not_allowed":          cronoq.ErrRoleNotAllowed,
	"pool_not_allowed":          cronoq.ErrPoolNotAllowed,
	"label_not_allowed":         cronoq.ErrLabelNotAllowed,
	"tenant_not_allowed":        cronoq.ErrTenantNotAllowed,
	"task_unknown":              cronoq.ErrTaskUnknown,
	"pool_unknown":              cronoq.ErrPoolUnknown,
	"dependency_unknown":        cronoq.ErrDependencyUnknown,
	"schedule_unknown":          cronoq.ErrScheduleUnknown,
	"resource_not_found":        cronoq.ErrResourceNotFound,
	"reservation_conflict":      cronoq.ErrReservationConflict,
	"wrong_shard":               cronoq.ErrWrongShard,
	"key_ambiguous":             cronoq.ErrKeyAmbiguous,
	"key_in_use":                cronoq.ErrKeyInUse,
	"dependency_impossible":     cronoq.ErrDependencyImpossible,
	"not_terminal":              cronoq.ErrNotTerminal,
	"queue_full":                cronoq.ErrQueueFull, "shed_none": cronoq.ErrShedNone,
	"too_many_requests": cronoq.ErrTooManyRequests,
	"too_many_streams":  cronoq.ErrTooManyStreams,
	"rate_limited":      cronoq.ErrRateLimited, "not_leader": cronoq.ErrNotLeader,
	"stopping": cronoq.ErrStopping, "store_unavailable": cronoq.ErrStoreUnavailable,
	"shard_unavailable": cronoq.ErrShardUnavailable, "wait_timeout": cronoq.ErrWaitTimeout,
	"watch_too_slow": cronoq.ErrWatchTooSlow, "cursor_unknown": cronoq.ErrCursorUnknown,
	"ids_exhausted": cronoq.ErrIDsExhausted,
}

func nameIn(table map[string]error, err error) string {
	for name, each := range table {
		if errors.Is(err, each) {
			return name
		}
	}
	return ""
}

func toldError(err error) object {
	family := nameIn(families, err)
	if family == "" {
		return object{"type": "option", "family": "option", "message": err.Error()}
	}
	kind := nameIn(kinds, err)
	if kind == "" {
		kind = family
	}
	told := object{"type": kind, "family": family, "message": err.Error()}
	if of := new(cronoq.Error); errors.As(err, &of) {
		told["message"], told["details"] = of.Message, of.Details
	}
	if of := new(cronoq.TaskFailedError); errors.As(err, &of) {
		told["message"], told["status"] = of.Message, of.Status.String()
	}
	return told
}

// toldStruct returns the fields of a flat struct under the protocol's names.
func toldStruct(from any) object {
	told := object{}
	fields := reflect.ValueOf(from)
	for index := range fields.NumField() {
		told[snake(fields.Type().Field(index).Name)] = fields.Field(index).Interface()
	}
	return told
}

func snake(name string) string {
	var made strings.Builder
	for index, letter := range name {
		if unicode.IsUpper(letter) && index > 0 {
			made.WriteByte('_')
		}
		made.WriteRune(unicode.ToLower(letter))
	}
	return made.String()
}
