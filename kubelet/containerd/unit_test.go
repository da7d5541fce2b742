package containerd

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	srvconfig "github.com/containerd/containerd/v2/cmd/containerd/server/config"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/kubelet/bundle"
)

func TestLayout(t *testing.T) {
	for name, test := range map[string]struct{ dir, fail string }{
		"usual":    {"/var/lib/barque", ""},
		"too long": {"/" + strings.Repeat("x", 90), "characters too long"},
		"root":     {"/", "root directory"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{DataDir: test.dir})
			if test.fail == "" && err != nil ||
				test.fail != "" && (err == nil || !strings.Contains(err.Error(), test.fail)) {
				t.Errorf("got %v", err)
			}
		})
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
	if err := Purge(t.Context(), long, ""); err != nil {
		t.Errorf("nothing can have run in %s, and so nothing is left there: %v", long, err)
	}
	one, _ := newLayout("/var/lib/one")
	two, _ := newLayout("/var/lib/two")
	if one.shimSockets() == two.shimSockets() {
		t.Error("two nodes share a directory of shim sockets")
	}
	if len(one.shimSockets()) > 42 {
		t.Errorf("%s is longer than containerd allows", one.shimSockets())
	}
}

// TestConfiguration lets containerd's own loader read the configuration.
func TestConfiguration(t *testing.T) {
	dir := t.TempDir()
	l, err := newLayout(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		host        host
		snapshotter string
		apparmorOff bool
	}{
		"all there": {host{apparmor: true, canLowerOOM: true, overlaySupport: true}, "overlayfs", false},
		"bare":      {host{}, "native", true},
	} {
		t.Run(name, func(t *testing.T) {
			if err := writeConfig(l, "/registries", "/cni", bundle.PauseImage, test.host); err != nil {
				t.Fatal(err)
			}
			read := &srvconfig.Config{}
			if err := srvconfig.LoadConfig(t.Context(), l.config(), read); err != nil {
				t.Fatal(err)
			}
			if read.Version != 4 || read.Root != l.root() || read.State != l.state() {
				t.Errorf("version %d, root %s, state %s", read.Version, read.Root, read.State)
			}
			if limit, err := time.ParseDuration(read.Timeouts["io.containerd.timeout.shim.load"]); err != nil ||
				limit != shimLoadTimeout {
				t.Errorf("shims have %v to answer: %v", limit, err)
			}
			images := read.Plugins["io.containerd.cri.v1.images"].(map[string]any)
			if images["snapshotter"] != test.snapshotter {
				t.Errorf("snapshotter %v", images["snapshotter"])
			}
			runtime := read.Plugins["io.containerd.cri.v1.runtime"].(map[string]any)
			if runtime["disable_apparmor"] != test.apparmorOff ||
				runtime["restrict_oom_score_adj"] != !test.host.canLowerOOM {
				t.Errorf("runtime: %v", runtime)
			}
		})
	}
}

// TestStartLimit: containerd, which loads a shim on each CPU, has the time that all of them may
// take.
func TestStartLimit(t *testing.T) {
	l, err := newLayout(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for shims, want := range map[int]time.Duration{0: startTimeout, 1: startTimeout + shimLoadTimeout,
		3: startTimeout + 2*shimLoadTimeout, 110: startAtMost} {
		for i := range shims {
			if err := os.MkdirAll(filepath.Join(l.state(), tasksPlugin, criNamespace, strconv.Itoa(i)),
				0o700); err != nil {
				t.Fatal(err)
			}
		}
		if got := startLimit(l, 2); got != want {
			t.Errorf("%d shims: %v, want %v", shims, got, want)
		}
		if err := os.RemoveAll(l.state()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProcess recognises a process of one data directory and of no other.
func TestProcess(t *testing.T) {
	mine, _ := newLayout("/var/lib/one")
	other, _ := newLayout("/var/lib/one-more")
	containerd := process{args: []string{"/usr/bin/barque", "containerd", "--config", mine.config()}}
	shim := process{
		args: []string{mine.bin() + "/containerd-shim-runc-v2", "-namespace", "k8s.io", "-address", mine.socket()}}
	if !containerd.isContainerd(mine) || containerd.isContainerd(other) || containerd.isShim(mine) {
		t.Error("containerd")
	}
	if !shim.isShim(mine) || shim.isShim(other) || shim.isContainerd(mine) {
		t.Error("shim")
	}
	editor := process{args: []string{"vi", mine.config()}}
	if editor.isContainerd(mine) {
		t.Error("whoever reads the configuration is no containerd")
	}
}

// TestPurgeSparesOtherProcesses: a process that only looks similar stays.
func TestPurgeSparesOtherProcesses(t *testing.T) {
	needs.Root(t, "that the end of a containerd spares processes of others")
	dir := t.TempDir()
	// A sleeper whose arguments name a neighbour's files.
	other := exec.Command("sh", "-c", "read x", "containerd", "--config",
		filepath.Join(dir, "one-more/containerd/config.toml"))
	stdin, err := other.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Purge(t.Context(), filepath.Join(dir, "one"), "/barque/test-none"); err != nil {
		t.Fatal(err)
	}
	if _, err := readProcess(other.Process.Pid); err != nil {
		t.Error("a process that is no containerd was killed")
	}
	stdin.Close()
	_ = other.Wait()
}

// TestEndProcess: a process that was to be ended, and runs another program by then, is ended all
// the same; another one with its number is not.
func TestEndProcess(t *testing.T) {
	cmd := exec.Command("sh", "-c", "read x; exec cat")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p, err := readProcess(cmd.Process.Pid)
	if err != nil || len(p.args) != 3 {
		t.Fatalf("the shell is %+v, %v", p, err)
	}
	if _, err := io.WriteString(stdin, "\n"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := waitUntil(ctx, time.Millisecond, func() (bool, error) {
		now, err := readProcess(cmd.Process.Pid)
		return slices.Equal(now.args, []string{"cat"}), err
	}); err != nil {
		t.Fatal(err)
	}
	another := p
	another.started++
	if err := endProcess(ctx, another, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if now, err := readProcess(cmd.Process.Pid); err != nil || now.started != p.started {
		t.Fatal("another process was ended")
	}
	if err := endProcess(ctx, p, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("it was not ended")
	}
}

func TestCheck(t *testing.T) {
	needs.Root(t, "what a node needs of its machine")
	dir := t.TempDir()
	for _, finding := range Check(filepath.Join(dir, "not", "there", "yet")) {
		if !finding.OK && finding.Name != "node components" { // those come with `make bundle`
			t.Errorf("%s: %s; %s", finding.Name, finding.Detail, finding.Remedy)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestChildThatDoesNotStart: the error has the child's output.
func TestChildThatDoesNotStart(t *testing.T) {
	s, err := New(
		Config{DataDir: t.TempDir(), Command: []string{"sh", "-c", "echo disk on fire >&2; exit 3"},
			Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.layout.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(s.runOnce(context.Background(), nil))
	for _, part := range []string{"exit status 3", "disk on fire"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q does not say %q", got, part)
		}
	}
}
