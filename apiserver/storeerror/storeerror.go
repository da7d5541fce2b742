// Package storeerror has the store's errors as errors of the API.
//
// A client can distinguish a request that was not executed (503; with Retry-After, unless there has
// been no leader for long) from a write with an unknown outcome (504), by the code and by the cause
// in the details.
package storeerror

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
)

// Causes in the details of an API error that distinguish the store's refusals.
const (
	// CauseStoreUnavailable: the request was certainly not executed. Repeating it is safe.
	CauseStoreUnavailable metav1.CauseType = "StoreUnavailable"
	// CauseNoLeader comes beside CauseStoreUnavailable when there has been no leader for long:
	// repeating is useless before servers are back.
	CauseNoLeader metav1.CauseType = "NoLeader"
	// CauseOutcomeUnknown: a write may or may not have taken effect. Read before repeating it.
	CauseOutcomeUnknown metav1.CauseType = "OutcomeUnknown"
	// CauseLeaderTermOver: the write carried the term of a leadership that has ended. It was not
	// executed and never will be.
	CauseLeaderTermOver metav1.CauseType = "LeaderTermOver"
	// CauseStoreFull: the datastore has reached its limit. The write was not executed; a delete
	// would be.
	CauseStoreFull metav1.CauseType = "StoreFull"
	// CauseDiskFull: the disks of the servers that could lead are full. The write was not executed;
	// a delete would be.
	CauseDiskFull metav1.CauseType = "DiskFull"
)

// Unreadable is how the message begins with which a read is refused while the store is unavailable.
const Unreadable = "the datastore cannot be read at the moment"

// StatusReasonInsufficientStorage is the reason of an answer with the code 507.
const StatusReasonInsufficientStorage metav1.StatusReason = "InsufficientStorage"

// RetryAfterSeconds is the Retry-After of an answer when there is no leader at the moment:
// elections take a fraction of a second. Clients repeat such a request by themselves, and show
// nothing to their users meanwhile, so the answer has none when there has been no leader for long.
const RetryAfterSeconds = 1

// statusError is an API error that keeps its cause.
type statusError struct {
	apierrors.StatusError
	cause error
}

func (e *statusError) Unwrap() []error { return []error{&e.StatusError, e.cause} }

func newStatusError(
	cause error, code int32, reason metav1.StatusReason, causeType metav1.CauseType, message string, retryAfter int32,
) *statusError {
	return &statusError{
		StatusError: apierrors.StatusError{ErrStatus: metav1.Status{
			Status:  metav1.StatusFailure,
			Code:    code,
			Reason:  reason,
			Message: message,
			Details: &metav1.StatusDetails{
				RetryAfterSeconds: retryAfter,
				Causes:            []metav1.StatusCause{{Type: causeType, Message: cause.Error()}},
			},
		}},
		cause: cause,
	}
}

// unavailable is the answer to a request that was certainly not executed.
func unavailable(err error, message string) error {
	long := errors.Is(err, raftstore.ErrLeaderless)
	retryAfter := int32(RetryAfterSeconds)
	if long {
		retryAfter = 0
	}
	answer := newStatusError(err, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable,
		CauseStoreUnavailable, message, retryAfter)
	if long {
		details := answer.ErrStatus.Details
		details.Causes = append(details.Causes, metav1.StatusCause{Type: CauseNoLeader, Message: err.Error()})
	}
	return answer
}

// OfRead maps an error of a store's View or Watch to an API error. A read has no outcome that
// could be lost. An error that is already mapped stays as it is.
func OfRead(err error) error {
	if mapped, ok := errors.AsType[*statusError](err); ok {
		return mapped
	}
	switch {
	case errors.Is(err, raftstore.ErrLeaderless): // also when the request's time is over meanwhile
		return unreadable(err)
	case isContextError(err):
		return newStatusError(err, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "",
			"the read did not complete within the request's time", 0)
	case errors.Is(err, raftstore.ErrUnavailable), errors.Is(err, raftstore.ErrClosed),
		errors.Is(err, raftstore.ErrUnknownOutcome):
		return unreadable(err)
	}
	return storage.NewInternalError(err)
}

