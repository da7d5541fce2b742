package options

import (
	"log/slog"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
)

// Public returns the options without their secrets.
func (o Options) Public() Options {
	if o.Token != "" {
		o.Token = "[REDACTED]"
	}
	o.Logs = nil
	return o
}

// APINames are all names by which clients call the API server.
func APINames(o *Options, s Settings) []string {
	names := []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
		"kubernetes.default.svc." + s.Domain,
		"localhost", o.Name, "127.0.0.1", s.APIAddr().String()}
	for _, addr := range o.Addresses.All() {
		names = append(names, addr.String())
	}
	return append(names, o.Serving.sans()...)
}

// Certificates returns the configuration of a server's certificates.
func (o *Options) Certificates(
	s Settings, r *enroll.Record, revision func() uint64, logger *slog.Logger,
) credentials.ServerConfig {
	return credentials.ServerConfig{Name: o.Name, Address: o.Addr(), APIPort: o.APIPort, APIAddress: o.APIAddress(),
		DataDir: o.DataDir, Names: APINames(o, s), ProxyName: apiserver.ProxyClientName,
		Lifetime: o.CertificateLifetime, Revision: revision, Record: r, Logger: logger}
}

// ownCertificates describes this server's certificates in a new cluster.
func (o *Options) ownCertificates() []pki.Request {
	c := o.Certificates(o.Settings, nil, nil, nil)
	return c.Requests()
}
