package balancer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/barque/barque/membership/join"
)

// Forward listens on an address and forwards its connections to the servers until the context ends.
// cas are the CAs of the servers' certificates, in PEM.
func Forward(ctx context.Context, address string, servers []netip.AddrPort, cas []byte, logger *slog.Logger) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cas) {
		return errors.New("the kubeconfig has no CA certificate")
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	b := New(Config{
		Listener: listener,
		Servers:  func() []netip.AddrPort { return servers },
		Probe:    ReadyProbe(&tls.Config{RootCAs: roots, VerifyConnection: join.IsServer}),
		Logger:   logger,
	})
	return b.Run(ctx)
}
