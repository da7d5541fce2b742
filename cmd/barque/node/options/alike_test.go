package options

import (
	"slices"
	"testing"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/secureport"
)

// TestAlikeFlags: the status compares the flags that must be the same on all servers.
func TestAlikeFlags(t *testing.T) {
	for level, want := range map[string][]configfile.State{
		"": nil, "privileged": nil, "baseline": {{Flag: "--pod-security-default", Hash: "baseline"}},
		"restricted": {{Flag: "--pod-security-default", Hash: "restricted"}},
	} {
		o := &Options{}
		o.Admission.PodSecurity = level
		if got := o.Alike(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", level, got, want)
		}
	}
	o := &Options{}
	o.Admission.Enable, o.Admission.Disable = []string{"B", "A"}, []string{"C"}
	o.Serving.TLS.MinVersion, o.Serving.TLS.CipherSuites = "VersionTLS13", []string{"S"}
	o.Serving.API = secureport.NewOptions()
	o.Serving.API.SANs, o.Serving.API.Profiling, o.Serving.API.Anonymous = []string{"api.example"}, false, false
	if got, want := o.Alike(), []configfile.State{
		{Flag: "--anonymous-auth", Hash: "false"}, {Flag: "--disable-admission-plugins", Hash: "C"},
		{Flag: "--enable-admission-plugins", Hash: "A,B"},
		{Flag: "--profiling", Hash: "false"}, {Flag: "--tls-cipher-suites", Hash: "S"},
		{Flag: "--tls-min-version", Hash: "VersionTLS13"},
		{Flag: "--tls-san", Hash: "api.example"},
	}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	o = &Options{}
	o.Serving.TLS.MinVersion, o.Serving.API = "VersionTLS12", secureport.NewOptions()
	if got := o.Alike(); len(got) != 0 {
		t.Errorf("defaults: %v", got)
	}
	o = &Options{CloudProvider: ExternalCloud}
	if got := o.Alike(); !slices.Equal(got, []configfile.State{{Flag: "--cloud-provider", Hash: ExternalCloud}}) {
		t.Errorf("%v", got)
	}
	o = &Options{Profile: ProfileCIS}
	if got := o.Alike(); !slices.Equal(got, []configfile.State{{Flag: "--profile", Hash: ProfileCIS}}) {
		t.Errorf("%v", got)
	}
}
