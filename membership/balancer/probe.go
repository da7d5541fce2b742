package balancer

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
)

// ReadyProbe asks a server's /readyz over TLS. Any answer but 200 is ErrNotReady. It keeps one connection per server, so that a
// probe costs one exchange.
func ReadyProbe(config *tls.Config) func(context.Context, netip.AddrPort) error {
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true}}
	return func(ctx context.Context, server netip.AddrPort) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+server.String()+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			// The connection may hang with its peer: the next probe must not wait on it.
			client.CloseIdleConnections()
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("%s says %s: %w", server, response.Status, ErrNotReady)
		}
		return nil
	}
}
