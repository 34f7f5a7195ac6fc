package cronoq

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Which error a refusal, a failed task or a broken call becomes. Every error of a call is an
// [*Error] that wraps one of the sentinels below, and each sentinel wraps the one above it, so that
// errors.Is(err, ErrNotFound) holds for ErrTaskUnknown too.
//
//	ErrInvalidRequest        the call can never succeed as it is
//	  ErrInvalidField ErrFieldConflict ErrTooLarge ErrCycle ErrDuplicateKeyInBatch
//	  ErrBatchTooLarge ErrResourceUnknown ErrResourceExceedsCapacity ErrCrossShardDependency
//	  ErrCrossShardBatch ErrCrossShardResource ErrCronInvalid ErrCronNeverFires ErrZoneUnknown
//	ErrUnauthenticated       no valid credential
//	ErrPermissionDenied      the credential does not allow it
//	  ErrRoleNotAllowed ErrPoolNotAllowed ErrLabelNotAllowed ErrTenantNotAllowed
//	ErrNotFound
//	  ErrTaskUnknown ErrPoolUnknown ErrDependencyUnknown ErrScheduleUnknown ErrResourceNotFound
//	ErrConflict              the present state forbids it
//	  ErrReservationConflict ErrWrongShard ErrKeyAmbiguous ErrKeyInUse ErrDependencyImpossible
//	  ErrNotTerminal
//	ErrExhausted             a limit is reached, try later
//	  ErrQueueFull ErrShedNone ErrTooManyRequests ErrTooManyStreams ErrRateLimited
//	ErrUnavailable           nobody can serve it now
//	  ErrNotLeader ErrStopping ErrStoreUnavailable ErrShardUnavailable
//	ErrDeadline              the caller's time is up; wraps context.DeadlineExceeded
//	  ErrWaitTimeout
//	ErrWatchLost             a watch cannot go on without a gap
//	  ErrWatchTooSlow ErrCursorUnknown
//	ErrUnsupported           this server does not know the call
//	ErrInternal
//	  ErrIDsExhausted
//	ErrTaskFailed            Result of a task that did not succeed; see TaskFailedError
//	ErrOutputUnavailable     the output is no longer kept
//	ErrPayload               bytes and values do not match
//	ErrGaveUp                a worker met an answer that no retry can change
//	ErrClosed                the client or worker was closed
//
// The sentinels that stand for a reason of the wire, and their parents.
var (
	ErrInvalidRequest          = top("the request can never succeed as it is")
	ErrInvalidField            = under(ErrInvalidRequest, ReasonInvalidField)
	ErrFieldConflict           = under(ErrInvalidRequest, ReasonFieldConflict)
	ErrTooLarge                = under(ErrInvalidRequest, ReasonTooLarge)
	ErrCycle                   = under(ErrInvalidRequest, ReasonCycle)
	ErrDuplicateKeyInBatch     = under(ErrInvalidRequest, ReasonDuplicateKeyInBatch)
	ErrBatchTooLarge           = under(ErrInvalidRequest, ReasonBatchTooLarge)
	ErrResourceUnknown         = under(ErrInvalidRequest, ReasonResourceUnknown)
	ErrResourceExceedsCapacity = under(ErrInvalidRequest, ReasonResourceExceedsCapacity)
	ErrCrossShardDependency    = under(ErrInvalidRequest, ReasonCrossShardDependency)
	ErrCrossShardBatch         = under(ErrInvalidRequest, ReasonCrossShardBatch)
	ErrCrossShardResource      = under(ErrInvalidRequest, ReasonCrossShardResource)
	ErrCronInvalid             = under(ErrInvalidRequest, ReasonCronInvalid)
	ErrCronNeverFires          = under(ErrInvalidRequest, ReasonCronNeverFires)
	ErrZoneUnknown             = under(ErrInvalidRequest, ReasonZoneUnknown)

	ErrUnauthenticated  = under(nil, ReasonUnauthenticated)
	ErrPermissionDenied = top("the credential does not allow this")
	ErrRoleNotAllowed   = under(ErrPermissionDenied, ReasonRoleNotAllowed)
	ErrPoolNotAllowed   = under(ErrPermissionDenied, ReasonPoolNotAllowed)
	ErrLabelNotAllowed  = under(ErrPermissionDenied, ReasonLabelNotAllowed)
	ErrTenantNotAllowed = under(ErrPermissionDenied, ReasonTenantNotAllowed)

	ErrNotFound          = top("there is no such thing")
	ErrTaskUnknown       = under(ErrNotFound, ReasonTaskUnknown)
	ErrPoolUnknown       = under(ErrNotFound, ReasonPoolUnknown)
	ErrDependencyUnknown = under(ErrNotFound, ReasonDependencyUnknown)
	ErrScheduleUnknown   = under(ErrNotFound, ReasonScheduleUnknown)
	ErrResourceNotFound  = under(ErrNotFound, ReasonResourceNotFound)

	ErrConflict             = top("the present state does not allow this")
	ErrReservationConflict  = under(ErrConflict, ReasonReservationConflict)
	ErrWrongShard           = under(ErrConflict, ReasonWrongShard)
	ErrKeyAmbiguous         = under(ErrConflict, ReasonKeyAmbiguous)
	ErrKeyInUse             = under(ErrConflict, ReasonKeyInUse)
	ErrDependencyImpossible = under(ErrConflict, ReasonDependencyImpossible)
	ErrNotTerminal          = under(ErrConflict, ReasonNotTerminal)

	ErrExhausted       = top("a limit is reached; the same call may pass later")
	ErrQueueFull       = under(ErrExhausted, ReasonQueueFull)
	ErrShedNone        = under(ErrExhausted, ReasonShedNone)
	ErrTooManyRequests = under(ErrExhausted, ReasonTooManyRequests)
	ErrTooManyStreams  = under(ErrExhausted, ReasonTooManyStreams)
	ErrRateLimited     = under(ErrExhausted, ReasonRateLimited)

	ErrUnavailable      = top("no server could answer")
	ErrNotLeader        = under(ErrUnavailable, ReasonNotLeader)
	ErrStopping         = under(ErrUnavailable, ReasonStopping)
	ErrStoreUnavailable = under(ErrUnavailable, ReasonStoreUnavailable)
	ErrShardUnavailable = under(ErrUnavailable, ReasonShardUnavailable)

	ErrDeadline    error = &sentinel{text: "the time is up", parent: context.DeadlineExceeded}
	ErrWaitTimeout       = under(ErrDeadline, ReasonWaitTimeout)

	ErrWatchLost     = top("the watch cannot go on without a gap")
	ErrWatchTooSlow  = under(ErrWatchLost, ReasonWatchTooSlow)
	ErrCursorUnknown = under(ErrWatchLost, ReasonCursorUnknown)

	ErrUnsupported  = under(nil, ReasonUnsupported)
	ErrInternal     = under(nil, ReasonInternal)
	ErrIDsExhausted = under(ErrInternal, ReasonIDsExhausted)

	ErrTaskFailed        = top("the task ended without success")
	ErrOutputUnavailable = top("the output is no longer kept")
	ErrPayload           = top("the bytes and the wanted value do not match")
	ErrGaveUp            = top("the worker met an answer that no retry can change")
	ErrClosed            = top("the client or worker is closed")
)

