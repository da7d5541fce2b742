package node

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/enroll"
)

// begun is the record of a cluster that began with a profile.
func begun(t *testing.T, o *options.Options, profile string) *enroll.Record {
	t.Helper()
	o.Profile, o.Settings.Profile = profile, profile
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestProfileIsRecorded: a cluster begins with the profile of its first server. A flag at a later
// start records another one, and without a flag the recorded one stays.
func TestProfileIsRecorded(t *testing.T) {
	o := testOptions(t, "s1")
	recorded := func(want string) {
		t.Helper()
		if got, err := options.RecordedProfile(o.DataDir); err != nil || got != want {
			t.Errorf("the recorded profile is %q, want %q (%v)", got, want, err)
		}
	}
	recorded("") // before there is a record
	r := begun(t, o, "")
	recorded("")
	if strings.Contains(string(r.Cluster.Settings), "profile") {
		t.Errorf("a cluster without a profile records one: %s", r.Cluster.Settings)
	}
	r.Cluster.Settings = json.RawMessage(strings.Replace(string(r.Cluster.Settings), "{", `{"newer":[1],`, 1))
	for _, next := range []string{options.ProfileCIS, options.ProfileCIS, ""} {
		o := &options.Options{DataDir: o.DataDir, Profile: next, ProfileGiven: true}
		if err := takeProfile(o, r, quiet()); err != nil {
			t.Fatal(err)
		}
		recorded(next)
		if err := takeProfile(&options.Options{DataDir: o.DataDir, Profile: next}, r, quiet()); err != nil {
			t.Errorf("a start without the flag: %v", err)
		}
		s, err := options.SettingsOf(r)
		if err != nil || s.Domain != "cluster.local" || len(s.ServiceCIDRs) == 0 ||
			!strings.Contains(string(r.Cluster.Settings), `"newer":[1]`) {
			t.Errorf("other settings are lost: %s %v", r.Cluster.Settings, err)
		}
	}
}

// TestAJoinersProfile: a machine takes the profile of its cluster over, and starts again with it,
// because flags are read before the cluster is known.
func TestAJoinersProfile(t *testing.T) {
	for role, enlist := range map[string]func(o *options.Options) (*enroll.Record, error){
		"server": func(o *options.Options) (*enroll.Record, error) { return enlistServer(t.Context(), o, quiet()) },
		"agent":  func(o *options.Options) (*enroll.Record, error) { return enlistAgent(t.Context(), o, quiet()) },
	} {
		h := newHost(t)
		h.settings, h.keys = json.RawMessage(`{"profile":"cis"}`), func() (map[string][]byte, error) { return nil, nil }
		o := testOptions(t, "n1")
		o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
		r, err := enlist(o)
		if err != nil {
			t.Fatal(role, err)
		}
		if err := takeProfile(o, r, quiet()); !errors.Is(err, ErrRestart) {
			t.Errorf("%s: %v, want a restart", role, err)
		}
		profile, err := options.RecordedProfile(o.DataDir)
		if err != nil || profile != options.ProfileCIS {
			t.Errorf("%s: %q %v", role, profile, err)
		}
		if err := takeProfile(&options.Options{DataDir: o.DataDir, Profile: profile}, r, quiet()); err != nil {
			t.Errorf("%s: the next start: %v", role, err)
		}
	}
}
