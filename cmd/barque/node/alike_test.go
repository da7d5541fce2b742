package node

import (
	"slices"
	"testing"

	"github.com/barque/barque/apiserver/configfile"
)

// TestAlikeFlags: the status compares the flags that must be the same on all servers.
func TestAlikeFlags(t *testing.T) {
	for level, want := range map[string][]configfile.State{
		"": nil, "privileged": nil, "baseline": {{Flag: "--pod-security-default", Hash: "baseline"}}, "restricted": {{Flag: "--pod-security-default", Hash: "restricted"}},
	} {
		o := &Options{}
		o.Admission.PodSecurity = level
		if got := o.alike(); !slices.Equal(got, want) {
			t.Errorf("%q: %v, want %v", level, got, want)
		}
	}
	o := &Options{Profile: ProfileCIS}
	if got := o.alike(); !slices.Equal(got, []configfile.State{{Flag: "--profile", Hash: ProfileCIS}}) {
		t.Errorf("%v", got)
	}
}