// ErrorReason is why a server refused, one word for all languages. The values are the words of the
// wire in lower case; a newer server may send words that have no constant here.
type ErrorReason string

// The reasons that this version knows.
const (
	ReasonInvalidField            ErrorReason = "invalid_field"
	ReasonFieldConflict           ErrorReason = "field_conflict"
	ReasonTooLarge                ErrorReason = "too_large"
	ReasonCycle                   ErrorReason = "cycle"
	ReasonDuplicateKeyInBatch     ErrorReason = "duplicate_key_in_batch"
	ReasonBatchTooLarge           ErrorReason = "batch_too_large"
	ReasonResourceUnknown         ErrorReason = "resource_unknown"
	ReasonResourceExceedsCapacity ErrorReason = "resource_exceeds_capacity"
	ReasonCrossShardDependency    ErrorReason = "cross_shard_dependency"
	ReasonCrossShardBatch         ErrorReason = "cross_shard_batch"
	ReasonCrossShardResource      ErrorReason = "cross_shard_resource"
	ReasonCronInvalid             ErrorReason = "cron_invalid"
	ReasonCronNeverFires          ErrorReason = "cron_never_fires"
	ReasonZoneUnknown             ErrorReason = "zone_unknown"
	ReasonUnauthenticated         ErrorReason = "unauthenticated"
	ReasonRoleNotAllowed          ErrorReason = "role_not_allowed"
	ReasonPoolNotAllowed          ErrorReason = "pool_not_allowed"
	ReasonLabelNotAllowed         ErrorReason = "label_not_allowed"
	ReasonTenantNotAllowed        ErrorReason = "tenant_not_allowed"
	ReasonTaskUnknown             ErrorReason = "task_unknown"
	ReasonPoolUnknown             ErrorReason = "pool_unknown"
	ReasonDependencyUnknown       ErrorReason = "dependency_unknown"
	ReasonScheduleUnknown         ErrorReason = "schedule_unknown"
	ReasonResourceNotFound        ErrorReason = "resource_not_found"
	ReasonReservationConflict     ErrorReason = "reservation_conflict"
	ReasonWrongShard              ErrorReason = "wrong_shard"
	ReasonKeyAmbiguous            ErrorReason = "key_ambiguous"
	ReasonKeyInUse                ErrorReason = "key_in_use"
	ReasonDependencyImpossible    ErrorReason = "dependency_impossible"
	ReasonNotTerminal             ErrorReason = "not_terminal"
	ReasonQueueFull               ErrorReason = "queue_full"
	ReasonShedNone                ErrorReason = "shed_none"
	ReasonTooManyRequests         ErrorReason = "too_many_requests"
	ReasonTooManyStreams          ErrorReason = "too_many_streams"
	ReasonRateLimited             ErrorReason = "rate_limited"
	ReasonNotLeader               ErrorReason = "not_leader"
	ReasonStopping                ErrorReason = "stopping"
	ReasonStoreUnavailable        ErrorReason = "store_unavailable"
	ReasonShardUnavailable        ErrorReason = "shard_unavailable"
	ReasonWaitTimeout             ErrorReason = "wait_timeout"
	ReasonWatchTooSlow            ErrorReason = "watch_too_slow"
	ReasonCursorUnknown           ErrorReason = "cursor_unknown"
	ReasonUnsupported             ErrorReason = "unsupported"
	ReasonIDsExhausted            ErrorReason = "ids_exhausted"
	ReasonInternal                ErrorReason = "internal"
)

