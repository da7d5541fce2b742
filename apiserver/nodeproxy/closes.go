package nodeproxy

import (
	"errors"
	"net"
	"net/http"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// quietCloses gives the handler of a stream a logger that logs at V(4) when this server has closed
// a connection, or the client has left. Each stream ends with one of these: upstream reads the
// client's WebSocket until the read fails, and logs the failure as an error.
func quietCloses(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		logger := klog.FromContext(r.Context())
		logger = logger.WithSink(closesAsDetails{logger.GetSink()})
		next.ServeHTTP(w, r.WithContext(klog.NewContext(r.Context(), logger)))
	})
}

// closesAsDetails is a sink that lowers errors of connections that this process has closed itself,
// in one direction or both, and of WebSockets that ended with the client's connection or by its
// close frame.
type closesAsDetails struct{ klog.LogSink }

// detail is the verbosity of a close.
const detail = 4

// Error implements klog.LogSink.
func (s closesAsDetails) Error(err error, message string, pairs ...any) {
	var ended *websocket.CloseError
	if !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.EPIPE) && !errors.As(err, &ended) {
		s.LogSink.Error(err, message, pairs...)
		return
	}
	if s.Enabled(detail) {
		s.Info(detail, message, append(pairs, "err", err)...)
	}
}

// WithValues implements klog.LogSink.
func (s closesAsDetails) WithValues(pairs ...any) klog.LogSink {
	return closesAsDetails{s.LogSink.WithValues(pairs...)}
}

// WithName implements klog.LogSink.
func (s closesAsDetails) WithName(name string) klog.LogSink {
	return closesAsDetails{s.LogSink.WithName(name)}
}
