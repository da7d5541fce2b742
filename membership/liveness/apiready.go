package liveness

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// Readiness asks API servers whether they are ready, as load balancers do, for the endpoints of the
// kubernetes Service.
type Readiness struct {
	client *http.Client
	silent func(netip.Addr) bool
}

// NewReadiness keeps one connection to each server. Which CAs are believed is looked up at each new
// connection. A node that is no server is not ready, whatever it answers. silent reports whether
// the store misses the answers of the server at an address.
func NewReadiness(silent func(netip.Addr) bool, trust *pki.Trust) *Readiness {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialer := &tls.Dialer{
			Config: &tls.Config{RootCAs: trust.Pool(), MinVersion: tls.VersionTLS12,
				VerifyConnection: join.IsServerOf(trust)}}
		return dialer.DialContext(ctx, network, addr)
	}
	return &Readiness{silent: silent,
		client: &http.Client{
			Transport: &http.Transport{DialTLSContext: dial, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}}
}

// Ready returns why a server is not ready; nil when it is.
func (r *Readiness) Ready(ctx context.Context, server netip.AddrPort) error {
	err := r.ask(ctx, server)
	if err != nil && r.silent(server.Addr()) {
		// The store misses it as well, over another path: so it is more than one lost packet.
		return fmt.Errorf("it does not answer the store either: %v", err)
	}
	return err
}

// answerLimit exceeds any answer about a server's readiness.
const answerLimit = 64 << 10

func (r *Readiness) ask(ctx context.Context, server netip.AddrPort) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.String()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	// A connection is only reused after its answer was read to the end. Otherwise the next request
	// costs a handshake.
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, answerLimit))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", server, response.Status)
	}
	return nil
}
