// Package httpserver serves HTTP to strangers and clients on one port. It bounds the connections of
// strangers and their log lines. It sets a minimum rate for bodies and a deadline for answers to
// strangers.
//
// A handler calls Authenticate when it knows the client. The connection then counts as a client's
// until it ends, or until a handler calls Estrange.
package httpserver

import (
	"context"
	"crypto/tls"
	"errors"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/logline"
)

// Config of a Server.
type Config struct {
	Listener net.Listener // without TLS; the Server closes it
	Handler  http.Handler
	// TLS is the configuration of a server of HTTPS; nil serves HTTP in clear.
	TLS *tls.Config
	// Limits bound the connections of strangers.
	Limits connlimit.Limits
	// HTTP2 has the limits of HTTP/2; nil means net/http's.
	HTTP2 *http.HTTP2Config
	// HeaderTimeout bounds the handshake, and the header of a request. IdleTimeout bounds the time
	// between two requests. Defaults: 30 s and 2 minutes.
	HeaderTimeout, IdleTimeout time.Duration
	// Base is the context of all requests; nil means context.Background.
	Base context.Context
	// HandshakeFailed is called for each failed handshake; it may be nil.
	HandshakeFailed func()
	Logger          *slog.Logger
}

// strangerAnswer bounds the time from a stranger's request to the end of its answer.
const strangerAnswer = 90 * time.Second

// Server serves one port.
type Server struct {
	http     *http.Server
	limiter  *connlimit.Limiter
	listener net.Listener
	tls      bool
}

// New returns a Server that does not accept yet.
func New(c Config) *Server {
	if c.HeaderTimeout == 0 {
		c.HeaderTimeout = 30 * time.Second
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = 2 * time.Minute
	}
	if c.Base == nil {
		c.Base = context.Background()
	}
	s := &Server{limiter: connlimit.New(c.Limits, c.Logger), tls: c.TLS != nil}
	s.listener = s.limiter.Listen(c.Listener)
	s.http = &http.Server{
		Handler:           limited(c.Handler),
		TLSConfig:         c.TLS,
		HTTP2:             c.HTTP2,
		BaseContext:       func(net.Listener) context.Context { return c.Base },
		ConnContext:       withConn,
		ReadHeaderTimeout: c.HeaderTimeout,
		IdleTimeout:       c.IdleTimeout,
		ErrorLog:          log.New(&errorLog{logger: c.Logger, handshakeFailed: c.HandshakeFailed}, "", 0),
	}
	return s
}

// Serve accepts connections until Shutdown or Close is called, and then returns
// http.ErrServerClosed.
func (s *Server) Serve() error {
	if s.tls {
		return s.http.ServeTLS(s.listener, "", "")
	}
	return s.http.Serve(s.listener)
}

// Shutdown stops accepting, and waits for open requests; see http.Server.
func (s *Server) Shutdown(ctx context.Context) error { return s.http.Shutdown(ctx) }

// Close closes the listener and all connections.
func (s *Server) Close() error { return s.http.Close() }

// Held returns the number of bytes that these connections have sent, but for those of answered
// requests.
func (s *Server) Held() int64 { return s.limiter.Held() }

// Strangers returns the number of connections that have not authenticated.
func (s *Server) Strangers() int { return s.limiter.Count() }

type connKey struct{}

// withConn puts the connection into the context of its requests.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	if c, ok := conn.(*connlimit.Conn); ok {
		return context.WithValue(ctx, connKey{}, c)
	}
	return ctx
}

type strangerKey struct{}

// stranger is a request on a connection that was not authenticated when the request began. Its
// answer has a deadline.
type stranger struct {
	conn *connlimit.Conn

	mu      sync.Mutex
	control *http.ResponseController // nil: the handler has returned
}

// Authenticate marks the client of a request as known. It does nothing for requests of another
// server. It may be called more than once. Each request has its own deadline, also after another
// request of the connection was authenticated.
func Authenticate(request context.Context) {
	s, ok := request.Value(strangerKey{}).(*stranger)
	if !ok {
		return
	}
	s.conn.Authenticate()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.control != nil {
		_ = s.control.SetWriteDeadline(time.Time{}) // a closed connection shows in the next write
	}
}

// Estrange ends the trust in the client of a request, although an earlier request of the connection
// was authenticated. The connection counts as a stranger's again.
func Estrange(request context.Context) {
	if conn, ok := request.Value(connKey{}).(*connlimit.Conn); ok {
		conn.Estrange()
	}
}

func (s *stranger) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.control = nil
}

// limited gives requests their deadlines.
func limited(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, ok := r.Context().Value(connKey{}).(*connlimit.Conn)
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		control := http.NewResponseController(w)
		conn.Consumed() // the header
		defer conn.Consumed()
		if !conn.Authenticated() {
			_ = control.SetWriteDeadline(time.Now().Add(strangerAnswer))
			s := &stranger{conn: conn, control: control}
			defer s.end()
			r = r.WithContext(context.WithValue(r.Context(), strangerKey{}, s))
		}
		if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		body := &paced{ReadCloser: r.Body, control: control, grace: func() time.Duration { return graceOf(conn) },
			http2: r.ProtoMajor > 1}
		body.begin()
		defer body.end()
		withBody := new(http.Request)
		*withBody = *r
		withBody.Body = body
		if r.Method == http.MethodGet || r.Method == http.MethodHead {
			var err error
			if withBody.Body, err = body.early(); err != nil {
				status := http.StatusBadRequest
				if errors.Is(err, ErrSlowBody) {
					status = http.StatusRequestTimeout
				}
				http.Error(w, err.Error(), status)
				return
			}
		}
		next.ServeHTTP(w, withBody)
	})
}

// errorLog receives net/http's messages about connections and handlers.
type errorLog struct {
	logger          *slog.Logger
	handshakeFailed func()
	causes          loglimit.Causes
}

// Write implements io.Writer. net/http calls it with one message at a time.
func (e *errorLog) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.HasPrefix(text, "http: TLS handshake error") {
		if e.handshakeFailed != nil {
			e.handshakeFailed()
		}
		logline.Log(e.logger, slog.LevelDebug, text)
		return len(line), nil
	}
	cause := loglimit.Cause(strings.TrimPrefix(strings.TrimPrefix(text, "http2: "), "http: "))
	if omitted, ok := e.causes.Take(cause, time.Now()); ok {
		args := []any{}
		if omitted > 0 {
			args = append(args, "othersNotLogged", omitted)
		}
		logline.Log(e.logger, slog.LevelWarn, text, args...)
	}
	return len(line), nil
}
