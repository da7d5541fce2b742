package devcluster

import (
	"fmt"
	"testing"
)

// TestGiveToSudoer: after sudo, the user can read the kubeconfig; without sudo, nothing changes.
func TestGiveToSudoer(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want string
		fail bool
	}{
		"root":     {nil, "", false},
		"sudo":     {map[string]string{"SUDO_UID": "1000", "SUDO_GID": "100"}, "f 1000 100", false},
		"no group": {map[string]string{"SUDO_UID": "1000"}, "", true},
	} {
		got := ""
		err := GiveToSudoer("f", func(key string) string { return c.env[key] }, func(path string, uid, gid int) error {
			got = fmt.Sprint(path, " ", uid, " ", gid)
			return nil
		})
		if got != c.want || (err != nil) != c.fail {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
