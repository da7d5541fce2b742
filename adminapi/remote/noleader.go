package remote

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/internal/exitcode"
)

// A server without a leader for long reports it in its answer. It has neither written nor read
// anything then.

// WithoutLeader gives an error its exit code when it is such an answer of the API.
func WithoutLeader(err error) error {
	if !NoLeader(err) && apierrors.HasStatusCause(err, storeerror.CauseNoLeader) {
		return &exitcode.Error{Code: exitcode.NoQuorum, Err: err}
	}
	return err
}

// NoLeader reports whether the error has that exit code.
func NoLeader(err error) bool {
	var coded *exitcode.Error
	return errors.As(err, &coded) && coded.Code == exitcode.NoQuorum
}

// Unchanged adds to the error of a failed change that it changed nothing, if the cause is a missing
// leader.
func Unchanged(err error) error {
	if NoLeader(err) {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	return err
}

// refusedBy is the error of a refusal in the API's form.
func refusedBy(status *metav1.Status) error {
	err := &RefusalError{int(status.Code), status.Message}
	if apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *status}, storeerror.CauseNoLeader) {
		return &exitcode.Error{Code: exitcode.NoQuorum, Err: err}
	}
	return err
}
