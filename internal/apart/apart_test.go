package apart

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// The separate process has only a loopback interface, which is up; this process keeps its own.
func TestRun(t *testing.T) {
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if !Run(t, Mounts, 5*time.Minute, "tests with a network of their own") {
		if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != before {
			t.Errorf("the network is %s, %v; it was %s", now, err, before)
		}
		return
	}
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	if len(links) != 1 || links[0].Attrs().Name != "lo" || links[0].Attrs().OperState == netlink.OperDown {
		t.Errorf("the interfaces are %+v", links)
	}
	mounts, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	if outside, err := os.Readlink("/proc/" + fmt.Sprint(os.Getppid()) + "/ns/mnt"); err != nil || mounts == outside {
		t.Errorf("the mounts are those from before: %s, %v", outside, err)
	}
}
