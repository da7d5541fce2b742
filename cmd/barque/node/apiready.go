package node

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// readiness asks API servers whether they are ready, as load balancers do, for the endpoints of the
// kubernetes Service.
type readiness struct {
	client *http.Client
	store  interface {
		Silent() ([]raftstore.SilentMember, <-chan struct{})
		Members() []raftstore.Member
	}
}

// newReadiness keeps one connection to each server. Which CAs are believed is looked up at each new
// connection.
func newReadiness(store *raftstore.Server, trust *pki.Trust) *readiness {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		dialer := &tls.Dialer{Config: &tls.Config{RootCAs: trust.Pool(), MinVersion: tls.VersionTLS12}}
		return dialer.DialContext(ctx, network, addr)
	}
	return &readiness{store: store, client: &http.Client{Transport: &http.Transport{DialTLSContext: dial, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute}}}
}

// ready implements what apiendpoints.Config asks for.
func (r *readiness) ready(ctx context.Context, server netip.AddrPort) error {
	err := r.ask(ctx, server)
	if err != nil && r.silent(server.Addr()) {
		// The store misses it, too, by another way: then it is not a matter of one lost packet.
		return fmt.Errorf("it does not answer the store either: %v", err)
	}
	return err
}

// answerLimit is more than a server says of its readiness.
const answerLimit = 64 << 10

func (r *readiness) ask(ctx context.Context, server netip.AddrPort) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.String()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	// Only a connection whose answer was read to its end is used again. The next question would
	// cost a handshake.
	_, err = io.Copy(io.Discard, io.LimitReader(response.Body, answerLimit))
	if err = errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s says %s", server, response.Status)
	}
	return nil
}

// silent tells whether the member of the store at this address misses its heartbeats, as its leader
// knows.
func (r *readiness) silent(addr netip.Addr) bool {
	silent, _ := r.store.Silent()
	if len(silent) == 0 {
		return false
	}
	members := r.store.Members()
	return slices.ContainsFunc(silent, func(s raftstore.SilentMember) bool {
		return slices.ContainsFunc(members, func(m raftstore.Member) bool {
			at, err := netip.ParseAddrPort(m.Address)
			return err == nil && m.Name == s.Name && at.Addr() == addr
		})
	})
}
