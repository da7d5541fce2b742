package worker

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/barque/barque/kubelet/rootdir"
)

// TestPlaces: the places of a node are found again, whatever its settings are by then, and a
// node of an earlier version had the defaults.
func TestPlaces(t *testing.T) {
	dir := t.TempDir()
	p, err := placesOf(dir, "n1")
	want := places{CgroupRoot: "/barque/n1", KubeletRootDir: rootdir.Default, PodLogsDir: "/var/log/pods",
		CNIConfDir: dir + "/containerd/cni"}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("%+v %v", p, err)
	}
	noted := places{CgroupRoot: "/theirs", KubeletRootDir: "/k", PodLogsDir: "/l", CNIConfDir: "/c",
		VolumesDir: "/v", Runtime: "unix:///r"}
	for range 2 {
		if err := notePlaces(dir, noted); err != nil {
			t.Fatal(err)
		}
	}
	if p, err = placesOf(dir, "n1"); err != nil || !reflect.DeepEqual(p, noted) {
		t.Errorf("%+v %v", p, err)
	}
}

// TestRemainsOfOthers: a kubelet's directory that is another node's is left alone, and a directory
// of volumes that the user has named is no part of the data.
func TestRemainsOfOthers(t *testing.T) {
	dir := t.TempDir()
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	if err := os.MkdirAll(kubelet, 0o755); err != nil {
		t.Fatal(err)
	}
	volumes := t.TempDir()
	if err := notePlaces(dir, places{CgroupRoot: "/barque/test-none", KubeletRootDir: kubelet, PodLogsDir: t.TempDir(),
		CNIConfDir: dir + "/cni", VolumesDir: volumes}); err != nil {
		t.Fatal(err)
	}
	for owner, own := range map[string]bool{dir: true, "/another": false} {
		if err := os.WriteFile(filepath.Join(kubelet, rootdir.Owner), []byte(owner+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		left, err := Remains(dir, "n1")
		if err != nil || (len(left.Data) == 1) != own || !reflect.DeepEqual(left.Others, []string{volumes}) {
			t.Errorf("of %s: %+v %v", owner, left, err)
		}
	}
}
