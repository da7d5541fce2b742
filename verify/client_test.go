package verify

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestOutcomes: a call counts as refused only if the server cannot have executed it.
func TestOutcomes(t *testing.T) {
	maps := schema.GroupResource{Resource: "configmaps"}
	status := func(code int32, retryAfter int32) error {
		return &apierrors.StatusError{
			ErrStatus: metav1.Status{Code: code, Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfter}}}
	}
	lost := func(op string, err error) error {
		return &url.Error{Op: http.MethodPut, URL: "https://s1", Err: &net.OpError{Op: op, Net: "tcp", Err: err}}
	}
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, Done},
		{apierrors.NewAlreadyExists(maps, "x"), Exists},
		{apierrors.NewNotFound(maps, "x"), Absent},
		{apierrors.NewConflict(maps, "x", errors.New("old")), Conflict},
		{apierrors.NewTooManyRequests("busy", 1), Refused},
		{apierrors.NewForbidden(maps, "x", errors.New("no")), Refused},
		{apierrors.NewUnauthorized("no"), Refused},
		{apierrors.NewBadRequest("no"), Refused},
		{status(insufficientStorage, 0), Refused},
		{status(http.StatusServiceUnavailable, 1), Refused},
		{status(http.StatusServiceUnavailable, 0), Unknown},
		{status(http.StatusInternalServerError, 1), Unknown},
		{status(http.StatusGatewayTimeout, 1), Unknown},
		{lost("dial", syscall.ECONNREFUSED), Refused},
		{lost("dial", syscall.EHOSTUNREACH), Refused},
		{lost("dial", syscall.ENETUNREACH), Refused},
		{lost("dial", syscall.ETIMEDOUT), Unknown},
		{lost("read", syscall.EHOSTUNREACH), Unknown},
		{lost("read", syscall.ECONNREFUSED), Unknown},
		{lost("write", syscall.ECONNRESET), Unknown},
		{context.DeadlineExceeded, Unknown},
	} {
		if got := outcome(c.err); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
		if wrapped := fmt.Errorf("wrapped: %w", c.err); c.err != nil && outcome(wrapped) != c.want {
			t.Errorf("%v: %s, want %s", wrapped, outcome(wrapped), c.want)
		}
	}
}