// byReason finds the sentinel of a reason; filled while the sentinels are made.
var byReason = map[ErrorReason]error{}

// sentinel is one node of the tree of errors.
type sentinel struct {
	text   string
	reason ErrorReason
	parent error
}

func (s *sentinel) Error() string { return "cronoq: " + s.text }

func (s *sentinel) Unwrap() error { return s.parent }

func top(text string) error { return &sentinel{text: text} }

func under(parent error, reason ErrorReason) error {
	made := &sentinel{text: strings.ReplaceAll(string(reason), "_", " "), reason: reason, parent: parent}
	byReason[reason] = made
	return made
}

// Error is how a call failed. Compare it with the Err sentinels by errors.Is.
type Error struct {
	// Reason is the server's reason; empty if it gave none.
	Reason ErrorReason
	// Message says for people what happened.
	Message string
	// Details is what the server added: field, limit, shard, endpoint, index and the like.
	Details map[string]string
	// NotExecuted is true when the server certainly did nothing. False means unknown.
	NotExecuted bool

	kind  error
	cause error
}

// Error returns the message.
func (e *Error) Error() string {
	if e.Message != "" {
		return "cronoq: " + e.Message
	}
	return e.kind.Error()
}

// Unwrap returns the sentinel and, if there is one, the error that led here.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.kind}
	}
	return []error{e.kind, e.cause}
}

// TaskFailedError is what Result returns for a task that ended without success. It wraps
// ErrTaskFailed.
type TaskFailedError struct {
	// TaskID is the task's id.
	TaskID uint64
	// Status is how it ended.
	Status TaskStatus
	// Message is what the worker or server said about it.
	Message string
}

