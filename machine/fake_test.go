package machine

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// host is a machine below a directory, on which the programs of systemd or OpenRC are played.
type host struct {
	*testing.T
	root   string
	ran    []string
	active map[string]bool
	show   string // that systemctl prints, instead of the state
	fail   string // a command that fails
}

func newHost(t *testing.T, marks ...string) *host {
	h := &host{T: t, root: t.TempDir(), active: map[string]bool{}}
	for _, m := range marks {
		if err := os.MkdirAll(filepath.Join(h.root, m), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func (h *host) path(p string) string { return filepath.Join(h.root, p) }

// run plays a program.
func (h *host) run(_ context.Context, program string, args ...string) (string, error) {
	line := program + " " + strings.Join(args, " ")
	h.ran = append(h.ran, line)
	if h.fail != "" && strings.HasPrefix(line, h.fail) {
		return "", errors.New("no")
	}
	last := strings.TrimSuffix(args[len(args)-1], ".service")
	switch {
	case program == "systemctl" && args[0] == "show":
		if h.show != "" {
			return h.show, nil
		}
		if h.active[last] {
			return "ActiveState=active\nStatusText=serves\nNRestarts=0\n", nil
		}
		return "ActiveState=inactive\nStatusText=\nNRestarts=0\n", nil
	case program == "systemctl" && args[0] == "start":
		h.active[last] = true
	case program == "systemctl" && args[0] == "stop":
		h.active[last] = false
	case program == "systemctl" && args[0] == "enable":
		write(h.T, h.path("/etc/systemd/system/multi-user.target.wants/"+last+".service"), "")
	case program == "rc-service" && args[1] == "status":
		if !h.active[args[0]] {
			return "", &ProgramError{Command: line, Status: 3}
		}
	case program == "rc-service":
		h.active[args[0]] = args[1] == "start"
	case program == "rc-update":
		write(h.T, h.path("/etc/runlevels/default/"+args[1]), "")
	}
	return "", nil
}

func (h *host) init(name string) Init {
	h.Helper()
	i, err := Choose(name, h.root, h.run)
	if err != nil {
		h.Fatal(err)
	}
	return i
}

// TestChoose: the one that runs, or the one that is named.
func TestChoose(t *testing.T) {
	for _, c := range []struct{ mark, name, want string }{
		{"run/systemd/system", "", SystemdName}, {"run/openrc", "", OpenRCName},
		{"run/openrc", SystemdName, SystemdName},
		{"run", OpenRCName, OpenRCName},
	} {
		if got := newHost(t, c.mark).init(c.name).Name(); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	for name, want := range map[string]string{"": "neither systemd nor OpenRC runs here", "runit": `--init "runit"`} {
		h := newHost(t)
		if _, err := Choose(name, h.root, h.run); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestExecute: the status of a program does not become that of the command that runs it.
func TestExecute(t *testing.T) {
	out, err := Execute(t.Context(), "sh", "-c", "echo out; echo wrong >&2; exit 3")
	var ended *ProgramError
	var child *exec.ExitError
	if !errors.As(err, &ended) || ended.Status != 3 || errors.As(err, &child) || out != "out\n" ||
		!strings.Contains(err.Error(), "status 3: wrong") {
		t.Errorf("%q %v", out, err)
	}
	if _, err := Execute(t.Context(), "/no/such/program"); err == nil || errors.As(err, &ended) && ended.Command == "/no/such/program" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Execute(ctx, "sleep", "1000"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
