package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// installation is one of a server on a played machine.
func (h *host) installation(init string) *Installation {
	from := h.path("/root/barque")
	if !exists(from) {
		write(h.T, from, "the program")
	}
	return &Installation{Role: Server, Init: h.init(init), From: from, Program: h.path(ProgramPath),
		SettingsFile: h.path("/etc/barque/config.yaml"), Settings: []byte("zone: a\n"),
		TokenFile: h.path("/etc/barque/token"), Token: "secret"}
}

func (h *host) plan(i *Installation) (Plan, State) {
	h.Helper()
	plan, state, err := i.Plan(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	return plan, state
}

func (h *host) carryOut(p Plan) {
	h.Helper()
	if err := p.Run(h.Context(), func(string) {}); err != nil {
		h.Fatal(err)
	}
}

// TestInstall: everything is there after it, a repetition changes nothing, and a plan alone does
// not.
func TestInstall(t *testing.T) {
	for name, c := range map[string]struct {
		mark, file string
		mode       os.FileMode
	}{
		SystemdName: {"run/systemd/system", "/etc/systemd/system/barque-server.service", 0o600},
		OpenRCName:  {"run/openrc", "/etc/init.d/barque-server", 0o700},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, c.mark)
			plan, _ := h.plan(h.installation(""))
			if exists(h.path("/etc/barque")) || exists(h.path(ProgramPath)) || len(h.active) > 0 {
				t.Fatal("a plan changes the machine")
			}
			h.carryOut(plan)
			for path, want := range map[string]struct {
				text string
				mode os.FileMode
			}{
				ProgramPath: {"the program", 0o755}, "/etc/barque/config.yaml": {"zone: a\n", 0o600},
				"/etc/barque/token": {"secret\n", 0o600},
				c.file:              {h.init("").Text(Server, h.path(ProgramPath), ConfigDir), c.mode},
			} {
				info, err := os.Stat(h.path(path))
				if err != nil || info.Mode().Perm() != want.mode || read(t, h.path(path)) != want.text {
					t.Errorf("%s: %v %v", path, info, err)
				}
			}
			if !h.active["barque-server"] {
				t.Errorf("it does not run: %q", h.ran)
			}
			plan, state := h.plan(h.installation(""))
			if !plan.Done() || plan.Restart(state) {
				t.Errorf("a repetition would do %+v", plan)
			}
			// Another program and another setting count at the next start.
			write(t, h.path("/root/barque"), "a new one")
			if plan, state = h.plan(h.installation("")); !plan.Restart(state) {
				t.Errorf("of an upgrade nobody says that it takes a restart: %+v", plan)
			}
		})
	}
}

// TestInstallOfAPackage: its program and its unit stay where they are.
func TestInstallOfAPackage(t *testing.T) {
	h := newHost(t, "run/systemd/system", "usr/lib/systemd/system")
	write(t, h.path("/usr/lib/systemd/system/barque-server.service"), "the package's")
	i := h.installation("")
	i.Packaged = true
	plan, _ := h.plan(i)
	h.carryOut(plan)
	if exists(h.path(ProgramPath)) || exists(h.path("/etc/systemd/system/barque-server.service")) ||
		!h.active["barque-server"] {
		t.Errorf("the steps were %+v, the commands %q", plan, h.ran)
	}
}

// TestAChangedServiceStays: a file of the user is not overwritten.
func TestAChangedServiceStays(t *testing.T) {
	h := newHost(t, "run/systemd/system")
	unit := h.path("/etc/systemd/system/barque-server.service")
	write(t, unit, "mine")
	plan, _ := h.plan(h.installation(""))
	h.carryOut(plan)
	var text strings.Builder
	if err := plan.Write(&text, true); err != nil || read(t, unit) != "mine" ||
		!strings.Contains(text.String(), unit+" differs from this version's, and stays as it is") {
		t.Errorf("the plan is\n%s", text.String())
	}
}

