package enroll

import (
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/pki"
)

// TestDecide: each phase of the record and each choice of the operator has one step.
func TestDecide(t *testing.T) {
	made, other := newToken(t), newToken(t)
	id := func(text string) string {
		parsed, err := pki.ParseToken(text)
		if err != nil {
			t.Fatal(err)
		}
		return parsed.ID
	}
	phase := func(phase string) *Record { return &Record{Phase: phase, Asked: "https://s1", Token: id(made)} }
	join, restore := Options{Name: "s2", Join: "https://s1", Token: made}, Restore{File: "backup"}
	for name, c := range map[string]struct {
		record  *Record
		options Options
		wipe    bool
		want    step
		fails   string
	}{
		"an empty directory":          {nil, Options{Name: "s1"}, false, beginning, ""},
		"with a backup":               {nil, Options{Name: "s1", Restore: restore}, false, restoring, ""},
		"with a server":               {nil, join, false, asking, ""},
		"with a server, to wipe":      {nil, join, true, asking, ""},
		"a wrong name":                {nil, Options{Name: "S_1"}, false, 0, "--name"},
		"killed while it asked":       {phase(PhaseAsking), join, false, asking, ""},
		"and no server is given":      {phase(PhaseAsking), Options{Name: "s2"}, false, 0, "was about to join"},
		"admitted":                    {phase(PhaseJoining), join, false, continuing, ""},
		"admitted, to wipe":           {phase(PhaseJoining), join, true, continuing, ""},
		"admitted by another token":   {phase(PhaseJoining), Options{Name: "s2", Token: other}, true, rejoining, ""},
		"a member":                    {phase(PhaseMember), Options{Name: "S_1"}, false, continuing, ""},
		"a member, to wipe":           {phase(PhaseMember), join, true, rejoining, ""},
		"its first start was not all": {phase(PhaseBootstrap), Options{}, false, continuing, ""},
		"killed while it wiped":       {phase(PhaseWiping), Options{}, false, wiping, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decide(c.record, &c.options, c.wipe)
			if got != c.want || (err != nil) != (c.fails != "") ||
				err != nil && !strings.Contains(err.Error(), c.fails) {
				t.Errorf("step %d, %v; want %d, %q", got, err, c.want, c.fails)
			}
		})
	}
}

// newToken makes a token of another cluster each time.
func newToken(t *testing.T) string {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	made, err := pki.NewToken(ca.Digest())
	if err != nil {
		t.Fatal(err)
	}
	return made.String()
}
