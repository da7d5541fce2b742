package tlsoptions

import (
	"crypto/tls"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestOptions: an error names the invalid flag and a remedy; valid options take effect.
func TestOptions(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		bad  string // part of the error
		min  uint16
		many int // suites
	}{
		"defaults": {nil, "", tls.VersionTLS12, 6},
		"TLS 1.3":  {[]string{"--tls-min-version=VersionTLS13"}, "", tls.VersionTLS13, 6},
		"two suites": {
			[]string{
				"--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"},
			"", tls.VersionTLS12, 2},
		"TLS 1.1":        {[]string{"--tls-min-version=VersionTLS11"}, "want VersionTLS12 or VersionTLS13", 0, 0},
		"unknown suite":  {[]string{"--tls-cipher-suites=TLS_FAST"}, "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", 0, 0},
		"not for HTTP/2": {[]string{"--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"}, "HTTP/2", 0, 0},
		"only for TLS1.3": {
			[]string{"--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384", "--tls-min-version=VersionTLS13"},
			"", tls.VersionTLS13, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var o Options
			f := pflag.NewFlagSet("", pflag.ContinueOnError)
			o.AddFlags(f)
			if err := f.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			err := o.Check()
			if c.bad != "" {
				if err == nil || !strings.Contains(err.Error(), c.bad) || !strings.Contains(err.Error(), "--tls-") {
					t.Errorf("%v, want an error about %s", err, c.bad)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got tls.Config
			o.Apply(&got)
			if got.MinVersion != c.min || len(got.CipherSuites) != c.many {
				t.Errorf("version %x, suites %x", got.MinVersion, got.CipherSuites)
			}
		})
	}
	for _, name := range Default() {
		if strings.Contains(name, "CBC") || strings.HasPrefix(name, "TLS_RSA_") {
			t.Errorf("%s is on by default", name)
		}
	}
	insecure := Options{
		CipherSuites: []string{"TLS_RSA_WITH_AES_128_CBC_SHA", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"}}.Insecure()
	if !slices.Equal(insecure, []string{"TLS_RSA_WITH_AES_128_CBC_SHA"}) {
		t.Errorf("insecure are %v", insecure)
	}
}
