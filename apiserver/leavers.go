package apiserver

import (
	"context"
	"errors"
	"net/http"

	"k8s.io/klog/v2"
)

// quietLeavers gives each request a logger that logs at V(4) the errors after the client has left.
// The API machinery logs them as errors: an answer that cannot be written, a watch that ends, a
// request that is given up. Clients leave all the time. A request that exceeded its time limit is
// an error still.
func quietLeavers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		logger := klog.FromContext(r.Context())
		logger = logger.WithSink(leaversAsDetails{logger.GetSink(), r.Context()})
		next.ServeHTTP(w, r.WithContext(klog.NewContext(r.Context(), logger)))
	})
}

// leaversAsDetails is a sink that lowers the errors of a request whose client has left.
type leaversAsDetails struct {
	klog.LogSink
	request context.Context // ends when the client leaves
}

// leaverDetail is the verbosity of lines about clients that left.
const leaverDetail = 4

// Error implements klog.LogSink.
func (s leaversAsDetails) Error(err error, message string, pairs ...any) {
	if !errors.Is(s.request.Err(), context.Canceled) {
		s.LogSink.Error(err, message, pairs...)
		return
	}
	if s.Enabled(leaverDetail) {
		s.Info(leaverDetail, message, append(pairs, "err", err)...)
	}
}

// WithValues implements klog.LogSink.
func (s leaversAsDetails) WithValues(pairs ...any) klog.LogSink {
	return leaversAsDetails{s.LogSink.WithValues(pairs...), s.request}
}

// WithName implements klog.LogSink.
func (s leaversAsDetails) WithName(name string) klog.LogSink {
	return leaversAsDetails{s.LogSink.WithName(name), s.request}
}
