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
	"time"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/membership/join"
)

// settled is the age at which a server has closed a stranger's connection.
const settled = 2 * time.Minute

// Forward listens on an address and forwards its connections to the servers until the context ends.
// cas are the CAs of the servers' certificates, in PEM. limits bound the young connections: a
// server closes those of strangers, so the old ones are of clients.
func Forward(
	ctx context.Context, address string, servers []netip.AddrPort, cas []byte, limits connlimit.Limits,
	logger *slog.Logger,
) error {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(cas) {
		return errors.New("the kubeconfig has no CA certificate")
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w; choose another address with --listen", err)
	}
	b := New(Config{
		Listener: bounded(listener, limits, logger),
		Servers:  func() []netip.AddrPort { return servers },
		Probe:    ReadyProbe(&tls.Config{RootCAs: roots, VerifyConnection: join.IsServer}),
		Logger:   logger,
	})
	return b.Run(ctx)
}

// bounded bounds the young connections of a listener.
func bounded(listener net.Listener, limits connlimit.Limits, logger *slog.Logger) net.Listener {
	limits.Settled = settled
	return connlimit.New(limits, logger).Listen(listener)
}
