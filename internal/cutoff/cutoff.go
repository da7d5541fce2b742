// Package cutoff ends requests whose credential is revoked while they are answered. A watch is
// authenticated once, at its beginning, and may last for an hour; a command in a pod has no end.
//
// A credential that ends by its time ends no request, as in Kubernetes: a program that renews its
// token each hour may run one command for longer.
package cutoff

import (
	"bufio"
	"cmp"
	"context"
	"crypto/x509"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/internal/clientcert"
)

// Requests are those that are answered for long.
type Requests struct {
	proof   Proof
	revoked func(leaf *x509.Certificate) error
	believe func(leaf *x509.Certificate) (x509.VerifyOptions, bool)
	ended   func(ctx context.Context, token string) error
	lasting func(*http.Request) bool

	mu   sync.Mutex
	next uint64
	open map[uint64]lasting
}

// lasting is one of them. It has certificates, or a token.
type lasting struct {
	sent  []*x509.Certificate // by the client, its own first
	token string
	end   context.CancelCauseFunc
}

// New returns no requests yet. They are those whose user the proof has proven. revoked returns the
// reason why a certificate counts no more, or nil; believe returns the CAs that are believed for a
// certificate; long reports whether a request may be answered for long. A nil revoked revokes none.
func New(
	proof Proof, revoked func(leaf *x509.Certificate) error,
	believe func(leaf *x509.Certificate) (x509.VerifyOptions, bool), long func(*http.Request) bool,
) *Requests {
	if revoked == nil {
		revoked = func(*x509.Certificate) error { return nil }
	}
	return &Requests{proof: proof, revoked: revoked, believe: believe, lasting: long, open: map[uint64]lasting{}}
}

// OfTokens returns no requests yet. They are those whose user a bearer token has proven. ended
// returns the reason why a token that was good counts no more, or nil; also if it cannot tell. long
// is as for New.
func OfTokens(ended func(ctx context.Context, token string) error, long func(*http.Request) bool) *Requests {
	return &Requests{proof: byToken, ended: ended, lasting: long, open: map[uint64]lasting{}}
}

// Handler wraps the handler of authenticated requests, which have come through WithProof.
func (q *Requests) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l, mine := q.of(r)
		if !mine {
			next.ServeHTTP(w, r)
			return
		}
		ctx, end := context.WithCancelCause(r.Context())
		defer end(nil)
		l.end = end
		defer q.leave(q.enter(l))
		if q.proof != byToken { // tokens are looked at again and again
			q.judge(l) // what has changed since it was authenticated, and before it has entered
		}
		// Other answers keep their writer, of which handlers demand more than an upgrade needs.
		if r.ProtoMajor == 1 &&
			strings.Contains(strings.ToLower(strings.Join(r.Header.Values("Connection"), ",")), "upgrade") {
			upgraded := &upgradable{ResponseWriter: w, ctx: ctx}
			defer upgraded.release()
			w = upgraded
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// of returns the credential of a request, and whether the request is one of these.
func (q *Requests) of(r *http.Request) (lasting, bool) {
	is := proofOf(r.Context())
	if is == nil || is.by != q.proof || !q.lasting(r) {
		return lasting{}, false
	}
	if q.proof == byToken {
		return lasting{token: is.token}, true
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return lasting{}, false
	}
	return lasting{sent: r.TLS.PeerCertificates}, true
}

// upgradable closes the connection of an upgraded request, such as a command in a pod, when its
// context ends: nothing else looks at that then.
type upgradable struct {
	http.ResponseWriter
	ctx context.Context

	mu   sync.Mutex
	stop func() bool
}

// Hijack implements http.Hijacker.
func (u *upgradable) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(u.ResponseWriter).Hijack()
	if err == nil {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.stop = context.AfterFunc(u.ctx, func() { _ = conn.Close() }) // its user reads the end
	}
	return conn, buffered, err
}

// Flush implements http.Flusher.
func (u *upgradable) Flush() { _ = http.NewResponseController(u.ResponseWriter).Flush() }

// CloseNotify is demanded by the API machinery of a writer that is upgraded, as for a watch over
// WebSocket.
func (u *upgradable) CloseNotify() <-chan bool {
	if is, ok := u.ResponseWriter.(interface{ CloseNotify() <-chan bool }); ok {
		return is.CloseNotify()
	}
	return make(chan bool)
}

// Unwrap is for http.ResponseController.
func (u *upgradable) Unwrap() http.ResponseWriter { return u.ResponseWriter }

// release lets the connection be when the request has been answered.
func (u *upgradable) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stop != nil {
		u.stop()
	}
}

func (q *Requests) enter(l lasting) uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.next++
	q.open[q.next] = l
	return q.next
}

func (q *Requests) leave(number uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.open, number)
}

// Run ends the requests of revoked certificates, until ctx ends. Each of changed returns a channel
// that is closed when more may be revoked.
func (q *Requests) Run(ctx context.Context, changed ...func() <-chan struct{}) {
	var following sync.WaitGroup
	for _, c := range changed {
		following.Go(func() { q.follow(ctx, c) })
	}
	following.Wait()
}

func (q *Requests) follow(ctx context.Context, changed func() <-chan struct{}) {
	for {
		next := changed()
		q.look()
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

func (q *Requests) all() []lasting {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.open))
}

// look judges a copy: a look takes its time, and a request that begins meanwhile judges itself.
func (q *Requests) look() {
	for _, l := range q.all() {
		q.judge(l)
	}
}

func (q *Requests) judge(l lasting) {
	if why := cmp.Or(q.revoked(l.sent[0]), q.verify(l)); why != nil {
		l.end(why)
	}
}

// verify returns an error unless a CA that is believed has signed the certificate. A request goes
// on when its certificate ends by time.
func (q *Requests) verify(l lasting) error {
	options, ok := q.believe(l.sent[0])
	if !ok {
		return nil
	}
	// The beginning of the certificate may be before that of its CA.
	options.CurrentTime = time.Now()
	switch leaf, now := l.sent[0], options.CurrentTime; {
	case now.Before(leaf.NotBefore):
		options.CurrentTime = leaf.NotBefore
	case now.After(leaf.NotAfter):
		options.CurrentTime = leaf.NotAfter
	}
	_, err := clientcert.Verify(l.sent, options)
	return err
}
