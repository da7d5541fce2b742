package main

import (
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/apiserver/storage"
)

// A server that has known no leader for long says so in its answer. Nothing was written then, nor
// read.

// withoutLeader gives an error its exit code when it is such an answer of the API.
func withoutLeader(err error) error {
	if !noLeader(err) && apierrors.HasStatusCause(err, storage.CauseNoLeader) {
		return &exitError{exitNoQuorum, err}
	}
	return err
}

// noLeader tells whether the error has that exit code.
func noLeader(err error) bool {
	var coded *exitError
	return errors.As(err, &coded) && coded.code == exitNoQuorum
}

// unchanged adds to the error of a request that would have changed something that it has not, where
// that is why it failed.
func unchanged(err error) error {
	if noLeader(err) {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	return err
}

// refusedBy is the error of an answer that says no in the API's way.
func refusedBy(status *metav1.Status) error {
	err := &refusalError{int(status.Code), status.Message}
	if apierrors.HasStatusCause(&apierrors.StatusError{ErrStatus: *status}, storage.CauseNoLeader) {
		return &exitError{exitNoQuorum, err}
	}
	return err
}
