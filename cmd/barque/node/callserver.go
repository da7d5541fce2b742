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
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/barque/barque/membership/join"
)

// callTimeout bounds a call to another server's API on behalf of a client.
const callTimeout = 5 * time.Second

// errOutcomeUnknown is returned for a call whose answer did not come, or says so itself: what it
// asked for may have been done.
var errOutcomeUnknown = errors.New("whether that was done is not known")

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
	return callJSON(ctx, &http.Client{Transport: transport}, method, name, "https://"+at.String()+path, out)
}

// callJSON calls the server of that name. The error is errOutcomeUnknown when the request reached
// it, as far as can be told, and its answer is lost, unless it was a GET, which changes nothing.
func callJSON(ctx context.Context, client *http.Client, method, name, url string, out any) error {
	var connected atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	switch {
	case err != nil && connected.Load():
		return fmt.Errorf("ask server %s: %w", name, lost(method, err))
	case err != nil:
		return fmt.Errorf("ask server %s: %w", name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	switch {
	case err != nil:
		return fmt.Errorf("answer of server %s: %w", name, lost(method, err))
	case response.StatusCode == http.StatusGatewayTimeout:
		return fmt.Errorf("server %s answers %s: %w", name, response.Status, lost(method, errors.New(strings.TrimSpace(string(body)))))
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("server %s answers %s: %s", name, response.Status, strings.TrimSpace(string(body)))
	}
	if err := json.Unmarshal(body, out); err != nil {
		return fmt.Errorf("answer of server %s: %w", name, lost(method, err))
	}
	return nil
}

// lost adds to why an answer is lost that what was asked for may have been done, unless it was only
// to tell something.
func lost(method string, err error) error {
	if method == http.MethodGet {
		return err
	}
	return fmt.Errorf("%w: %w", errOutcomeUnknown, err)
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
