package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/barque/barque/internal/check"
)

// Installation is a node that is to be a service of this machine.
type Installation struct {
	Role string
	Init Init
	// From is the running program. It is copied to ProgramPath, unless a package owns it.
	From     string
	Packaged bool
	// Program is where the copy goes: ProgramPath.
	Program string
	// SettingsFile gets the text Settings. Added are the lines that are new in it.
	SettingsFile string
	Settings     []byte
	Added        []string
	// TokenFile gets the token, if there is one.
	TokenFile, Token string
	// NoStart leaves the service as it is.
	NoStart bool
}

// Plan returns the steps, and the state of the service now. It changes nothing.
func (i *Installation) Plan(ctx context.Context) (Plan, State, error) {
	state, err := i.Init.State(ctx, i.Role)
	if err != nil {
		return nil, state, err
	}
	program := i.From
	var plan Plan
	add := func(s Step, err error) error {
		if err == nil {
			plan = append(plan, s)
		}
		return err
	}
	if i.Packaged {
		plan = append(plan, Step{What: i.From + " is a package's: it stays where it is", Done: true})
	} else {
		program = i.Program
		if err := add(copyStep(i.From, program)); err != nil {
			return nil, state, err
		}
	}
	if i.Token != "" {
		if err := add(writeStep(i.TokenFile, []byte(i.Token+"\n"), 0o600)); err != nil {
			return nil, state, err
		}
	}
	if err := add(writeStep(i.SettingsFile, i.Settings, modeOf(i.SettingsFile, 0o600), i.Added...)); err != nil {
		return nil, state, err
	}
	if err := add(i.serviceStep(program)); err != nil {
		return nil, state, err
	}
	enabled, err := i.Init.Enabled(ctx, i.Role)
	if err != nil {
		return nil, state, err
	}
	name := serviceName(i.Role)
	plan = append(plan, Step{What: "start " + name + " at each boot", Done: enabled,
		Do: func(ctx context.Context) error { return i.Init.Enable(ctx, i.Role) }})
	if !i.NoStart {
		plan = append(plan, Step{What: "start " + name, Done: state.Active,
			Do: func(ctx context.Context) error { return i.Init.Start(ctx, i.Role) }})
	}
	return plan, state, nil
}

// serviceStep writes the service's file. One of a package, or one that differs, stays as it is.
func (i *Installation) serviceStep(program string) (Step, error) {
	path, mode := i.Init.File(i.Role)
	text := i.Init.Text(i.Role, program, ConfigDir)
	s, err := writeStep(path, []byte(text), mode)
	switch {
	case err != nil || s.Done:
		return s, err
	case exists(path):
		return Step{Done: true, What: path + " differs from this version's, and stays as it is",
			Lines: []string{"to have this version's: remove it, and install again"}}, nil
	}
	if shipped := i.Init.Shipped(i.Role); shipped != "" {
		return Step{What: "use the package's " + shipped, Done: true}, nil
	}
	return s, nil
}

// modeOf keeps the mode of a file that is there.
func modeOf(path string, otherwise os.FileMode) os.FileMode {
	if info, err := os.Stat(path); err == nil {
		return info.Mode().Perm()
	}
	return otherwise
}

// Restart reports whether a plan counts for a running service only after a restart.
func (p Plan) Restart(before State) bool {
	if !before.Active {
		return false
	}
	for _, s := range p {
		if !s.Done {
			return true
		}
	}
	return false
}

// mostEnds is how often a service may end while its start is awaited.
const mostEnds = 3

// Await returns when the service serves. Serves is asked where the init system does not know. Say
// gets each word of the service that is new. The start goes on after an error of ctx.
func Await(
	ctx context.Context, i Init, role string, serves func(context.Context) (bool, error), say func(string),
) error {
	said, before := "", -1 // its ends before it is awaited
	gone := 0              // how often it was seen neither running nor failed: it is about to start
	for {
		state, err := i.State(ctx, role)
		if err != nil {
			return err
		}
		if before < 0 {
			before = state.Restarts
		}
		if !state.Serving && state.Active && i.Name() != SystemdName {
			if state.Serving, err = serves(ctx); err != nil {
				return err
			}
		}
		if !state.Active {
			gone++
		}
		switch {
		case state.Serving:
			return nil
		case state.Failed || gone > 10 || state.Restarts-before >= mostEnds:
			return fmt.Errorf("%s does not stay up; its last words: %s", serviceName(role), i.Log(role))
		case state.Text != said && state.Text != "":
			said = state.Text
			say(said)
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// others are traces of other distributions, with their effects.
var others = []struct{ path, of, effect string }{
	{"/etc/rancher", "k3s or RKE2", "its service may take the same ports, and its rules may get in the way of packets"},
	{"/var/lib/rancher", "k3s or RKE2", "its pods may still run"},
	{"/var/lib/k0s", "k0s", "its service may take the same ports, and its pods may still run"},
	{"/var/snap/microk8s", "MicroK8s", "its service may take the same ports, and its pods may still run"},
	{"/etc/kubernetes", "kubeadm", "its kubelet may take the same ports, and its pods may still run"},
	{"/var/lib/etcd", "etcd", "it may serve another cluster's control plane on this machine"},
}

// Others finds traces of other distributions below a root directory. Each is a doubt.
func Others(root string) []check.Finding {
	var found []check.Finding
	for _, o := range others {
		if entries, err := os.ReadDir(filepath.Join(root, o.path)); err == nil && len(entries) > 0 {
			found = append(found, check.Doubtful("other distributions",
				fmt.Sprintf("%s is here: it is of %s, and %s", o.path, o.of, o.effect),
				"remove it with its own uninstaller, if it is not in use"))
		}
	}
	return found
}

// CheckSecret refuses a file with a secret that other users may read.
func CheckSecret(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // its reader reports that
	case err != nil:
		return err
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s has a secret, and others than its owner may read it (mode %04o): chmod 600 %s", path,
			info.Mode().Perm(), path)
	}
	return nil
}

// Lines splits a text for a step.
func Lines(text []byte) []string {
	trimmed := strings.TrimRight(string(text), "\n")
	if trimmed == "" {
		return nil
	}
	return strings.Split(trimmed, "\n")
}