// Error says which task ended how, and why.
func (e *TaskFailedError) Error() string {
	text := fmt.Sprintf("cronoq: task %d %s", e.TaskID, e.Status)
	if e.Message != "" {
		text += ": " + e.Message
	}
	return text
}

// Unwrap returns ErrTaskFailed.
func (e *TaskFailedError) Unwrap() error { return ErrTaskFailed }

// failure makes an error of a kind with a message of its own.
func failure(kind error, format string, arguments ...any) *Error {
	made := &Error{Message: fmt.Sprintf(format, arguments...), kind: kind}
	if node, isNode := kind.(*sentinel); isNode {
		made.Reason = node.reason
	}
	return made
}

// byCode is for servers that give no reason.
var byCode = map[codes.Code]error{
	codes.InvalidArgument:    ErrInvalidRequest,
	codes.OutOfRange:         ErrInvalidRequest,
	codes.Unauthenticated:    ErrUnauthenticated,
	codes.PermissionDenied:   ErrPermissionDenied,
	codes.NotFound:           ErrNotFound,
	codes.FailedPrecondition: ErrConflict,
	codes.AlreadyExists:      ErrConflict,
	codes.Aborted:            ErrUnavailable,
	codes.Canceled:           ErrUnavailable,
	codes.ResourceExhausted:  ErrExhausted,
	codes.Unavailable:        ErrUnavailable,
	codes.DeadlineExceeded:   ErrDeadline,
	codes.DataLoss:           ErrWatchLost,
	codes.Unimplemented:      ErrUnsupported,
}

const errorDomain = "cronoq"

// callError returns the error for a call that failed, with what its metadata said.
func callError(err error, headers ...metadata.MD) *Error {
	from := status.Convert(err)
	made := statusError(from.Proto(), "")
	for _, header := range headers {
		for key, values := range header {
			if strings.HasPrefix(key, "cronoq-") && len(values) > 0 {
				made.Details[key] = values[0]
			}
		}
	}
	if from.Code() == codes.Unavailable && wasNeverSent(from.Message()) {
		made.NotExecuted = true
	}
	made.cause = err
	return made
}

// statusError returns the error for a status that travels inside a message. The place, such as
// "tasks[3].", is where in the request the fault is; it is left out, since the caller knows of one
// task only and not of the request that carried it.
func statusError(from *rpcstatus.Status, place string) *Error {
	made := &Error{Message: strings.TrimPrefix(from.GetMessage(), place), Details: map[string]string{}}
	for _, detail := range from.GetDetails() {
		info := new(errdetails.ErrorInfo)
		if detail.UnmarshalTo(info) != nil || info.GetDomain() != errorDomain {
			continue
		}
		made.Reason = reasonOf(info.GetReason())
		maps.Copy(made.Details, info.GetMetadata())
		break
	}
	if place != "" {
		delete(made.Details, "index")
		for name, text := range made.Details {
			made.Details[name] = strings.TrimPrefix(text, place)
		}
	}
	made.kind = kindOf(made.Reason, codes.Code(from.GetCode()))
	made.NotExecuted = made.Reason == ReasonNotLeader || made.Reason == ReasonStopping
	if made.Message == "" {
		made.Message = strings.ToLower(codes.Code(from.GetCode()).String())
	}
	return made
}

func kindOf(reason ErrorReason, code codes.Code) error {
	if kind, isKnown := byReason[reason]; isKnown {
		return kind
	}
	if kind, isKnown := byCode[code]; isKnown {
		return kind
	}
	return ErrInternal
}

func reasonOf(word string) ErrorReason {
	return ErrorReason(strings.TrimPrefix(strings.ToLower(word), "error_reason_"))
}

// neverSent is what gRPC says when there was no connection to send the call on.
var neverSent = []string{
	"connection error: desc",
	"error while dialing",
	"name resolver error",
	"produced zero addresses",
}

func wasNeverSent(message string) bool {
	text := strings.ToLower(message)
	for _, mark := range neverSent {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}
