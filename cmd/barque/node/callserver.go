package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/membership/join"
)

// callTimeout bounds a call to another server's API on behalf of a client.
const callTimeout = 5 * time.Second

// callServer calls the API of another server, which answers with JSON. That one is known by its certificate, and knows
// this one by the API servers' own, of system:masters.
func (s *server) callServer(ctx context.Context, method, name, path string, out any) error {
	m, err := s.memberOf(name)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	at := netip.AddrPortFrom(m.Addr.Addr(), m.Facts.APIPort)
	request, err := http.NewRequestWithContext(ctx, method, "https://"+at.String()+path, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: s.callTLS()}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("ask server %s: %w", name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	if err != nil {
		return fmt.Errorf("answer of server %s: %w", name, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("server %s answers %s: %s", name, response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("answer of server %s: %w", name, err)
	}
	return nil
}

// callTLS is how this server calls the API of others.
func (s *server) callTLS() *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, // VerifyConnection does, against the CAs of the moment
		GetClientCertificate: s.ids.kubeletClient.GetClientCertificate,
		VerifyConnection: func(state tls.ConnectionState) error {
			certs := state.PeerCertificates
			if err := s.ids.trust.Verify(certs[0], certs[1:], x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
				return err
			}
			if !slices.Contains(certs[0].Subject.Organization, join.ServersOrganization) {
				return errors.New("it is not a server's")
			}
			return nil
		},
	}
}
