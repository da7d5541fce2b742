// Package tlsoptions has the options of servers of TLS: the minimum version and the cipher suites,
// named as in Kubernetes.
package tlsoptions

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/component-base/cli/flag"
)

// Options as flags give them. The zero value has the defaults.
type Options struct {
	// MinVersion is VersionTLS12 or VersionTLS13; "" means VersionTLS12.
	MinVersion string
	// CipherSuites of TLS 1.2; nil means those of Default. TLS 1.3 has its own, which are all good.
	CipherSuites []string
}

// AddFlags adds --tls-min-version and --tls-cipher-suites.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.StringVar(&o.MinVersion, "tls-min-version", o.MinVersion,
		"minimum version of TLS at the API and at the node's own server: VersionTLS12 or VersionTLS13 (default VersionTLS12)")
	f.StringSliceVar(&o.CipherSuites, "tls-cipher-suites", o.CipherSuites,
		"cipher suites for TLS 1.2 there; TLS 1.3 has its own, which cannot be chosen (default: those with forward secrecy and AEAD: "+strings.Join(Default(), ", ")+")")
}

// Default returns the suites of TLS 1.2 that are on by default: forward secrecy, and no CBC.
func Default() []string {
	var names []string
	for _, s := range tls.CipherSuites() {
		if slices.Contains(s.SupportedVersions, tls.VersionTLS12) && modern(s.Name) {
			names = append(names, s.Name)
		}
	}
	return names
}

func modern(name string) bool {
	return strings.Contains(name, "_ECDHE_") &&
		(strings.Contains(name, "_GCM_") || strings.Contains(name, "_CHACHA20_"))
}

// needed are the suites of which HTTP/2 demands one (RFC 9113, section 9.2.2).
var needed = []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}

// Check returns an error about invalid options.
func (o Options) Check() error {
	version, err := o.version()
	if err != nil {
		return err
	}
	suites, err := o.suites()
	if err != nil {
		return err
	}
	if version >= tls.VersionTLS13 {
		return nil
	}
	for _, name := range needed {
		if id, err := flag.TLSCipherSuites([]string{name}); err == nil && slices.Contains(suites, id[0]) {
			return nil
		}
	}
	return fmt.Errorf(
		"--tls-cipher-suites: HTTP/2 over TLS 1.2 demands %s; add one, or give --tls-min-version VersionTLS13",
		strings.Join(needed, " or "))
}

func (o Options) version() (uint16, error) {
	switch o.MinVersion {
	case "", "VersionTLS12":
		return tls.VersionTLS12, nil
	case "VersionTLS13":
		return tls.VersionTLS13, nil
	}
	return 0, fmt.Errorf("--tls-min-version %q: want VersionTLS12 or VersionTLS13", o.MinVersion)
}

func (o Options) suites() ([]uint16, error) {
	names := o.CipherSuites
	if len(names) == 0 {
		names = Default()
	}
	suites, err := flag.TLSCipherSuites(names)
	if err != nil {
		return nil,
			fmt.Errorf("--tls-cipher-suites: %w; the suites are %s", err,
				strings.Join(flag.TLSCipherPossibleValues(), ", "))
	}
	return suites, nil
}

// Insecure returns those of the suites that have known weaknesses.
func (o Options) Insecure() (names []string) {
	for _, name := range o.CipherSuites {
		if slices.Contains(flag.InsecureTLSCipherNames(), name) {
			names = append(names, name)
		}
	}
	return names
}

// Apply sets the options, which Check has found good, in a configuration.
func (o Options) Apply(c *tls.Config) {
	if version, err := o.version(); err == nil {
		c.MinVersion = max(c.MinVersion, version)
	}
	if suites, err := o.suites(); err == nil {
		c.CipherSuites = suites
	}
}
