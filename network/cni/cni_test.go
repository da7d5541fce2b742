package cni

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
)

func TestWrite(t *testing.T) {
	config := Config{
		Dir: filepath.Join(t.TempDir(), "cni"), IPAMDir: "/var/lib/ipam",
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.42.1.7/24"), netip.MustParsePrefix("fd00:42:0:1::/64")},
		MTU:      1400,
	}
	path := filepath.Join(config.Dir, fileName)
	if err := Write(config); err != nil {
		t.Fatal(err)
	}
	list, err := libcni.ConfListFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if list.Name != "barque" || len(list.Plugins) != 1 || list.Plugins[0].Network.Type != "ptp" ||
		list.Plugins[0].Network.IPAM.Type != "host-local" {
		t.Errorf("got %s", list.Bytes)
	}
	for _, part := range []string{`"subnet": "10.42.1.0/24"`, `"subnet": "fd00:42:0:1::/64"`, `"dst": "0.0.0.0/0"`,
		`"dst": "::/0"`, `"mtu": 1400`} {
		if !strings.Contains(string(list.Bytes), part) {
			t.Errorf("no %s in %s", part, list.Bytes)
		}
	}
	first, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}

	// The runtime reloads whenever the file changes, so it changes only for a reason.
	if err := Write(config); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(path); err != nil || !os.SameFile(first, again) {
		t.Errorf("an unchanged configuration was written again (%v)", err)
	}
	config.MTU = 9000
	if err := Write(config); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(path); err != nil || os.SameFile(first, again) {
		t.Errorf("a changed configuration was not replaced as a whole (%v)", err)
	}

	for range 2 {
		if err := Remove(config.Dir); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(config.Dir); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestShares: the shares are read back from the file, and a missing one has none.
func TestShares(t *testing.T) {
	dir := t.TempDir()
	if shares, err := Shares(dir); err != nil || len(shares) > 0 {
		t.Errorf("%v %v", shares, err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.42.3.0/24"), netip.MustParsePrefix("fd00:3::/64")}
	if err := Write(Config{Dir: dir, IPAMDir: "/ipam", PodCIDRs: want, MTU: 1500}); err != nil {
		t.Fatal(err)
	}
	if shares, err := Shares(dir); err != nil || !slices.Equal(shares, want) {
		t.Errorf("%v %v", shares, err)
	}
	if found, err := Found(dir); err != nil || len(found) != 1 {
		t.Errorf("%v %v", found, err)
	}
	if err := Remove(dir); err != nil {
		t.Fatal(err)
	}
	if found, err := Found(dir); err != nil || len(found) > 0 {
		t.Errorf("%v %v", found, err)
	}
}
