package proxy

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/model"
)

// A handshake asks for a client's certificate as the routes of the server name want it. Each route
// checks it again, by the CAs of that moment: a connection may come to routes of other listeners,
// and be older than the CAs.

// errNoClientCA ends handshakes that no client can complete.
var errNoClientCA = errors.New("no CA for the certificates of clients is known")

// asking is a configuration of TLS for clients of a server name; nil is the same one.
func (o *port) asking(config *tls.Config, name string) (*tls.Config, error) {
	clients := o.clients(name)
	if clients == nil {
		return nil, nil
	}
	authorities := o.proxy.authorities(clients.Authorities)
	if len(authorities) == 0 && (clients.Required() || len(clients.Authorities) > 0) {
		return nil, errNoClientCA
	}
	asks := config.Clone()
	asks.GetConfigForClient = nil
	asks.ClientAuth = tls.RequestClientCert
	if len(authorities) > 0 {
		asks.ClientCAs = certs.Pool(authorities) // the client sees their names, and chooses a certificate
	}
	if clients.Required() {
		asks.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return asks, nil
}

// clients returns the requirements for clients of a server name: those of its routes, or of the
// listener where there are none.
func (o *port) clients(name string) *model.Clients {
	if of, ok := o.table.view.Load().clientsOf(name); ok {
		return of
	}
	if l := o.find(model.HTTPS, name); l != nil {
		return l.Clients
	}
	return nil
}

// authorities returns the CAs of ConfigMaps, without those that cannot be used.
func (p *Proxy) authorities(names []types.NamespacedName) (all []*certs.Authority) {
	for _, name := range names {
		if a := p.config.Authority(name); a != nil {
			all = append(all, a)
		}
	}
	return all
}

// vouched is the last answer to the question whether some CAs vouch for the client of a connection.
type vouched struct {
	mu sync.Mutex
	by []*certs.Authority // nil before the first question
	ok bool
}

type vouchedKey struct{}

func withVouched(ctx context.Context) context.Context {
	return context.WithValue(ctx, vouchedKey{}, &vouched{})
}

// admits reports whether the client of a request meets the requirements of a route.
func (p *Proxy) admits(r *http.Request, clients *model.Clients) bool {
	if !clients.Required() {
		return true
	}
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	by := p.authorities(clients.Authorities)
	if len(by) == 0 {
		return false
	}
	last, known := r.Context().Value(vouchedKey{}).(*vouched)
	if !known {
		return certs.Vouch(r.TLS.PeerCertificates, by)
	}
	last.mu.Lock()
	defer last.mu.Unlock()
	if !slices.Equal(last.by, by) {
		last.by, last.ok = by, certs.Vouch(r.TLS.PeerCertificates, by)
	}
	return last.ok
}

// Fields by which a backend learns the certificate of a client: RFC 9440.
const (
	clientCert      = "Client-Cert"
	clientCertChain = "Client-Cert-Chain"
)

// nameClient puts the certificate of the client into the request to a backend, if its route has
// asked for one. The field of a client itself counts only if it is a trusted hop.
func (x *exchange) nameClient(out *http.Request, trusted bool) {
	if !trusted {
		out.Header.Del(clientCert)
		out.Header.Del(clientCertChain)
	}
	if x.entry == nil || x.entry.clients == nil || x.in.TLS == nil || len(x.in.TLS.PeerCertificates) == 0 {
		return
	}
	out.Header.Del(clientCertChain)
	out.Header.Set(clientCert, ":"+base64.StdEncoding.EncodeToString(x.in.TLS.PeerCertificates[0].Raw)+":")
}
