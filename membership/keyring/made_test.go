package keyring

import (
	"fmt"
	"testing"
	"time"

	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/membership/rollovertest"
)

// A cluster that began with a backup of another one, and with its keys, knows when these were made,
// and that it has not rotated any itself.
func TestMadeInTheClusterBefore(t *testing.T) {
	key := make([]byte, KeySize)
	for what, c := range map[string]struct {
		id   string
		made bool
	}{"the key of the backup": {KeyID(key), true}, "a key of its own": {"another", false}} {
		store := rollovertest.New()
		store.Restore(
			fmt.Appendf(nil,
				`{"format":1,"cluster":"before","generation":6,"keys":[{"id":%q,"made":"2026-11-20T12:00:00Z"}]}`,
				c.id))
		m := New(
			Config{Server: rollover.Server{Cluster: "now", Store: store},
				Own:     NewOwn(Ring{Keys: [][]byte{key}}, nil, nil),
				Members: func() []rollover.Member { return nil }})
		s, err := m.Status(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if k := s.Keys[0]; s.Generation != 0 || s.Step != AtRest || k.ID != KeyID(key) || !k.Sends ||
			k.Made.IsZero() == c.made ||
			c.made && !k.Made.Equal(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)) {
			t.Errorf("%s: %+v, made %v", what, s, k.Made)
		}
	}
}
