package datakeys_test

import (
	"testing"

	"github.com/barque/barque/membership/datakeys"
)

// TestCovers: a resource counts as encrypted only at rest, with nothing in clear.
func TestCovers(t *testing.T) {
	secrets := []string{"configmaps", "secrets"}
	for what, c := range map[string]struct {
		status         datakeys.Status
		covers, unsure bool
	}{
		"encrypted":        {datakeys.Status{Enabled: true, Resources: secrets}, true, false},
		"never":            {datakeys.Status{Resources: secrets}, false, false},
		"another resource": {datakeys.Status{Enabled: true, Resources: []string{"configmaps"}}, false, false},
		"some in clear":    {datakeys.Status{Enabled: true, Resources: secrets, Clear: 1}, false, false},
		"by a wildcard":    {datakeys.Status{Enabled: true, Resources: []string{"*.*"}}, true, false},
		"an exception": {datakeys.Status{Enabled: true, Resources: []string{"*.*"}, Except: []string{"secrets"}},
			false, false},
		"a rewrite": {
			datakeys.Status{Enabled: true, Resources: secrets, Step: datakeys.Rewrite, Text: "x", Clear: 7}, false,
			true},
		"disks are cleaned": {datakeys.Status{Enabled: true, Resources: secrets, Step: datakeys.Clean, Text: "x"},
			false, true},
	} {
		covers, err := c.status.Covers("secrets")
		if covers != c.covers || (err != nil) != c.unsure {
			t.Errorf("%s: %v, %v", what, covers, err)
		}
	}
}
