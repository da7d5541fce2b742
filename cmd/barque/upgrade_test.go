package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/osthread"
	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/upgrade/release"
)

// programEnv lets this test's binary be barque. Its value is the version.
const programEnv = "BARQUE_TEST_PROGRAM"

func asProgram() {
	version.Version = os.Getenv(programEnv)
	main()
}

const (
	firstVersion = "v0.1.0"
	nextVersion  = "v0.1.1"
)

// upgraded is a cluster of server processes without nodes, in a network namespace of its own.
type upgraded struct {
	*testing.T
	handle  netns.NsHandle
	dirs    []string
	servers []<-chan struct{} // each is closed when that process has ended
}

func addressOfServer(i int) string { return fmt.Sprintf("10.89.0.%d", i+1) }

func newUpgraded(t *testing.T, servers int) *upgraded {
	needs.Root(t, "an upgrade of servers as processes")
	u := &upgraded{T: t}
	if err := osthread.Do(func() (err error) {
		if u.handle, err = netns.New(); err != nil {
			return err
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		for i := range servers {
			err = errors.Join(err, netlink.AddrAdd(lo, &netlink.Addr{
				IPNet: &net.IPNet{IP: net.ParseIP(addressOfServer(i)), Mask: net.CIDRMask(32, 32)}}))
		}
		return errors.Join(err, netlink.LinkSetUp(lo))
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.handle.Close() })
	for i := range servers {
		u.dirs = append(u.dirs, t.TempDir())
		args := []string{"server", "--no-node", "--gateway=false", "--data-dir", u.dirs[i], "--name",
			fmt.Sprintf("s%d", i+1), "--node-ip", addressOfServer(i), "--config", "none", "--raft-disk-reserve", "0"}
		if i > 0 {
			code, token := u.barque("token", "create", "--role", "server")
			if code != 0 {
				t.Fatal(token)
			}
			lines := strings.Fields(token)
			at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "b2.") })
			if at < 0 {
				t.Fatalf("no token: %s", token)
			}
			args = append(args, "--join", "https://"+addressOfServer(0)+":6443", "--token", lines[at])
		}
		u.start(args)
		await.True(t, fmt.Sprintf("the status with %d servers", i+1), func() bool {
			code, out := u.barque("cluster", "status", "-o", "json")
			return (code == 0 || code == 6) && strings.Contains(out, fmt.Sprintf(`"answering": %d,`, i+1)) &&
				strings.Contains(out, fmt.Sprintf(`"voters": %d,`, i+1))
		})
	}
	return u
}

// in starts a command in the namespace.
func (u *upgraded) in(cmd *exec.Cmd) error {
	cmd.Env = append(os.Environ(), programEnv+"="+firstVersion, "BARQUE_CONFIG=none", "NO_COLOR=1")
	return osthread.Do(func() error {
		if err := netns.Set(u.handle); err != nil {
			return err
		}
		return cmd.Start()
	})
}

func (u *upgraded) start(args []string) {
	u.Helper()
	cmd, log := exec.Command(os.Args[0], args...), new(syncbuf.Buffer)
	cmd.Stdout, cmd.Stderr = log, log
	if err := u.in(cmd); err != nil {
		u.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }() // ends with the process
	u.servers = append(u.servers, ended)
	u.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if u.Failed() {
			u.Logf("%s:\n%s", strings.Join(args[:8], " "), log.String())
		}
	})
}

// barque runs a command as the administrator.
func (u *upgraded) barque(args ...string) (code int, out string) {
	u.Helper()
	var text syncbuf.Buffer
	cmd := exec.CommandContext(u.Context(), os.Args[0],
		append(args, "--kubeconfig", filepath.Join(u.dirs[0], "admin.kubeconfig"))...)
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := u.in(cmd); err != nil {
		u.Fatal(err)
	}
	_ = cmd.Wait() // its code says how it has ended
	return cmd.ProcessState.ExitCode(), text.String()
}

// archive makes an archive whose program is this binary in another version, or a node's script.
func (u *upgraded) archive(of, node string) string {
	u.Helper()
	if node == "" {
		node = fmt.Sprintf("%s=%s exec %s \"$@\"", programEnv, of, os.Args[0])
	}
	script := fmt.Sprintf("#!/bin/sh\nif [ \"$1\" = version ]; then echo '{\"version\": %q}'; exit; fi\n%s\n", of, node)
	name := release.ArchiveName(of, runtime.GOARCH)
	path := filepath.Join(u.TempDir(), name)
	f, err := os.Create(path)
	if err != nil {
		u.Fatal(err)
	}
	zipped := gzip.NewWriter(f)
	files := tar.NewWriter(zipped)
	err = files.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "barque/barque", Mode: 0o755,
		Size: int64(len(script))})
	if err == nil {
		_, err = files.Write([]byte(script))
	}
	if err := errors.Join(err, files.Close(), zipped.Close(), f.Close()); err != nil {
		u.Fatal(err)
	}
	return path
}

// TestUpgradeOfServers: three servers are upgraded by the command, the leader last, in the
// processes that they had. A program that ends at its start is taken back, and is the end of the upgrade.
func TestUpgradeOfServers(t *testing.T) {
	u := newUpgraded(t, 3)
	upgrade := func(want int, text string, args ...string) {
		t.Helper()
		began := time.Now()
		code, out := u.barque(append([]string{"upgrade"}, args...)...)
		t.Logf("after %v:\n%s", time.Since(began).Round(time.Second), out)
		if code != want || !strings.Contains(out, text) {
			t.Errorf("exit code %d, want %d and %q: %s", code, want, text, out)
		}
	}
	versions := func(want string) {
		t.Helper()
		_, out := u.barque("cluster", "status", "-o", "json")
		if strings.Count(out, "+barque."+want+`"`) < len(u.servers) {
			t.Errorf("the servers are not in version %s:\n%s", want, out)
		}
	}
	next := u.archive(nextVersion, "")
	upgrade(4, "--unsigned", "--to", next, "--yes")
	upgrade(1, "exit status 7", "--to", u.archive("v0.1.2", "exit 7"), "--unsigned", "--yes", "--verify", "1s")
	versions(firstVersion)
	upgrade(0, "paused", "--to", next, "--unsigned", "--yes", "--pause-after", "1", "--verify", "1s")
	upgrade(0, "complete", "--to", next, "--unsigned", "--yes", "--verify", "1s")
	versions(nextVersion)
	for i, ended := range u.servers {
		select {
		case <-ended:
			t.Errorf("the process of server %d has ended", i+1)
		default:
		}
	}
}
