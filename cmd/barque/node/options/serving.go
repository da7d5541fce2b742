package options

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/tlsoptions"
)

// ServingOptions are how a node serves its ports. The zero value has the defaults.
type ServingOptions struct {
	TLS         tlsoptions.Options  // of the API and of the node's own server
	Connections *connlimit.Flags    // of clients without credentials, at each port
	API         *secureport.Options // on a server
}

// AddFlags adds the flags of any node.
func (s *ServingOptions) AddFlags(f *pflag.FlagSet) {
	s.TLS.AddFlags(f)
	s.Connections = new(connlimit.NewFlags())
	s.Connections.AddFlags(f)
}

// AddServerFlags adds those of a server.
func (s *ServingOptions) AddServerFlags(f *pflag.FlagSet) {
	s.API = secureport.NewOptions()
	s.API.AddFlags(f)
}

// check returns what is wrong with the options.
func (s *ServingOptions) check() error {
	errs := []error{s.TLS.Check()}
	if s.Connections != nil {
		_, err := s.Connections.Limits()
		errs = append(errs, err)
	}
	if s.API != nil {
		errs = append(errs, s.API.Check())
	}
	return errors.Join(errs...)
}

// Limits are those of a port, after check.
func (s *ServingOptions) Limits() connlimit.Limits {
	if s.Connections == nil {
		return connlimit.Limits{}
	}
	limits, err := s.Connections.Limits()
	if err != nil {
		return connlimit.Limits{}
	}
	return limits
}

// addresses are those of the API that no machine has, as the flags give them.
func (s *ServingOptions) addresses() []string {
	if s.API == nil {
		return nil
	}
	return s.API.Addresses
}

// sans are further names and addresses in the certificate of the API.
func (s *ServingOptions) sans() []string {
	if s.API == nil {
		return nil
	}
	return append(slices.Clone(s.API.SANs), s.API.Addresses...)
}

// SANOf returns the entry of --tls-san that makes the API's certificate good for a name or an
// address. As in certificates (RFC 6125), a wildcard stands for one label.
func (s *ServingOptions) SANOf(name string) (san string, ok bool) {
	addr, _ := netip.ParseAddr(name)
	_, parent, _ := strings.Cut(name, ".")
	for _, san := range s.sans() {
		above, wildcard := strings.CutPrefix(san, "*.")
		is, err := netip.ParseAddr(san)
		if err == nil && is.Unmap() == addr.Unmap() || strings.EqualFold(san, name) ||
			wildcard && strings.EqualFold(above, parent) {
			return san, true
		}
	}
	return "", false
}

// ShutdownDelay is how long a server that stops goes on to serve.
func (s *ServingOptions) ShutdownDelay() time.Duration {
	if s.API == nil {
		return 0
	}
	return s.API.ShutdownDelay
}

// KubeletTLS are the options of the node's own server: the flags, or the kubelet's files where no
// flag is given.
func (o *Options) KubeletTLS() tlsoptions.Options {
	t := o.Serving.TLS
	if set := o.Kubelet; set != nil {
		if t.MinVersion == "" {
			t.MinVersion = set.TLSMinVersion
		}
		if len(t.CipherSuites) == 0 {
			t.CipherSuites = set.TLSCipherSuites
		}
	}
	return t
}
