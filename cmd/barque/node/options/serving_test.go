package options

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/barque/barque/apiserver/secureport"

	kubeletconfig "github.com/barque/barque/kubelet/config"
)

// TestServingFlags: each wrong value is refused with its flag. Right ones hold, also in the names
// of the API's certificate.
func TestServingFlags(t *testing.T) {
	for _, c := range []struct{ args, bad string }{
		{"", ""},
		{"--tls-san=api.example.org,192.0.2.7,2001:db8::7,*.example.org", ""},
		{"--tls-san=https://api", `--tls-san "https://api"`},
		{"--tls-san=0.0.0.0", "--tls-san 0.0.0.0"},
		{"--tls-min-version=1.2", "--tls-min-version"},
		{"--tls-cipher-suites=RC4", "--tls-cipher-suites"},
		{"--max-unauthenticated-connections=0", "--max-unauthenticated-connections 0"},
		{"--request-timeout=0", "--request-timeout 0s"},
		{"--min-request-timeout=-1", "--min-request-timeout -1"},
		{"--goaway-chance=0.5", "--goaway-chance 0.5"},
		{"--goaway-chance=NaN", "--goaway-chance NaN"},
		{"--http2-max-streams-per-connection=0", "--http2-max-streams-per-connection 0"},
		{"--shutdown-delay-duration=1h", "--shutdown-delay-duration 1h"},
		{"--profiling=false --anonymous-auth=false --goaway-chance=0.001 --shutdown-delay-duration=20s", ""},
	} {
		var s ServingOptions
		set := pflag.NewFlagSet("", pflag.ContinueOnError)
		s.AddFlags(set)
		s.AddServerFlags(set)
		if err := set.Parse(strings.Fields(c.args)); err != nil {
			t.Fatal(err)
		}
		err := s.check()
		if c.bad == "" && err != nil || c.bad != "" && (err == nil || !strings.Contains(err.Error(), c.bad)) {
			t.Errorf("%s: %v, want %q", c.args, err, c.bad)
		}
	}
	o := &Options{Name: "s1", Serving: ServingOptions{API: &secureport.Options{SANs: []string{"api.example.org"}}}}
	if names := APINames(o, DefaultSettings()); !slices.Contains(names, "api.example.org") {
		t.Errorf("the names of the API are %v", names)
	}
	if d := (&ServingOptions{}).ShutdownDelay(); d != 0 {
		t.Errorf("a delay of %s", d)
	}
	s := ServingOptions{}
	s.AddServerFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	s.API.ShutdownDelay = time.Second
	if d := s.ShutdownDelay(); d != time.Second {
		t.Errorf("a delay of %s", d)
	}
}

// TestKubeletTLS: a flag wins over the kubelet's file.
func TestKubeletTLS(t *testing.T) {
	o := &Options{Kubelet: kubeletconfig.Default()}
	o.Kubelet.TLSMinVersion = "VersionTLS13"
	if got := o.KubeletTLS().MinVersion; got != "VersionTLS13" {
		t.Errorf("of the file: %q", got)
	}
	o.Serving.TLS.MinVersion = "VersionTLS12"
	if got := o.KubeletTLS().MinVersion; got != "VersionTLS12" {
		t.Errorf("of the flag: %q", got)
	}
}
