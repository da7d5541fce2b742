// Package csisanity holds the tests' CSI driver against the specification, by kubernetes-csi's own
// suite. It is a module of its own: Barque's does not depend on that suite.
package csisanity

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
)

// TestSanity takes root, for bind mounts, and the driver's program in CSI_DRIVER_BIN; see 'make
// test-csi'.
func TestSanity(t *testing.T) {
	program := os.Getenv("CSI_DRIVER_BIN")
	if program == "" || os.Geteuid() != 0 {
		t.Skip("SKIPPED: it takes root, and the driver in CSI_DRIVER_BIN: run make test-csi")
	}
	dir, err := os.MkdirTemp("", "csi") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "d.sock")
	driver := exec.CommandContext(context.Background(), program, "--node", "n", "--root", filepath.Join(dir, "driver"),
		"--socket", socket)
	driver.Stderr = os.Stderr
	driver.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := driver.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = driver.Process.Signal(syscall.SIGTERM)
		_ = driver.Wait() // it ends by the signal
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}()
	config := sanity.NewTestConfig()
	config.Address = "unix://" + socket
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.IdempotentCount = 2
	config.TestNodeVolumeAttachLimit = false
	waitFor(t, socket)
	sanity.Test(t, config)
}

// waitFor waits until the driver listens.
func waitFor(t *testing.T, path string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := os.Stat(path); err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("the driver does not listen at %s", path)
		case <-tick.C:
		}
	}
}
