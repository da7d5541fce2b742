package node

import (
	"log/slog"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
)

// apiNames are all names by which clients call the API server.
func apiNames(o *Options, s Settings) []string {
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + s.Domain,
		"localhost", o.Name, "127.0.0.1", s.apiAddr().String()}
	for _, addr := range o.addresses.All() {
		names = append(names, addr.String())
	}
	return names
}

// certificates are what a server's certificates are made of.
func (o *Options) certificates(s Settings, r *enroll.Record, logger *slog.Logger) credentials.ServerConfig {
	return credentials.ServerConfig{Name: o.Name, Address: o.addr(), APIPort: o.APIPort, DataDir: o.DataDir, Names: apiNames(o, s), ProxyName: apiserver.ProxyClientName,
		Lifetime: o.CertificateLifetime, Record: r, Logger: logger}
}

// certificatesAPI shows the certificates of the cluster.
func (s *server) certificatesAPI() *adminapi.Certificates {
	return &adminapi.Certificates{
		Self: s.options.Name, Own: s.ids.Certificates, Renew: s.ids.Renew, Exchange: s.exchange,
		Servers: func() (names []string) {
			for _, m := range s.store.Members() {
				names = append(names, m.Name)
			}
			return names
		},
		IsServer: s.isServer, Call: s.callServer, Pool: s.pool, Trust: s.ids.Trust, CAFile: credentials.CAFile(s.options.DataDir),
		Lifetime: s.options.CertificateLifetime, Logger: s.logger,
	}
}
