package options

import (
	"strings"
	"testing"

	"github.com/barque/barque/membership/enroll"
)

// TestUnknownProfile: one of a newer version is not taken for none.
func TestUnknownProfile(t *testing.T) {
	o := testOptions(t, "s1")
	o.Settings.Profile = "stig"
	if _, err := enroll.Server(t.Context(), o.Enrolling(), quiet()); err != nil {
		t.Fatal(err)
	}
	if _, err := RecordedProfile(o.DataDir); err == nil || !strings.Contains(err.Error(), `unknown profile "stig"`) {
		t.Errorf("%v", err)
	}
	for _, name := range []string{"", NoProfile, ProfileCIS} {
		if err := CheckProfile(name); err != nil {
			t.Error(err)
		}
	}
}
