package backups

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// TestUnusableBackups: a sealed backup whose own keys do not open it is not written. The keys may
// be exchanged while it is read, so that it is read once more. An unsealed one has no keys.
func TestUnusableBackups(t *testing.T) {
	const why = "data key abc cannot be opened"
	key, err := backup.ParseKey("a passphrase that is long enough for a backup")
	if err != nil {
		t.Fatal(err)
	}
	b := newBackups(t, t.TempDir(), &failing{Store: testStore(t, "/a")})
	for _, c := range []struct {
		sealed     bool
		fails      int
		calls      int
		wantFailed bool
	}{{true, 0, 1, false}, {true, 1, 2, false}, {true, 2, 2, true}, {true, 9, 2, true}, {false, 9, 0, false}} {
		calls := 0
		b.CheckSaved = func(view raftstore.View, secrets map[string][]byte) error {
			if item, ok := view.Get("/a"); !ok || item.Key != "/a" || len(secrets) == 0 {
				t.Errorf("it is called with %v, %d secrets", item, len(secrets))
			}
			if calls++; calls <= c.fails {
				return errors.New(why)
			}
			return nil
		}
		with := key
		if !c.sealed {
			with = nil
		}
		var out bytes.Buffer
		_, err := b.write(t.Context(), &out, with)
		if calls != c.calls || (err != nil) != c.wantFailed ||
			c.wantFailed && (!strings.Contains(err.Error(), why) || out.Len() > 0) {
			t.Errorf("%+v: %d calls, %v, %d bytes", c, calls, err, out.Len())
		}
	}
}
