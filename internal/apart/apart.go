// Package apart runs a test again in a process with its own network, which the test may change
// freely. The network ends with the process.
package apart

import (
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/mountspace"
	"github.com/barque/barque/internal/needs"
)

// variable in the environment marks the separate process. Its children inherit it.
const variable = "BARQUE_TEST_APART"

// Namespaces are the process's own namespaces besides the network.
type Namespaces uintptr

const (
	// Network is the network alone.
	Network Namespaces = 0
	// Mounts are separate too: they end with the process, and keep no disk of other programs busy.
	Mounts Namespaces = syscall.CLONE_NEWNS
)

// Run is called first by a test. In the separate process it returns true, and the test goes on
// there with only a loopback interface. In the test's process it runs that process and returns
// false when it has passed. limit bounds the whole test. Without root the test is skipped, and
// untested names the part that is not tested.
func Run(t *testing.T, own Namespaces, limit time.Duration, untested string) bool {
	t.Helper()
	if os.Getenv(variable) != "" {
		loopback, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(loopback); err != nil {
			t.Fatal(err)
		}
		if own&Mounts != 0 {
			if err := mountspace.Own(); err != nil {
				t.Fatal(err)
			}
		}
		return true
	}
	needs.Root(t, untested)
	runtime.LockOSThread() // the child's signal comes when this thread ends, so no goroutine may end it
	defer runtime.UnlockOSThread()
	command := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v", "-test.timeout", limit.String())
	command.Env = append(os.Environ(), variable+"=1")
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | uintptr(own),
		Pdeathsig: syscall.SIGKILL}
	output, err := command.CombinedOutput()
	t.Logf("apart:\n%s", output)
	if err != nil {
		t.Fatal(err)
	}
	return false
}
