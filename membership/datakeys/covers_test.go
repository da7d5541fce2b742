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
		"encrypted":          {datakeys.Status{Enabled: true, Resources: secrets}, true, false},
		"never":              {datakeys.Status{Resources: secrets}, false, false},
		"another resource":   {datakeys.Status{Enabled: true, Resources: []string{"configmaps"}}, false, false},
		"some in clear":      {datakeys.Status{Enabled: true, Resources: secrets, Clear: 1}, false, false},
		"by a file":          {datakeys.Status{File: &datakeys.FileStatus{Writes: true, Resources: map[string]string{"secrets": "aescbc"}}}, true, false},
		"by a wildcard":      {datakeys.Status{File: &datakeys.FileStatus{Writes: true, Resources: map[string]string{"*.": "kms vault"}}}, true, false},
		"in clear by a file": {datakeys.Status{Enabled: true, Resources: secrets, File: &datakeys.FileStatus{Writes: true, Resources: map[string]string{"*.*": "identity"}}}, false, false},
		"while files differ": {datakeys.Status{Enabled: true, Resources: secrets, File: &datakeys.FileStatus{Resources: map[string]string{"secrets": "identity"}}}, true, false},
		"another group":      {datakeys.Status{Enabled: true, Resources: secrets, File: &datakeys.FileStatus{Writes: true, Resources: map[string]string{"*.apps": "identity"}}}, true, false},
		"a rewrite":          {datakeys.Status{Enabled: true, Resources: secrets, Step: datakeys.Rewrite, Text: "x", Clear: 7}, false, true},
		"disks are cleaned":  {datakeys.Status{Enabled: true, Resources: secrets, Step: datakeys.Clean, Text: "x"}, false, true},
	} {
		covers, err := c.status.Covers("secrets")
		if covers != c.covers || (err != nil) != c.unsure {
			t.Errorf("%s: %v, %v", what, covers, err)
		}
	}
}
