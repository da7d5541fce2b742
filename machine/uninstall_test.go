package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/barque/barque/internal/remains"
)

// TestRefusal: a server that its cluster counts on is not taken off, and the reason names the
// loss.
func TestRefusal(t *testing.T) {
	member := func(others ...string) Membership {
		return Membership{Role: Server, Name: "s1", Cluster: "c1", Member: true, Servers: others}
	}
	for name, c := range map[string]struct {
		of    Membership
		purge bool
		says  []string
	}{
		"nothing":           {},
		"an agent":          {of: Membership{Role: Agent, Name: "a1", Cluster: "c1"}},
		"one that has left": {of: Membership{Role: Server, Name: "s1", Cluster: "c1", Servers: []string{"s2", "s3"}}},
		"the only one":      {of: member(), says: []string{"the only server of the cluster c1", "stay in /d", "--force"}},
		"the only one, data": {of: member(), purge: true,
			says: []string{"are lost, with /d", "barque snapshot save", "--force"}},
		"one of two": {of: member("s2"),
			says: []string{"with s2", "the other 1 of 2 are no quorum", "barque cluster leave"}},
		"one of three": {of: member("s2", "s3"), says: []string{"with s2, s3", "the other 2 of 3 are just a quorum",
			"barque cluster leave", "--force"}},
		"one of five": {of: member("s2", "s3", "s4", "s5"), says: []string{"while at most 1 of them fail"}},
	} {
		t.Run(name, func(t *testing.T) {
			why := c.of.Refusal("/d", c.purge)
			if (why == "") != (len(c.says) == 0) {
				t.Errorf("%q", why)
			}
			for _, want := range c.says {
				if !strings.Contains(why, want) {
					t.Errorf("%q is missing in %q", want, why)
				}
			}
		})
	}
}

// pods are the things that a played node has left.
type pods struct {
	there []string
	fails error
}

func (p *pods) kind() remains.Kind {
	return remains.Kind{Name: "pods",
		Find: func(context.Context) ([]string, error) { return p.there, nil },
		Remove: func(context.Context) error {
			if p.fails == nil {
				p.there = nil
			}
			return p.fails
		}}
}

// removal is that of a server that is installed on the played machine.
func (h *host) removal(p *pods, purge bool) *Removal {
	return &Removal{Root: h.root, Inits: Inits(h.root, h.run), Kinds: []remains.Kind{p.kind()}, Purge: purge,
		DataDirs: []string{h.path("/var/lib/barque")}, Program: h.path(ProgramPath),
		Unused: func(context.Context) error { return nil }}
}

func (h *host) planRemoval(r *Removal) Plan {
	h.Helper()
	plan, err := r.Plan(h.Context())
	if err != nil {
		h.Fatal(err)
	}
	return plan
}

// files are all below the root.
func (h *host) files() string {
	var all []string
	if err := filepath.WalkDir(h.root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			all = append(all, strings.TrimPrefix(path, h.root))
		}
		return err
	}); err != nil {
		h.Fatal(err)
	}
	return strings.Join(all, " ")
}

// TestUninstall: after it the machine has the files of before, and the data unless they are
// removed, too. Interrupted at any step, the same goes on.
func TestUninstall(t *testing.T) {
	for _, mark := range []string{"run/systemd/system", "run/openrc"} {
		for _, purge := range []bool{false, true} {
			for stop := range 12 {
				h := newHost(t, mark)
				i := h.installation("")
				before := h.files()
				plan, _ := h.plan(i)
				h.carryOut(plan)
				write(t, h.path("/var/lib/barque/store/log"), "data")
				p := &pods{there: []string{"3 processes"}}
				if purge {
					write(t, h.path("/var/log/barque-server.log"), "")
				}
				ctx, cancel := context.WithCancel(t.Context())
				steps := 0
				err := h.planRemoval(h.removal(p, purge)).Run(ctx, func(string) {
					if steps++; steps > stop {
						cancel()
					}
				})
				cancel()
				if err == nil {
					if again := h.planRemoval(h.removal(p, purge)); !again.Done() {
						t.Fatalf("after all, a repetition would do %+v", again)
					}
				}
				h.carryOut(h.planRemoval(h.removal(p, purge)))
				want := before
				if !purge {
					want = "/etc/barque/config.yaml /etc/barque/token " + before + " /var/lib/barque/store/log"
				}
				if got := h.files(); got != want {
					t.Errorf("%s, purge %t, interrupted at %d: there is %q, want %q", mark, purge, stop, got, want)
				}
				if h.active["barque-server"] || len(p.there) > 0 {
					t.Errorf("%s: it still runs, or %q", mark, p.there)
				}
			}
		}
	}
}

// TestNothingToUninstall: a machine without Barque stays as it is, and nothing is run on it but
// questions.
func TestNothingToUninstall(t *testing.T) {
	h := newHost(t, "run/systemd/system")
	if plan := h.planRemoval(h.removal(&pods{}, true)); !plan.Done() {
		t.Errorf("%+v", plan)
	}
	for _, line := range h.ran {
		if !strings.HasPrefix(line, "systemctl show") {
			t.Errorf("it ran %s", line)
		}
	}
}

// TestDataInUse: a node that somebody has started by hand is not taken from below its feet.
func TestDataInUse(t *testing.T) {
	h := newHost(t, "run/systemd/system")
	plan, _ := h.plan(h.installation(""))
	h.carryOut(plan)
	p := &pods{there: []string{"3 processes"}}
	r := h.removal(p, false)
	inUse := errors.New("another barque runs with it")
	r.Unused = func(context.Context) error { return inUse }
	if err := h.planRemoval(r).Run(t.Context(), func(string) {}); !errors.Is(err, inUse) || len(p.there) == 0 ||
		!exists(h.path(ProgramPath)) {
		t.Errorf("%v, and %q is there", err, p.there)
	}
}

// TestWhatStaysIsReported: nothing after it is removed, so that the next try still finds its way.
func TestWhatStaysIsReported(t *testing.T) {
	h := newHost(t, "run/systemd/system")
	plan, _ := h.plan(h.installation(""))
	h.carryOut(plan)
	p := &pods{there: []string{"a mount"}, fails: errors.New("device is busy")}
	err := h.planRemoval(h.removal(p, true)).Run(t.Context(), func(string) {})
	if err == nil || !strings.Contains(err.Error(), "remove pods: device is busy") || !exists(h.path(ProgramPath)) {
		t.Error(err)
	}
}

func TestShorten(t *testing.T) {
	var many []string
	for range 20 {
		many = append(many, "x")
	}
	if got := shorten(many); len(got) != mostLines || got[mostLines-1] != "and 13 more" {
		t.Errorf("%q", got)
	}
}
