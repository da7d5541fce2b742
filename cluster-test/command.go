package clustertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
)

// Result is the outcome of a command.
type Result struct {
	Out   string // standard output
	Err   string // standard error
	Code  int
	Error error // nil when the code is 0; names the command and has all that it said
}

// commandTimeout bounds commands that get no deadline of their own. It is longer than the bounds
// that tests give to kubectl, which then names the condition that it waited for.
const commandTimeout = await.Hang + time.Minute

// kubectlCommand finds kubectl once.
var kubectlCommand = sync.OnceValues(func() ([]string, error) {
	if path := kubectlPath(context.Background()); path != "" {
		return []string{path}, nil
	}
	path, err := Binary()
	return []string{path, "kubectl"}, err
})

// Run runs a command to its end.
func Run(ctx context.Context, stdin string, env []string, command ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return runFor(ctx, stdin, env, command...)
}

func runFor(ctx context.Context, stdin string, env []string, command ...string) Result {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 10 * time.Second // a grandchild may hold the pipes
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	err := cmd.Run()
	r := Result{Out: out.String(), Err: complaint.String(), Code: cmd.ProcessState.ExitCode()}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(err, context.Cause(ctx))
		}
		r.Error = fmt.Errorf("%s: %w\n%s%s", strings.Join(command, " "), err, r.Out, r.Err)
	}
	return r
}

// BarqueResult runs barque with the cluster's kubeconfig.
func (c *Cluster) BarqueResult(ctx context.Context, args ...string) Result {
	path, err := Binary()
	if err != nil {
		return Result{Code: -1, Error: err}
	}
	return Run(ctx, "", c.env(), append([]string{path}, args...)...)
}

// DevResult runs `barque dev` on the cluster. Making one takes longer than other commands do.
func (c *Cluster) DevResult(ctx context.Context, args ...string) Result {
	path := c.binary
	if path == "" {
		var err error
		if path, err = Binary(); err != nil {
			return Result{Code: -1, Error: err}
		}
	}
	return runFor(ctx, "", c.env(), append([]string{path, "dev", "--dir", c.Dir}, args...)...)
}

// KubectlResult runs kubectl with the text as its standard input.
func (c *Cluster) KubectlResult(ctx context.Context, stdin string, args ...string) Result {
	command, err := kubectlCommand()
	if err != nil {
		return Result{Code: -1, Error: err}
	}
	return Run(ctx, stdin, c.env(), append(command, args...)...)
}

func (c *Cluster) env() []string { return []string{"KUBECONFIG=" + c.Kubeconfig(), "NO_COLOR=1"} }

// Dev runs `barque dev`, which must succeed.
func (c *Cluster) Dev(t testing.TB, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	return must(t, c.DevResult(ctx, args...))
}

// Barque runs barque, which must succeed.
func (c *Cluster) Barque(t testing.TB, args ...string) string {
	t.Helper()
	return c.done(t, args, func() Result { return c.BarqueResult(t.Context(), args...) })
}

// Kubectl runs kubectl, which must succeed.
func (c *Cluster) Kubectl(t testing.TB, args ...string) string {
	t.Helper()
	return c.done(t, args, func() Result { return c.KubectlResult(t.Context(), "", args...) })
}

// On runs a command in a node's network namespace; it must succeed.
func (c *Cluster) On(t testing.TB, node string, command ...string) string {
	t.Helper()
	return must(t, c.OnResult(t.Context(), node, command...))
}

// OnResult runs a command in a node's network namespace.
func (c *Cluster) OnResult(ctx context.Context, node string, command ...string) Result {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	return c.DevResult(ctx, append([]string{"exec", node, "--"}, command...)...)
}

// done runs a command, which must succeed. It runs a failed command again, as users do, when the
// cluster's proxy has cut connections meanwhile because the server behind them was silent for a
// minute, such as one that a test has stopped. The first try may have had its effect all the same.
func (c *Cluster) done(t testing.TB, args []string, run func() Result) string {
	t.Helper()
	for tries := 1; ; tries++ {
		began := time.Now()
		r := run()
		if r.Error == nil || tries > 1 && isDone(args, r) {
			return r.Out
		}
		if tries == 3 || slices.Contains(args, "undo") || !c.cutSince(began) { // to undo twice is to do
			t.Fatal(r.Error)
		}
		t.Logf("the proxy has cut the connection to a silent server, so this is done again: %v", r.Error)
	}
}

// isDone reports whether a command failed because its effect was there before.
func isDone(args []string, r Result) bool {
	switch {
	case slices.Contains(args, "create"), slices.Contains(args, "run"):
		return strings.Contains(r.Err, "(AlreadyExists)")
	case slices.Contains(args, "delete"):
		return strings.Contains(r.Err, "(NotFound)")
	}
	return false
}

var cutLine = regexp.MustCompile(`(?m)^time=(\S+) .*msg="connections are cut\b.* is=silent `)

// cutSince reports whether the cluster's proxy, by its log, has cut connections to a silent server
// since a time.
func (c *Cluster) cutSince(began time.Time) bool {
	log, err := os.ReadFile(filepath.Join(c.Dir, "proxy.log"))
	if err != nil {
		return false
	}
	for _, found := range cutLine.FindAllSubmatch(log, -1) {
		if at, err := time.Parse(time.RFC3339Nano, string(found[1])); err == nil &&
			!at.Before(began.Truncate(time.Millisecond)) {
			return true
		}
	}
	return false
}

func must(t testing.TB, r Result) string {
	t.Helper()
	if r.Error != nil {
		t.Fatal(r.Error)
	}
	return r.Out
}