func unreadable(err error) error {
	return unavailable(err, Unreadable+": "+err.Error()+seeStatus)
}

// seeStatus ends messages about a store that cannot serve.
const seeStatus = "; see 'barque cluster status'"

// OfWrite maps an error of a store's Commit that is not a conflict to an API error. The
// answer to a write whose outcome is unknown has no Retry-After: clients repeat requests that have
// one by themselves.
func OfWrite(err error) error {
	switch {
	case errors.Is(err, raftstore.ErrFenced):
		return newStatusError(err, http.StatusConflict, metav1.StatusReasonConflict, CauseLeaderTermOver,
			"the write was refused: the leadership in whose name it was made is over", 0)
	case errors.Is(err, raftstore.ErrTooLarge):
		status := apierrors.NewRequestEntityTooLargeError("the object is too large to be stored: " + err.Error())
		return &statusError{StatusError: *status, cause: err}
	case errors.Is(err, raftstore.ErrNoSpace):
		// No Retry-After: a repetition fails until objects have been deleted.
		return newStatusError(err, http.StatusInsufficientStorage, StatusReasonInsufficientStorage, CauseStoreFull,
			"the write was refused: "+err.Error()+" (--store-memory-limit)", 0)
	case errors.Is(err, raftstore.ErrDiskFull):
		return newStatusError(err, http.StatusInsufficientStorage, StatusReasonInsufficientStorage, CauseDiskFull,
			"the write was refused: "+err.Error(), 0)
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		return unknownOutcome(err)
	case errors.Is(err, raftstore.ErrUnavailable), errors.Is(err, raftstore.ErrClosed):
		return unavailable(err, "the write was not executed: "+err.Error()+"; it is safe to repeat it"+seeStatus)
	case isContextError(err):
		// The request ended while the store had the transaction, and the store did not say that
		// it was not executed.
		return unknownOutcome(err)
	}
	return storage.NewInternalError(err)
}

func unknownOutcome(err error) error {
	return newStatusError(err, http.StatusGatewayTimeout, metav1.StatusReasonTimeout, CauseOutcomeUnknown,
		"the outcome of the write is unknown: it may or may not have taken effect; read the object before repeating it",
		0)
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

const (
	messageListExpired     = "The resourceVersion for the provided list is too old"
	messageWatchExpired    = "too old resource version"
	messageContinueExpired = "The provided continue parameter is too old to display a consistent list result. " +
		"Start a new list without it, or use the continue token of this response to read the rest " +
		"as it is now: objects that changed since the first chunk may then be missing or appear twice."
)

// expired is the answer to a request for a revision that has left history. It has both revisions,
// in the text of Kubernetes: people search for it, and see how far behind a client is.
func expired(message string, cause error) *apierrors.StatusError {
	var compacted *raftstore.CompactedError
	if errors.As(cause, &compacted) {
		message = fmt.Sprintf("%s: %d (%d)", message, compacted.Revision, compacted.Oldest)
	}
	return apierrors.NewResourceExpired(message)
}

// ExpiredWatch is the answer to a watch from a revision that has left history.
func ExpiredWatch(cause error) *apierrors.StatusError { return expired(messageWatchExpired, cause) }

// ExpiredList is the answer to a list at a revision that has left history. When it was a
// continuation the answer carries a token for going on at the newest revision.
func ExpiredList(cause error, continueKey, keyPrefix string) error {
	if continueKey == "" {
		return expired(messageListExpired, cause)
	}
	status := apierrors.NewResourceExpired(messageContinueExpired)
	// A negative revision in a token stands for the newest one.
	token, err := storage.EncodeContinue(continueKey, keyPrefix, -1)
	if err == nil {
		status.ErrStatus.ListMeta.Continue = token
	}
	return status
}
