package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// corruptError is returned if a stored object cannot be read: its value does not transform, or the
// result does not decode. Only an object that is corrupt in this sense may be deleted unread.
type corruptError struct {
	what     string
	revision uint64 // 0 when it is not known
	err      error
}

func (e *corruptError) Error() string {
	if e.revision == 0 {
		return fmt.Sprintf("the stored object is corrupt: %s: %v", e.what, e.err)
	}
	return fmt.Sprintf("the stored object of revision %d is corrupt: %s: %v", e.revision, e.what, e.err)
}

func (e *corruptError) Unwrap() error { return e.err }

// corruptNaming is a transformer that names a value corrupt if that cannot be transformed by
// anybody.
type corruptNaming struct{ value.Transformer }

// TransformFromStorage implements value.Transformer.
func (t corruptNaming) TransformFromStorage(
	ctx context.Context, data []byte, dataCtx value.Context,
) ([]byte, bool, error) {
	out, stale, err := t.Transformer.TransformFromStorage(ctx, data, dataCtx)
	if err != nil && !isUnavailable(err) {
		err = &corruptError{what: "it cannot be transformed", err: err}
	}
	return out, stale, err
}

// isCustomObject reports whether data is a custom resource's object as it was stored. If its codec
// fails nevertheless, the conversion between versions has failed, as by a webhook that is down: the
// codec's error does not show that, and the object is whole.
func isCustomObject(data []byte) bool {
	obj, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, nil)
	if err != nil {
		return false
	}
	custom, ok := obj.(*unstructured.Unstructured)
	return ok && custom.GetName() != ""
}

// corruptOr returns the error by which the registries know a corrupt object if err is a
// corruptError, and otherwise the other error.
func corruptOr(key string, err, otherwise error) error {
	var corrupt *corruptError
	if errors.As(err, &corrupt) {
		return storage.NewCorruptObjError(key, corrupt)
	}
	return otherwise
}

// corruptDeletedError is the error of a watch of a deletion whose last object cannot be read.
type corruptDeletedError struct{ err error }

func (e *corruptDeletedError) Error() string {
	return "saw a DELETED event, but object data is corrupt - " + e.err.Error()
}

func (e *corruptDeletedError) Unwrap() error { return e.err }

// maxListErrors is how many corrupt objects a list names before it gives up.
const maxListErrors = 100

var errTooManyCorrupt = errors.New("too many errors, the list is truncated")

// listErrors gathers the errors of single items of a list. It goes on after corrupt objects, so
// that one answer names them all, and stops at any other error.
type listErrors struct {
	aggregate bool
	corrupt   []*storage.StorageError
	abort     error
}

// add takes an item's error and reports whether the list goes on.
func (l *listErrors) add(key string, err error) bool {
	var corrupt *corruptError
	if !l.aggregate || !errors.As(err, &corrupt) {
		l.abort = err
		return false
	}
	l.corrupt = append(l.corrupt, storage.NewCorruptObjError(key, corrupt))
	if len(l.corrupt) >= maxListErrors {
		l.abort = errTooManyCorrupt
		return false
	}
	return true
}

// asAPIError returns nil without errors.
func (l *listErrors) asAPIError(resource schema.GroupResource) error {
	if len(l.corrupt) == 0 {
		return l.abort
	}
	causes := make([]metav1.StatusCause, 0, len(l.corrupt)+1)
	for _, err := range l.corrupt {
		causes = append(causes, metav1.StatusCause{
			Type:    metav1.CauseTypeUnexpectedServerResponse,
			Field:   err.Key,
			Message: err.Error(),
		})
	}
	switch {
	case errors.Is(l.abort, errTooManyCorrupt):
		causes = append(causes, metav1.StatusCause{Type: metav1.CauseTypeTooMany, Message: l.abort.Error()})
	case l.abort != nil:
		causes = append(causes,
			metav1.StatusCause{Type: metav1.CauseTypeUnexpectedServerResponse, Message: l.abort.Error()})
	}
	message := fmt.Sprintf("failed to read one or more %s from the storage: %v", resource, l.corrupt[0])
	if more := len(l.corrupt) - 1; more > 0 {
		message += fmt.Sprintf(" (and %d more)", more)
	}
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusInternalServerError,
		Reason:  metav1.StatusReasonStoreReadError,
		Message: message,
		Details: &metav1.StatusDetails{Group: resource.Group, Kind: resource.Resource, Name: "list", Causes: causes},
	}}
}