// TestAnInterruptedInstall goes on where it ended.
func TestAnInterruptedInstall(t *testing.T) {
	h := newHost(t, "run/systemd/system")
	h.fail = "systemctl enable"
	plan, _ := h.plan(h.installation(""))
	if err := plan.Run(t.Context(), func(string) {}); err == nil || !strings.Contains(err.Error(), "at each boot") {
		t.Fatal(err)
	}
	h.fail = ""
	again, _ := h.plan(h.installation(""))
	left := 0
	for _, s := range again {
		if !s.Done {
			left++
		}
	}
	if h.carryOut(again); left != 2 || !h.active["barque-server"] {
		t.Errorf("%d steps were left: %+v", left, again)
	}
}

// TestNoStart prepares the next boot.
func TestNoStart(t *testing.T) {
	h := newHost(t)
	i := h.installation(SystemdName)
	i.NoStart = true
	plan, _ := h.plan(i)
	h.carryOut(plan)
	if len(h.active) > 0 || len(h.ran) != 1 || !strings.HasPrefix(h.ran[0], "systemctl --root=") {
		t.Errorf("it ran %q", h.ran)
	}
}

// TestAwait: a start that makes progress is waited for, with its states, and is given up when it
// fails.
func TestAwait(t *testing.T) {
	for name, c := range map[string]struct {
		shows []string
		says  string
		err   string
	}{
		"serves": {[]string{"ActiveState=activating\nStatusText=waits", "ActiveState=active"}, "waits", ""},
		"fails":  {[]string{"ActiveState=activating", "ActiveState=failed"}, "", "does not stay up"},
		"ends often": {[]string{"ActiveState=activating\nNRestarts=1", "ActiveState=activating\nNRestarts=4"}, "",
			"does not stay up"},
		"never": {[]string{"ActiveState=activating\nStatusText=waits"}, "waits", "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHost(t, "run/systemd/system")
				said := ""
				run := func(ctx context.Context, program string, args ...string) (string, error) {
					out := c.shows[0]
					if len(c.shows) > 1 {
						c.shows = c.shows[1:]
					}
					return out, nil
				}
				ctx, cancel := context.WithTimeoutCause(t.Context(), time.Minute, errors.New("too long"))
				defer cancel()
				err := Await(ctx, &systemd{h.root, run}, Server, nil, func(text string) { said += text })
				if said != c.says || (err == nil) != (c.err == "") ||
					err != nil && !strings.Contains(err.Error(), c.err) {
					t.Errorf("it says %q and ends with %v", said, err)
				}
			})
		})
	}
}

// TestAwaitWithoutWord: OpenRC does not hear when a service serves.
func TestAwaitWithoutWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, "run/openrc")
		write(t, h.path("/etc/init.d/barque-server"), "")
		h.active["barque-server"] = true
		asked := 0
		serves := func(context.Context) (bool, error) { asked++; return asked == 3, nil }
		if err := Await(t.Context(), h.init(""), Server, serves, func(string) {}); err != nil || asked != 3 {
			t.Errorf("asked %d times: %v", asked, err)
		}
		h.active["barque-server"] = false
		if err := Await(t.Context(), h.init(""), Server, serves, func(string) {}); err == nil {
			t.Error("a service that has ended is waited for")
		}
	})
}

// TestOthers: traces of other distributions are a doubt, and keep nobody from anything.
func TestOthers(t *testing.T) {
	root := t.TempDir()
	if found := Others(root); len(found) > 0 {
		t.Errorf("%+v", found)
	}
	write(t, filepath.Join(root, "/etc/rancher/k3s/k3s.yaml"), "")
	if found := Others(root); len(found) != 1 || !found[0].OK || !found[0].Doubt ||
		!strings.Contains(found[0].Detail, "k3s") {
		t.Errorf("%+v", found)
	}
}

func TestCheckSecret(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write(t, path, "secret")
	if err := errors.Join(CheckSecret(path), CheckSecret(path+"-none")); err != nil {
		t.Error(err)
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := CheckSecret(path); err == nil || !strings.Contains(err.Error(), "chmod 600 "+path) {
		t.Error(err)
	}
}
