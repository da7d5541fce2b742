package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/liveness"
)

func (s *server) relay() *adminapi.Relay {
	return adminapi.NewRelay(s.options.Name, s.allServers, s.callTLS())
}

// allServers are those that gossip shows, and those that were known before.
func (s *server) allServers() []join.Server {
	all := liveness.KnownServers(s.pool)
	for _, k := range s.record.Servers() {
		if !slices.ContainsFunc(all, func(a join.Server) bool { return a.Name == k.Name }) {
			all = append(all, k)
		}
	}
	slices.SortFunc(all, func(a, b join.Server) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// callTimeout bounds a call to another server's API on behalf of a client.
const callTimeout = 5 * time.Second

// callServer calls the API of another server, which answers with JSON. That one is known by its
// certificate, and knows this one by the API servers' own, of system:masters.
func (s *server) callServer(ctx context.Context, method, name, path string, out any) error {
	m, err := s.memberOf(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.callTLS()}
	return adminapi.CallJSON(ctx, &http.Client{Transport: transport}, method, name, "https://"+at.String()+path, out)
}

// callTLS is how this server calls the API of others.
func (s *server) callTLS() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, // VerifyConnection does, against the CAs of the moment
		GetClientCertificate: s.ids.KubeletClient.GetClientCertificate,
		VerifyConnection: func(state tls.ConnectionState) error {
			certs := state.PeerCertificates
			if err := s.ids.Trust.Verify(certs[0], certs[1:], x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
				return err
			}
			if !slices.Contains(certs[0].Subject.Organization, join.ServersOrganization) {
				return errors.New("it is not a server's")
			}
			return nil
		},
	}
}
