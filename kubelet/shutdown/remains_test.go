package shutdown

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemains: the drop-in of this kubelet goes, and that of another one, of the same name, stays.
func TestRemains(t *testing.T) {
	for text, own := range map[string]bool{
		written + ": so long logind waits\n[Login]\nInhibitDelayMaxSec=30\n": true,
		"[Login]\nInhibitDelayMaxSec=60\n":                                   false,
	} {
		dir := filepath.Join(t.TempDir(), "logind.conf.d")
		path := filepath.Join(dir, dropIn)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		kind := remainsIn(dir)[0]
		found, err := kind.Find(t.Context())
		if err != nil || (len(found) == 1) != own {
			t.Errorf("%q is found: %v", found, err)
		}
		if own {
			if err := os.Remove(path); err != nil { // as an earlier try did
				t.Fatal(err)
			}
		}
		if err := kind.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); (err == nil) == own {
			t.Errorf("after it: %v", err)
		}
	}
}
